package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/trestle-npamp/trestle/wire"
)

// Received is a frame that a peer got: the opened payload.
type Received struct {
	Channel wire.Channel
	Type    wire.FrameType
	Payload []byte
}

// Backend is the side under test and the peers beside it, for one script.
type Backend interface {
	// Send has a peer send a payload as one frame, octet for octet.
	Send(peer string, ch wire.Channel, t wire.FrameType, payload []byte) error
	// Receive gives the frames that a peer got in the order in which they came, and
	// waits for the next one where that takes time. ok is false if none comes.
	Receive(peer string) (f Received, ok bool, err error)
	// Quiet says what a peer got that has not been received; ok is false if there is
	// nothing and nothing will come.
	Quiet(peer string) (f Received, ok bool, err error)
	// Do does what the application, the link, the clock or the side does in a step.
	Do(st *Step) error
	// Finish says what happened at the application that no step told of.
	Finish() error
}

// Run plays the script. It stops at the first step that goes another way and returns
// an *Error with its line.
func (s *Script) Run(b Backend) error {
	known := bindings{}
	fail := func(line int, err error) error { return &Error{s.Name, line, err} }
	last := 0
	for _, st := range s.Steps {
		last = st.Line
		if err := st.run(b, known); err != nil {
			return fail(st.Line, err)
		}
	}
	for _, peer := range s.peers() {
		if err := quiet(b, peer); err != nil {
			return fail(last, fmt.Errorf("after the last step: %w", err))
		}
	}
	if err := b.Finish(); err != nil {
		return fail(last, fmt.Errorf("after the last step: %w", err))
	}
	return nil
}

func (s *Script) peers() []string {
	if s.Side == Relay {
		return []string{"caller", "agent"}
	}
	return []string{"peer"}
}

func (st *Step) run(b Backend, known bindings) error {
	switch {
	case st.Object == "nothing" && st.Verb == "receives":
		return quiet(b, st.Who)
	case st.Frame == nil:
		return b.Do(st)
	case st.Verb == "sends":
		payload, err := st.Frame.Golden.fill(known)
		if err != nil {
			return err
		}
		return b.Send(st.Who, st.Frame.Channel, st.Frame.Type, payload)
	}
	f, ok, err := b.Receive(st.Who)
	switch {
	case err != nil:
		return err
	case !ok:
		return errors.New("no frame came")
	case f.Channel != st.Frame.Channel || f.Type != st.Frame.Type:
		return fmt.Errorf("a frame of type 0x%04x came on channel %v: %s", uint16(f.Type), f.Channel, dump(f.Payload))
	}
	if err := st.Frame.Golden.match(f.Payload, known); err != nil {
		return fmt.Errorf("%w%s", err, st.Frame.where(f.Payload))
	}
	return st.Frame.sound(f.Payload)
}

// sound checks what a * stands for in a transport error: a length octet and just so
// much text (BRIDGE 6, D11).
func (f *Frame) sound(payload []byte) error {
	if !f.Golden.open || f.Fields[len(f.Fields)-1].Name != "error" {
		return nil
	}
	said := payload[f.Golden.Len():]
	if len(said) < 2 || int(said[0]) != len(said)-1 || !utf8.Valid(said[1:]) {
		return fmt.Errorf("the transport error's text is %x, not its length and that much UTF-8", said)
	}
	return nil
}

// where names the field in which a payload differs.
func (f *Frame) where(got []byte) string {
	at := 0
	for _, x := range f.Fields {
		n := x.octets.Len()
		if len(got) < at+n || len(x.octets.holes) == 0 && !bytes.Equal(got[at:at+n], x.octets.b) {
			return fmt.Sprintf("\nin line %d, %s", x.Line, x.Name)
		}
		at += n
	}
	return ""
}

func quiet(b Backend, peer string) error {
	f, ok, err := b.Quiet(peer)
	if err == nil && ok {
		err = fmt.Errorf("a frame of type 0x%04x came on channel %v: %s", uint16(f.Type), f.Channel, dump(f.Payload))
	}
	return err
}

