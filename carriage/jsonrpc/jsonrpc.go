// Package jsonrpc looks at a JSON-RPC 2.0 message just as far as carrying it
// needs: is it one JSON object, is it a request, a notification, a result or an
// error, which id and which method does it name. It never changes, copies or
// re-serializes an octet; everything it hands out is a view of the caller's
// message (CC-JSONRPC 2, 3).
//
// The scanner is flat: the whole message is checked against the grammar of
// RFC 8259 in one pass, nesting is held as one bit a level and never on the
// goroutine's stack, and only the members of the outermost object are looked at.
// It allocates nothing in steady state.
//
// What the grammar leaves open is settled so:
//
//   - A string with octets that are not UTF-8 is refused (RFC 8259 section 8.1).
//   - An escaped surrogate without its other half is grammatical and is carried,
//     but not in the method, which the envelope repeats as UTF-8 and which such
//     an escape has no form in. In an id it stands for itself and equals nothing
//     else.
//   - A byte order mark is refused, never removed.
//   - Member names are compared by their decoded value and without folding case,
//     so "m\u0065thod" is the method and "Method" is a member we do not know.
package jsonrpc

import "errors"

// Kind says what a message is.
type Kind uint8

// The kinds of a message. The zero value is no message at all.
const (
	KindNone         Kind = iota
	KindRequest           // a method and an id
	KindNotification      // a method and no id
	KindResponse          // a result
	KindError             // an error
)

var kindNames = [...]string{"none", "request", "notification", "response", "error"}

// String returns the kind's name.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// IDKind is the JSON type of an id.
type IDKind uint8

// The types JSON-RPC 2.0 allows for an id. IDNone says that there is none,
// which is something else than an id that is null.
const (
	IDNone IDKind = iota
	IDString
	IDNumber
	IDNull
)

// Message is what Scan found. Its slices are views of the scanned octets and
// live as long as these do. The zero value is KindNone.
type Message struct {
	Kind   Kind
	IDKind IDKind
	// ID is the id as written: a string with its quotes and escapes, the digits
	// of a number, or null. It is nil when IDKind is IDNone.
	ID []byte
	// Method is the method's string as written, with its quotes and escapes; nil
	// in a response. AppendMethod and EqualMethod give its decoded value.
	Method []byte
	// Body is the value of result or error as written; nil in a request.
	Body []byte

	methodEscaped bool
}

// What is wrong with a message. Every one of these means that the message can't
// be carried in the JSON-RPC class (EnvelopeMalformed).
var (
	ErrEmpty        = errors.New("jsonrpc: empty message")
	ErrBOM          = errors.New("jsonrpc: byte order mark before the message")
	ErrBatch        = errors.New("jsonrpc: batch arrays are not carried")
	ErrNotObject    = errors.New("jsonrpc: not a JSON object")
	ErrTruncated    = errors.New("jsonrpc: JSON ends too early")
	ErrSyntax       = errors.New("jsonrpc: not JSON")
	ErrTrailing     = errors.New("jsonrpc: octets after the JSON object")
	ErrUTF8         = errors.New("jsonrpc: string is not UTF-8")
	ErrDepth        = errors.New("jsonrpc: nested too deeply")
	ErrDuplicate    = errors.New("jsonrpc: a member of the message occurs twice")
	ErrVersion      = errors.New(`jsonrpc: "jsonrpc" is not "2.0"`)
	ErrIDType       = errors.New("jsonrpc: id is neither string nor number nor null")
	ErrMethodType   = errors.New("jsonrpc: method is not a string")
	ErrMethodText   = errors.New("jsonrpc: method has half a surrogate pair")
	ErrBothOutcomes = errors.New("jsonrpc: both result and error")
	ErrNoOutcome    = errors.New("jsonrpc: no method, no result and no error")
	ErrMixed        = errors.New("jsonrpc: a method together with a result or an error")
	ErrNoID         = errors.New("jsonrpc: response without an id")
)

// DefaultMaxDepth is how many arrays and objects Scan lets contain each other,
// the message's own object counted. Each level costs one bit while the scan runs.
const DefaultMaxDepth = 1 << 20

// Scan checks that b is exactly one JSON-RPC 2.0 message, white space around it
// allowed, and fills m with views of b. It returns one of the errors of this
// package, and then m is the zero Message. It never keeps b.
func Scan(b []byte, m *Message) error { return ScanDepth(b, m, DefaultMaxDepth) }

// ScanDepth is Scan with a limit of its own on nesting.
func ScanDepth(b []byte, m *Message, maxDepth int) error {
	*m = Message{}
	var f Message
	if err := scan(b, &f, maxDepth); err != nil {
		return err
	}
	*m = f
	return nil
}

// The members of the outermost object that mean something to us.
const (
	nameJSONRPC = 1 << iota
	nameID
	nameMethod
	nameResult
	nameError
)

