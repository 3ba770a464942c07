package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Field is one line that describes octets of a payload.
type Field struct {
	Line   int
	Name   string
	tokens []token
	raw    string // the line's left part, for entries
	octets Octets
}

// The names of what fields hold as one octet or two. They are written down here once
// more, and not taken from wire/bridge, because the octets are meant to be known from
// outside of what is tested.
var (
	protocolNames = map[string]uint64{"MCP": 1, "A2A": 2, "HTTP": 3, "WebSocket": 4}
	kindNames     = map[string]uint64{"request": 1, "response": 2, "notification": 3, "error": 4, "stream_data": 5, "stream_end": 6}
	contentNames  = map[string]uint64{"json": 1, "cbor": 2, "proto": 3}
	effectNames   = map[string]uint64{"read_only": 0, "idempotent_write": 1, "non_idempotent_write": 2, "destructive": 3}
	codeNames     = map[string]uint64{
		"EnvelopeMalformed": 1, "ProtocolUnsupported": 2, "MethodUnsupported": 3, "NotDelivered": 4, "SafetyPolicy": 5,
		"NotResumable": 6, "BindingMalformed": 16, "DigestMismatch": 17, "DigestUnstable": 18, "ProofUnbound": 19,
		"ProofUnsupported": 20, "SetIncomplete": 21,
	}
	controlNames = map[string]uint64{"data": 0, "resume": 1, "cancel": 2}
	partNames    = map[string]uint64{"document": 1, "proof": 2}
	digestNames  = map[string]uint64{"sha256": 4, "sha384": 5, "sha512": 6}
	proofNames   = map[string]uint64{"Ed25519": 0x0807, "ML-DSA-87": 0x0905}
	channelNames = map[string]wire.Channel{"Control": 0, "Bridge": 0x0D, "Discovery": 0x10, "Memory": 1, "Stream": 0x0C}
	bridgeTypes  = map[string]wire.FrameType{
		"REQUEST": 0x0100, "RESPONSE": 0x0101, "ERROR": 0x0102, "NOTIFY": 0x0103, "STREAM_DATA": 0x0104, "STREAM_END": 0x0105,
	}
	discoveryTypes = map[string]wire.FrameType{
		"QUERY": 0x0100, "RESULT": 0x0101, "ERROR": 0x0102, "ANNOUNCE": 0x0103, "SUBSCRIBE": 0x0104, "UPDATE": 0x0105, "UNSUBSCRIBE": 0x0106,
	}
)

// named takes a name of one of these, or a number.
func (w *words) named(what string, names map[string]uint64, bits int) (uint64, error) {
	if len(w.rest) > 0 && w.rest[0].kind == word {
		if n, ok := names[w.rest[0].s]; ok {
			w.rest = w.rest[1:]
			return n, nil
		}
	}
	return w.number(what, bits)
}

// group is what a field belongs to: its length field covers the group.
type group uint8

const (
	alone group = iota
	inEnvelope
	inBinding
)

// fieldKinds are the fields of a frame's payload.
var fieldKinds = map[string]struct {
	in     group
	encode func(w *words, tags *bridge.Tags) (Octets, error)
}{
	"protocol": {inEnvelope, octet("protocol_id", protocolNames)},
	"kind":     {inEnvelope, octet("message_kind", kindNames)},
	"content":  {inEnvelope, octet("content_type", contentNames)},
	"flags":    {inEnvelope, octet("flags", map[string]uint64{"none": 0, "final": 1})},
	"corr":     {inEnvelope, counted("correlation_id")},
	"method":   {inEnvelope, counted("method")},

	"label":  {alone, encodeLabel},
	"stream": {alone, encodeStream},
	"mediatype": {alone, func(w *words, tags *bridge.Tags) (Octets, error) {
		return tlv(w, tags.OpaqueContentType, "mediatype")
	}},
	"metadata": {alone, func(w *words, tags *bridge.Tags) (Octets, error) {
		return tlv(w, tags.EdgeMetadata, "metadata")
	}},
	"tlv": {alone, func(w *words, _ *bridge.Tags) (Octets, error) {
		n, err := w.number("type", 16)
		if err != nil {
			return Octets{}, err
		}
		return tlv(w, wire.TLVType(n), "")
	}},

	"part":     {inBinding, octet("part_kind", partNames)},
	"document": {inBinding, counted("doc_id")},
	"type":     {inBinding, counted("media type")},
	"digest":   {inBinding, encodeDigest},
	"proofs":   {inBinding, octet("proof_count", nil)},
	"index":    {inBinding, octet("proof_index", nil)},
	"scheme":   {inBinding, octets16("proof_alg", proofNames)},

	"error":   {alone, encodeError},
	"foreign": {alone, verbatim},
	"octets":  {alone, verbatim},
}