// Seen is a message as the application on the responder's side got it, as far as a
// backend can tell: nil and "" are not told.
type Seen struct {
	Kind    string // "request" or "notification"
	Corr    []byte
	Method  []byte
	Foreign []byte
	Label   []byte // nil: none
	Effect  string
	Content int // -1: not told
	Media   []byte

	// Labelled says that the label is told.
	Labelled bool
}

// Check compares with what a step expects.
func (st *Step) Check(s *Seen) error {
	switch {
	case s.Kind != st.Object:
		return fmt.Errorf("a %s came: %q", s.Kind, s.Foreign)
	case st.Corr != nil && s.Corr != nil && !bytes.Equal(s.Corr, st.Corr):
		return fmt.Errorf("its correlation id is %q", s.Corr)
	case st.Method != nil && s.Method != nil && !bytes.Equal(s.Method, st.Method):
		return fmt.Errorf("its method is %q", s.Method)
	case st.Foreign != nil && !bytes.Equal(s.Foreign, st.Foreign):
		return fmt.Errorf("the foreign message is\n %s, want\n %s", dump(s.Foreign), dump(st.Foreign))
	case st.Effect != "" && s.Effect != "" && s.Effect != st.Effect:
		return fmt.Errorf("its effect is %s", s.Effect)
	case s.Labelled && st.NoLabel && s.Label != nil:
		return fmt.Errorf("it is labelled %x", s.Label)
	case s.Labelled && st.Label != nil && !bytes.Equal(s.Label, st.Label):
		return fmt.Errorf("it is labelled %x", s.Label)
	case st.Content != 0 && s.Content >= 0 && s.Content != int(st.Content):
		return fmt.Errorf("its content type is %d", s.Content)
	case st.Media != nil && s.Media != nil && !bytes.Equal(s.Media, st.Media):
		return fmt.Errorf("its media type is %q", s.Media)
	}
	return nil
}

// Outcome is what the application on the originator's side got.
type Outcome struct {
	Kind    string // "response", "error", "event", "end", "set", "refusal" (a transport error) or "failure"
	Event   uint64
	Told    bool // Event is told
	Code    uint64
	Text    string
	Foreign []byte

	// Of a set.
	Document, DocumentType []byte
	Proofs                 []Proof
}

// Compare compares with what a step expects.
func (st *Step) Compare(o *Outcome) error {
	told := fmt.Sprintf("%s %d%s %q %s", o.Kind, o.Code, o.Text, o.Foreign, map[bool]string{true: fmt.Sprint(o.Event)}[o.Told])
	switch {
	case o.Kind != st.Object,
		o.Kind == "refusal" && o.Code != st.N,
		o.Kind == "refusal" && st.Text != nil && o.Text != string(st.Text),
		o.Kind == "failure" && st.Text != nil && o.Text != string(st.Text),
		(o.Kind == "event" || o.Kind == "end") && o.Told && st.N != 0 && o.Event != st.N:
		return fmt.Errorf("it got %s", told)
	case st.Foreign != nil && !bytes.Equal(o.Foreign, st.Foreign):
		return fmt.Errorf("the foreign message is\n %s, want\n %s", dump(o.Foreign), dump(st.Foreign))
	case st.Document != nil && !bytes.Equal(o.Document, st.Document), st.DocumentType != nil && !bytes.Equal(o.DocumentType, st.DocumentType):
		return fmt.Errorf("the document is %q of type %q", o.Document, o.DocumentType)
	case o.Kind == "set" && !slices.EqualFunc(o.Proofs, st.Proofs, func(a, b Proof) bool {
		return a.Scheme == b.Scheme && bytes.Equal(a.Octets, b.Octets)
	}):
		return fmt.Errorf("its proofs are %v", o.Proofs)
	}
	return nil
}