func scan(b []byte, m *Message, maxDepth int) error {
	i := skipSpace(b, 0)
	if i == len(b) {
		return ErrEmpty
	}
	if b[i] != '{' {
		switch {
		case b[i] == '[':
			return ErrBatch
		case len(b)-i >= 3 && b[i] == 0xEF && b[i+1] == 0xBB && b[i+2] == 0xBF:
			return ErrBOM
		}
		return ErrNotObject
	}
	if maxDepth < 1 {
		return ErrDepth
	}

	var seen, twice uint8
	var version bool
	i = skipSpace(b, i+1)
	if i < len(b) && b[i] == '}' {
		i++
	} else {
		for {
			key := i
			end, escaped, err := scanString(b, i)
			if err != nil {
				return err
			}
			i = skipSpace(b, end)
			if i == len(b) {
				return ErrTruncated
			}
			if b[i] != ':' {
				return ErrSyntax
			}
			start := skipSpace(b, i+1)
			i, err = scanValue(b, start, maxDepth-1)
			if err != nil {
				return err
			}

			value := b[start:i:i]
			name := memberName(b[key+1:end-1], escaped)
			twice |= seen & name
			seen |= name
			switch name {
			case nameJSONRPC:
				version = EqualString(value, versionTwo)
			case nameID:
				m.ID = value
			case nameMethod:
				m.Method = value
			case nameResult, nameError:
				m.Body = value
			}

			i = skipSpace(b, i)
			if i == len(b) {
				return ErrTruncated
			}
			if b[i] == '}' {
				i++
				break
			}
			if b[i] != ',' {
				return ErrSyntax
			}
			i = skipSpace(b, i+1)
		}
	}
	if skipSpace(b, i) != len(b) {
		return ErrTrailing
	}

	// From here on it is JSON; what follows is JSON-RPC.
	if twice != 0 {
		return ErrDuplicate
	}
	if !version {
		return ErrVersion
	}
	if seen&nameID != 0 {
		switch c := m.ID[0]; {
		case c == '"':
			m.IDKind = IDString
		case c == 'n':
			m.IDKind = IDNull
		case c == '-' || isDigit(c):
			m.IDKind = IDNumber
		default:
			return ErrIDType
		}
	}
	switch seen & (nameMethod | nameResult | nameError) {
	case nameMethod:
		if m.Method[0] != '"' {
			return ErrMethodType
		}
		var ok bool
		if m.methodEscaped, ok = checkText(m.Method); !ok {
			return ErrMethodText
		}
		m.Kind = KindNotification
		if m.IDKind != IDNone {
			m.Kind = KindRequest
		}
		return nil
	case nameResult:
		m.Kind = KindResponse
	case nameError:
		m.Kind = KindError
	case nameResult | nameError:
		return ErrBothOutcomes
	case 0:
		return ErrNoOutcome
	default:
		return ErrMixed
	}
	if m.IDKind == IDNone {
		return ErrNoID
	}
	return nil
}

var versionTwo = []byte("2.0")

// memberName tells which of our five members a key is; 0 is any other. The key
// comes without its quotes.
func memberName(key []byte, escaped bool) uint8 {
	if escaped {
		var short [len("jsonrpc")]byte
		n, ok := decodeShort(short[:], key)
		if !ok {
			return 0
		}
		return plainName(short[:n])
	}
	return plainName(key)
}

func plainName(key []byte) uint8 {
	switch string(key) {
	case "jsonrpc":
		return nameJSONRPC
	case "id":
		return nameID
	case "method":
		return nameMethod
	case "result":
		return nameResult
	case "error":
		return nameError
	}
	return 0
}

// AppendMethod appends the method's decoded UTF-8, which is what the envelope's
// method holds. It appends nothing for a message without a method.
func (m *Message) AppendMethod(dst []byte) []byte {
	if len(m.Method) < 2 {
		return dst
	}
	return AppendString(dst, m.Method)
}

// MethodPlain returns the method's decoded UTF-8 as a view when no escape is in
// it, which is nearly always; ok is false when it must be decoded by
// AppendMethod.
func (m *Message) MethodPlain() (method []byte, ok bool) {
	if len(m.Method) < 2 || m.methodEscaped {
		return nil, false
	}
	return m.Method[1 : len(m.Method)-1 : len(m.Method)-1], true
}

// EqualMethod says whether the method's decoded value is s, octet for octet.
func (m *Message) EqualMethod(s []byte) bool { return EqualString(m.Method, s) }

// EqualID says whether two id tokens as written are the same id (D17): they are
// of one JSON type, and strings have the same decoded value, numbers the same
// digits as written, null equals null. Two absent ids are not equal.
func EqualID(a, b []byte) bool {
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	if string(a) == string(b) {
		return true
	}
	if a[0] != '"' || b[0] != '"' {
		return false
	}
	return equalStrings(a, b)
}