func octet(what string, names map[string]uint64) func(*words, *bridge.Tags) (Octets, error) {
	return func(w *words, _ *bridge.Tags) (o Octets, err error) {
		n, err := w.named(what, names, 8)
		o.append([]byte{byte(n)})
		return o, err
	}
}

func octets16(what string, names map[string]uint64) func(*words, *bridge.Tags) (Octets, error) {
	return func(w *words, _ *bridge.Tags) (o Octets, err error) {
		n, err := w.named(what, names, 16)
		o.append(binary.BigEndian.AppendUint16(nil, uint16(n)))
		return o, err
	}
}

// counted is a length octet and that many octets. "as N" writes another length.
func counted(what string) func(*words, *bridge.Tags) (Octets, error) {
	return func(w *words, _ *bridge.Tags) (o Octets, err error) {
		lie, n := false, uint64(0)
		if w.is("as") {
			lie = true
			if n, err = w.number("length", 8); err != nil {
				return o, err
			}
		}
		v := Octets{}
		if !w.is("none") {
			if v, err = w.octets(what); err != nil {
				return o, err
			}
		}
		if !lie {
			if n = uint64(v.Len()); n > 255 {
				return o, fmt.Errorf("%s of %d octets", what, n)
			}
		}
		o.append([]byte{byte(n)})
		o.join(v)
		return o, nil
	}
}

func (o *Octets) header(t wire.TLVType, n int) {
	o.append(binary.BigEndian.AppendUint16(nil, uint16(t)))
	o.append(binary.BigEndian.AppendUint16(nil, uint16(n)))
}

// tlv is a TLV whose value is what follows. "as N" writes another length.
func tlv(w *words, t wire.TLVType, needs string) (o Octets, err error) {
	if t == 0 && needs != "" {
		return o, fmt.Errorf("there is no number for %s: tags give it", needs)
	}
	lie, n := false, uint64(0)
	if w.is("as") {
		lie = true
		if n, err = w.number("length", 16); err != nil {
			return o, err
		}
	}
	v := Octets{}
	if !w.is("none") {
		if v, err = w.octets("value"); err != nil {
			return o, err
		}
	}
	if !lie {
		n = uint64(v.Len())
	}
	o.header(t, int(n))
	o.join(v)
	return o, nil
}

// encodeLabel: label EFFECT [scope TEXT].
func encodeLabel(w *words, _ *bridge.Tags) (o Octets, err error) {
	effect, err := w.named("effect", effectNames, 8)
	if err != nil {
		return o, err
	}
	var scope []byte
	if w.is("scope") {
		if scope, err = w.plain("scope"); err != nil {
			return o, err
		}
	}
	if len(scope) > 255 {
		return o, errors.New("a scope over 255 octets")
	}
	o.header(0x0013, 2+len(scope))
	o.append([]byte{byte(effect)})
	o.append([]byte{byte(len(scope))})
	o.append(scope)
	return o, nil
}

// encodeStream: stream [version N] CONTROL [resumable] [cancel_ack] [flags N] event N.
func encodeStream(w *words, _ *bridge.Tags) (o Octets, err error) {
	version, flags := uint64(1), uint64(0)
	if w.is("version") {
		if version, err = w.number("version", 8); err != nil {
			return o, err
		}
	}
	control, err := w.named("control", controlNames, 8)
	if err != nil {
		return o, err
	}
	if w.is("resumable") {
		flags |= 1
	}
	if w.is("cancel_ack") {
		flags |= 2
	}
	if w.is("flags") {
		if flags, err = w.number("flags", 8); err != nil {
			return o, err
		}
	}
	if !w.is("event") {
		return o, errors.New("event is missing")
	}
	event, err := w.number("event_id", 64)
	if err != nil {
		return o, err
	}
	o.header(0x0011, 11)
	o.append([]byte{byte(version)})
	o.append([]byte{byte(control)})
	o.append([]byte{byte(flags)})
	o.append(binary.BigEndian.AppendUint64(nil, event))
	return o, nil
}

