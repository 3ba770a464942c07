package bridge

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// D11: a transport error has a known code and exactly the length it says.
func TestTransportErrorOrForeignError(t *testing.T) {
	for _, tt := range []struct {
		hex  string
		code Code
		text string
		ok   bool
	}{
		{`01 00`, CodeEnvelopeMalformed, "", true},
		{`04 04"gone"`, CodeNotDelivered, "gone", true},
		{`06 01"x"`, CodeNotResumable, "x", true},
		{`10 01"x"`, CodeBindingMalformed, "x", true},
		{`15 ff"` + strings.Repeat("x", 255) + `"`, CodeSetIncomplete, strings.Repeat("x", 255), true},
		{`04 01 ff`, CodeNotDelivered, "\xff", true}, // text is not judged
		{``, 0, "", false},
		{`04`, 0, "", false},
		{`04 01`, 0, "", false},
		{`04 01"xy"`, 0, "", false},
		{`00 00`, 0, "", false},
		{`07 00`, 0, "", false},
		{`0f 00`, 0, "", false},
		{`16 00`, 0, "", false},
		{`ff 00`, 0, "", false},
		{`"{}"`, 0, "", false},
		{`7b 02"ab"`, 0, "", false},
	} {
		code, text, ok := ParseTransportError(unhex(t, tt.hex))
		if code != tt.code || string(text) != tt.text || ok != tt.ok {
			t.Errorf("%s: %v %q %v", tt.hex, code, text, ok)
		}
		if ok && utf8.ValidString(tt.text) {
			if out := AppendTransportError([]byte("x"), code, tt.text); !bytes.Equal(out[1:], unhex(t, tt.hex)) {
				t.Errorf("appended %x", out[1:])
			}
		}
	}
}

func TestTransportErrorCodes(t *testing.T) {
	names := map[int]string{
		1: "EnvelopeMalformed", 2: "ProtocolUnsupported", 3: "MethodUnsupported", 4: "NotDelivered",
		5: "SafetyPolicy", 6: "NotResumable", 16: "BindingMalformed", 17: "DigestMismatch",
		18: "DigestUnstable", 19: "ProofUnbound", 20: "ProofUnsupported", 21: "SetIncomplete",
	}
	for i := range 256 {
		name, known := names[i]
		if Code(i).Known() != known {
			t.Errorf("code %d known: %v", i, !known)
		}
		if !known {
			name = fmt.Sprintf("code(%d)", i)
		}
		if Code(i).String() != name || Code(i).Error() != name {
			t.Errorf("code %d is %q", i, Code(i))
		}
	}
}

func TestTransportErrorTextIsCutBetweenCharacters(t *testing.T) {
	for _, tt := range []struct {
		text string
		want string
	}{
		{strings.Repeat("a", 300), strings.Repeat("a", 255)},
		{strings.Repeat("a", 254) + "é", strings.Repeat("a", 254)},
		{strings.Repeat("a", 253) + "é", strings.Repeat("a", 253) + "é"},
		{strings.Repeat("€", 86), strings.Repeat("€", 85)},
		{"bad \xff text", "bad \uFFFD text"},
		{strings.Repeat("\x80", 300), "\uFFFD"},
	} {
		_, text, ok := ParseTransportError(AppendTransportError(nil, CodeNotDelivered, tt.text))
		if !ok || string(text) != tt.want {
			t.Errorf("%q became %q, %v", tt.text, text, ok)
		}
	}
}

func TestErrorIsItsCode(t *testing.T) {
	err := fmt.Errorf("call: %w", &Error{CodeSafetyPolicy, "destructive"})
	if !errors.Is(err, CodeSafetyPolicy) || errors.Is(err, CodeNotDelivered) {
		t.Error("errors.Is does not see the code")
	}
	var e *Error
	if !errors.As(err, &e) || e.Text != "destructive" {
		t.Error("errors.As does not see the error")
	}
	if e.Error() != "SafetyPolicy: destructive" || (&Error{Code: CodeNotDelivered}).Error() != "NotDelivered" {
		t.Error(e.Error())
	}
}

func TestCodeOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want Code
	}{
		{nil, 0},
		{errors.New("other"), 0},
		{ErrFrameType, 0},
		{ErrMalformed, CodeEnvelopeMalformed},
		{fmt.Errorf("x: %w", ErrMethodTooLong), CodeEnvelopeMalformed},
		{ErrBindingProof, CodeBindingMalformed},
		{ErrAmbiguous, CodeNotDelivered},
		{ErrTagOff, CodeNotDelivered},
		{CodeMethodUnsupported, CodeMethodUnsupported},
		{fmt.Errorf("x: %w", &Error{Code: CodeNotResumable}), CodeNotResumable},
	} {
		if got := CodeOf(tt.err); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
}

func TestErrorReply(t *testing.T) {
	for _, tt := range []struct {
		p    ProtocolID
		corr string
		hex  string
	}{
		{ProtocolA2A, "c1", `0010 0008 02 04 01 00 02"c1" 00 01 03"why"`},
		{ProtocolA2A, "", `0010 0007 02 04 01 00 01 00 00 01 03"why"`},
		{0, "c1", `0010 0008 01 04 01 00 02"c1" 00 01 03"why"`},
	} {
		out := AppendErrorReply([]byte("x"), tt.p, []byte(tt.corr), CodeEnvelopeMalformed, "why")
		if !bytes.Equal(out[1:], unhex(t, tt.hex)) {
			t.Errorf("%x, want %x", out[1:], unhex(t, tt.hex))
		}
		var m Message
		if err := Parse(&m, TypeError, out[1:], nil); err != nil || !m.Transport {
			t.Errorf("%v, transport %v", err, m.Transport)
		}
	}
	longest := AppendErrorReply(nil, 2, make([]byte, 255), CodeNotDelivered, strings.Repeat("x", 300))
	if len(longest) != MaxErrorReplyLen {
		t.Errorf("%d octets, promised %d", len(longest), MaxErrorReplyLen)
	}
	defer func() {
		if recover() == nil {
			t.Error("a correlation id of 256 octets was written")
		}
	}()
	AppendErrorReply(nil, 2, make([]byte, 256), CodeNotDelivered, "")
}

// The answer to whatever request could not be parsed can itself be parsed.
func FuzzErrorReply(f *testing.F) {
	f.Add([]byte{0, 0x10, 0, 4, 2, 1, 1, 0}, "why")
	f.Add([]byte{0, 0x10, 0, 7, 0, 1, 1, 0, 1, 0x61, 0}, "\xff")
	f.Fuzz(func(t *testing.T, payload []byte, text string) {
		var m Message
		err := Parse(&m, TypeRequest, payload, nil)
		if err == nil {
			return
		}
		var reply Message
		if err := Parse(&reply, TypeError, AppendErrorReply(nil, m.Protocol, m.Corr, CodeOf(err), text), nil); err != nil {
			t.Fatal(err)
		}
		if want := string(m.Corr); string(reply.Corr) != want && (want != "" || string(reply.Corr) != NoCorr) {
			t.Fatalf("corr %q became %q", want, reply.Corr)
		}
		if code, text, ok := ParseTransportError(reply.Foreign); !ok || !reply.Transport || code != CodeEnvelopeMalformed || !utf8.Valid(text) {
			t.Fatal(code, text, ok)
		}
	})
}

// Reading and writing agree, and nothing is both a transport error and not.
func FuzzTransportError(f *testing.F) {
	f.Add([]byte{4, 4, 'g', 'o', 'n', 'e'})
	f.Add([]byte{21, 0})
	f.Add([]byte("{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		code, text, ok := ParseTransportError(b)
		if !ok {
			if code != 0 || text != nil {
				t.Fatal(code, text)
			}
			if len(b) >= 2 && Code(b[0]).Known() && len(b)-2 == int(b[1]) {
				t.Fatal("not seen")
			}
			return
		}
		if !code.Known() || len(text) > MaxErrorText {
			t.Fatal(code, len(text))
		}
		if utf8.Valid(text) && !bytes.Equal(AppendTransportError(nil, code, string(text)), b) {
			t.Fatal("written otherwise")
		}
	})
}

func TestTransportErrorAllocatesNothing(t *testing.T) {
	room := make([]byte, 0, 600)
	corr := []byte("c")
	if n := testing.AllocsPerRun(100, func() {
		b := AppendErrorReply(room, ProtocolA2A, corr, CodeNotDelivered, "the agent left")
		if _, _, ok := ParseTransportError(b[11:]); !ok {
			t.Fatal("not read")
		}
		if !errors.Is(ErrEffect, ErrMalformed) {
			t.Fatal("class")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