// encodeDigest: digest ALG OCTETS.
func encodeDigest(w *words, _ *bridge.Tags) (o Octets, err error) {
	alg, err := w.named("digest_alg", digestNames, 16)
	if err != nil {
		return o, err
	}
	d, err := w.plain("digest")
	if err != nil {
		return o, err
	}
	if len(d) > 255 {
		return o, errors.New("a digest over 255 octets")
	}
	o.append(binary.BigEndian.AppendUint16(nil, uint16(alg)))
	o.append([]byte{byte(len(d))})
	o.append(d)
	return o, nil
}

// encodeError: error CODE TEXT, or error CODE * for any text.
func encodeError(w *words, _ *bridge.Tags) (o Octets, err error) {
	code, err := w.named("code", codeNames, 8)
	if err != nil {
		return o, err
	}
	o.append([]byte{byte(code)})
	if w.is("*") {
		o.open = true
		return o, nil
	}
	said, err := w.plain("text")
	if err != nil {
		return o, err
	}
	if len(said) > 255 {
		return o, errors.New("a text over 255 octets")
	}
	o.append([]byte{byte(len(said))})
	o.append(said)
	return o, nil
}

func verbatim(w *words, _ *bridge.Tags) (o Octets, err error) {
	if w.is("*") {
		o.open = true
		return o, nil
	}
	return w.octets("what is carried")
}

// encodeFields gives each field its octets.
func encodeFields(fields []*Field, tags *bridge.Tags) error {
	if tags == nil {
		tags = new(bridge.Tags)
	}
	heads := map[group]*Field{}
	for _, f := range fields {
		w := &words{f.tokens}
		var err error
		switch f.Name {
		case "envelope", "binding":
			in, t := inEnvelope, wire.TLVType(0x0010)
			if f.Name == "binding" {
				in, t = inBinding, tags.DocumentBinding
			}
			switch {
			case t == 0:
				err = errors.New("there is no number for binding: tags give it")
			case w.is("as"):
				var n uint64
				n, err = w.number("length", 16)
				f.octets.header(t, int(n))
				delete(heads, in)
			default:
				f.octets.header(t, 0)
				heads[in] = f
			}
		case "map":
			var n uint64
			n, err = w.number("how many entries", 32)
			f.octets.append(cborHead(5, n))
		case "entry":
			w = &words{}
			err = encodeEntry(f)
		default:
			kind, ok := fieldKinds[f.Name]
			if !ok {
				return at(f.Line, fmt.Errorf("there is no field %q", f.Name))
			}
			f.octets, err = kind.encode(w, tags)
			if head := heads[kind.in]; head != nil && err == nil {
				n := int(binary.BigEndian.Uint16(head.octets.b[2:])) + f.octets.Len()
				binary.BigEndian.PutUint16(head.octets.b[2:], uint16(n))
			}
		}
		if err == nil {
			err = w.end()
		}
		if err != nil {
			return at(f.Line, err)
		}
	}
	return nil
}

// A CBOR value in the diagnostic notation of RFC 8949, 8: numbers, "text", h'octets',
// true, false, null, [arrays] and {maps}. Written anew, as the codes above are.

// encodeEntry: entry KEY NAME VALUE, where NAME is for the reader.
func encodeEntry(f *Field) error {
	s := strings.TrimSpace(f.raw)
	key, s, _ := strings.Cut(s, " ")
	n, err := strconv.ParseUint(key, 0, 63)
	if err != nil {
		return fmt.Errorf("key: %q is no number", key)
	}
	name, s, _ := strings.Cut(strings.TrimSpace(s), " ")
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return fmt.Errorf("%q is no name of a key", name)
	}
	f.octets.append(cborHead(0, n))
	if s = strings.TrimSpace(s); strings.HasPrefix(s, "<") {
		return encodeNamed(f, s)
	}
	c := cborText{s: s}
	b, err := c.value(nil, 0)
	if err == nil && strings.TrimSpace(c.s) != "" {
		err = fmt.Errorf("%q is left over", strings.TrimSpace(c.s))
	}
	f.octets.append(b)
	return err
}

// encodeNamed: <name> 'octets' or <name>, one octet string.
func encodeNamed(f *Field, s string) error {
	name, rest, ok := strings.Cut(s[1:], ">")
	if !ok || !isName(name) {
		return errHole
	}
	tail := ""
	if rest = strings.TrimSpace(rest); rest != "" {
		if tail, ok = strings.CutPrefix(rest, "'"); ok {
			tail, ok = strings.CutSuffix(tail, "'")
		}
		if !ok || strings.Contains(tail, "'") {
			return fmt.Errorf("%q is left over", rest)
		}
	}
	f.octets.append(cborHead(2, uint64(holeLen+len(tail))))
	f.octets.hole(name)
	f.octets.append([]byte(tail))
	return nil
}

func cborHead(major byte, n uint64) []byte {
	switch {
	case n < 24:
		return []byte{major<<5 | byte(n)}
	case n < 1<<8:
		return []byte{major<<5 | 24, byte(n)}
	case n < 1<<16:
		return binary.BigEndian.AppendUint16([]byte{major<<5 | 25}, uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32([]byte{major<<5 | 26}, uint32(n))
	}
	return binary.BigEndian.AppendUint64([]byte{major<<5 | 27}, n)
}

type cborText struct{ s string }

// maxCBORDepth bounds the nesting of a value.
const maxCBORDepth = 16

func (c *cborText) skip(p string) bool {
	c.s = strings.TrimLeft(c.s, " \t")
	rest, ok := strings.CutPrefix(c.s, p)
	if ok {
		c.s = rest
	}
	return ok
}

func (c *cborText) value(dst []byte, depth int) ([]byte, error) {
	if depth > maxCBORDepth {
		return dst, errors.New("the value is nested too deeply")
	}
	switch {
	case c.skip("true"):
		return append(dst, 0xF5), nil
	case c.skip("false"):
		return append(dst, 0xF4), nil
	case c.skip("null"):
		return append(dst, 0xF6), nil
	case c.skip("h'"):
		digits, rest, ok := strings.Cut(c.s, "'")
		if !ok {
			return dst, errUnended
		}
		c.s = rest
		b, err := unhex(digits)
		return append(append(dst, cborHead(2, uint64(len(b)))...), b...), err
	case c.skip("'"): // octets that are text
		b, rest, ok := strings.Cut(c.s, "'")
		if !ok {
			return dst, errUnended
		}
		c.s = rest
		return append(append(dst, cborHead(2, uint64(len(b)))...), b...), nil
	case strings.HasPrefix(c.s, `"`):
		quoted, err := strconv.QuotedPrefix(c.s)
		if err != nil {
			return dst, errUnended
		}
		s, err := strconv.Unquote(quoted)
		c.s = c.s[len(quoted):]
		return append(append(dst, cborHead(3, uint64(len(s)))...), s...), err
	case c.skip("["):
		return c.list(dst, 4, "]", depth, 1)
	case c.skip("{"):
		return c.list(dst, 5, "}", depth, 2)
	case c.skip("-"):
		n, err := c.number()
		if err == nil && n == 0 {
			err = errors.New("-0 is no number in CBOR")
		}
		return append(dst, cborHead(1, n-1)...), err
	}
	n, err := c.number()
	return append(dst, cborHead(0, n)...), err
}

func (c *cborText) number() (uint64, error) {
	n := 0
	for n < len(c.s) && (c.s[n] >= '0' && c.s[n] <= '9' || c.s[n] >= 'a' && c.s[n] <= 'f' || c.s[n] == 'x') {
		n++
	}
	v, err := strconv.ParseUint(c.s[:n], 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no value", c.s)
	}
	c.s = c.s[n:]
	return v, nil
}

// list reads an array's elements, or a map's keys and values.
func (c *cborText) list(dst []byte, major byte, end string, depth, each int) ([]byte, error) {
	var body []byte
	n := uint64(0)
	for ; !c.skip(end); n++ {
		if n > 0 && !c.skip(",") {
			return dst, fmt.Errorf("%s or a comma is missing", end)
		}
		for i := range each {
			if i > 0 && !c.skip(":") {
				return dst, errors.New("a colon is missing")
			}
			var err error
			if body, err = c.value(body, depth+1); err != nil {
				return dst, err
			}
		}
	}
	return append(append(dst, cborHead(major, n)...), body...), nil
}
