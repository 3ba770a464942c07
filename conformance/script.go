package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Script is one recorded exchange. Parse reads it from its text.
type Script struct {
	// Name is the file's, without its extension.
	Name string
	// Clauses are what it proves, as "BRIDGE 9(1)".
	Clauses []string
	// Side is what is under test.
	Side Side
	// Carries are the foreign protocols of the side, Speaks those that the peer's
	// HELLO names (the same, unless the script says otherwise).
	Carries []Carries
	Speaks  []uint8
	// Tags are the numbers that both sides have configured (D7).
	Tags bridge.Tags
	// Denies are the methods that the side's policy refuses, with its reason.
	Denies map[string]string
	// Documents is the channel on which documents are carried, the Bridge channel or
	// Discovery (D25).
	Documents wire.Channel
	// Holds is how many octets of a stream are held for a resume; 0 is the default.
	Holds int
	// Not says why the script can't be run on a backend.
	Not map[string]string
	// Page is how many octets a RESULT of Discovery has at most; 0 is the default.
	Page int
	// Steps are what happens, in order.
	Steps []*Step
}

// Side is which part of a Bridge or of Discovery a script tests.
type Side string

// The sides.
const (
	Responder  Side = "responder"  // is asked by the peer
	Originator Side = "originator" // asks the peer
	Relay      Side = "relay"      // stands between the peers "caller" and "agent"
	Advertiser Side = "advertiser" // serves the Discovery channel
)

// The backends.
const (
	Machines = "machines" // the pure machines, over a simulated link
	Program  = "program"  // the trestle binary, over a real one
)

// Carries is one protocol of the side under test.
type Carries struct {
	// Mapping is "A2A", "MCP", "AGNTCY", or "" for one that is configured by hand.
	Mapping string
	ID      bridge.ProtocolID
	// Class is "jsonrpc" or "opaque", and Content the content type of what we send;
	// only without a Mapping.
	Class   string
	Content bridge.ContentType
	// Without are methods that the side recognises and does not carry.
	Without []string
}

// Step is one thing that happens.
type Step struct {
	Line int
	// Who does it: a peer ("peer", "caller", "agent"), the application on the side
	// under test ("app"), "side", "link" or "time".
	Who string
	// Verb is what is done, and Object to what, where a verb needs one.
	Verb, Object string
	// Text and N are further arguments.
	Text []byte
	N    uint64
	// Flag is "resumable" of a stream, and "malformed" of a frame that breaks the
	// envelope's rules.
	Flag string

	// Frame is what a peer sends or receives.
	Frame *Frame
	// What belongs to a step of the application, nil if not given.
	Corr, Method, Foreign, Label []byte
	NoLabel                      bool
	Effect                       string
	Media                        []byte
	Content                      bridge.ContentType
	// Document and DocumentType name a document of a set, Proofs are beside it.
	Document, DocumentType []byte
	Proofs                 []Proof

	fields []*Field
}

// Proof is a detached proof of a document set.
type Proof struct {
	Scheme uint16
	Octets []byte
}

// Frame is one frame of a peer, as it is told field by field.
type Frame struct {
	Channel wire.Channel
	Type    wire.FrameType
	Fields  []*Field
	Golden  Octets
}

// Error says what is wrong with a script, and where.
type Error struct {
	Name string
	Line int
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %v", e.Name, e.Line, e.Err) }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

func at(line int, err error) error {
	var e *Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return &Error{Line: line, Err: err}
}

// maxScript is how large a script may be, in octets.
const maxScript = 1 << 20

// ErrTooLong is returned for a script over 1 MiB.
var ErrTooLong = errors.New("script over 1 MiB")

// Extension is what the names of scripts end with.
const Extension = ".script"

// Load reads all scripts of a directory, in the order of their names.
func Load(dir fs.FS) ([]*Script, error) {
	names, err := fs.Glob(dir, "*"+Extension)
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	scripts := make([]*Script, 0, len(names))
	for _, name := range names {
		src, err := fs.ReadFile(dir, name)
		if err != nil {
			return nil, err
		}
		s, err := Parse(strings.TrimSuffix(path.Base(name), Extension), src)
		if err != nil {
			return nil, err
		}
		scripts = append(scripts, s)
	}
	return scripts, nil
}

// Parse reads a script. The error is an *Error with the line at fault.
func Parse(name string, src []byte) (*Script, error) {
	return parse(name, src, true)
}

// parse is Parse; without strict it does not look at the octets beside the fields.
func parse(name string, src []byte, strict bool) (s *Script, err error) {
	defer func() {
		var e *Error
		if errors.As(err, &e) {
			e.Name = name
		}
	}()
	if len(src) > maxScript {
		return nil, &Error{Err: ErrTooLong}
	}
	p := &parser{s: &Script{Name: name, Denies: map[string]string{}, Not: map[string]string{}}, strict: strict}
	for i, line := range bytes.Split(src, []byte("\n")) {
		if err := at(i+1, p.line(i+1, string(line))); err != nil {
			return nil, err
		}
	}
	if err := p.endStep(); err != nil {
		return nil, err
	}
	if err := p.whole(); err != nil {
		return nil, at(1, err)
	}
	return p.s, nil
}

type parser struct {
	s      *Script
	strict bool

	step   *Step
	beside []beside // of all fields of the present step
}

// beside are the octets that stand beside a field.
type beside struct {
	line   int
	digits string
}

func (p *parser) line(n int, line string) error {
	trimmed := strings.TrimSpace(line)
	if trimmed == "" || trimmed[0] == '#' {
		return nil
	}
	tokens, right, cut, err := lex(line)
	if err != nil {
		return err
	}
	if digits := strings.Join(strings.Fields(right), ""); len(tokens) == 0 {
		if p.step == nil || p.step.Frame == nil || len(p.beside) == 0 {
			return errors.New("octets that stand beside nothing")
		}
		p.beside[len(p.beside)-1].digits += digits
		return nil
	} else if line[0] == ' ' || line[0] == '\t' {
		if p.step == nil {
			return errors.New("a field of nothing")
		}
		left := trimmed
		if cut {
			left = strings.TrimSpace(line[:len(line)-len(right)-1])
		}
		return p.field(n, left, tokens, digits)
	} else if err := p.endStep(); err != nil {
		return err
	} else {
		return p.begin(n, &words{tokens}, digits)
	}
}

// begin reads a line that begins something: a setting or a step.
func (p *parser) begin(n int, w *words, digits string) error {
	first, err := w.word("what the line is about")
	if err != nil {
		return err
	}
	if first == "peer" && w.is("speaks") {
		first = "peer speaks"
	}
	if set, ok := settings[first]; ok {
		if len(p.s.Steps) > 0 {
			return fmt.Errorf("%s belongs before the first step", first)
		}
		if digits != "" {
			return fmt.Errorf("%s has no octets", first)
		}
		if err := set(p.s, w); err != nil {
			return err
		}
		return w.end()
	}
	return p.begun(n, first, w, digits)
}

func (p *parser) begun(n int, who string, w *words, digits string) error {
	verbs, ok := steps[who]
	if !ok {
		return fmt.Errorf("nobody is called %q", who)
	}
	verb, err := w.word("what " + who + " does")
	if err != nil {
		return err
	}
	read, ok := verbs[verb]
	if !ok {
		return fmt.Errorf("%s can't %q", who, verb)
	}
	st := &Step{Line: n, Who: who, Verb: verb}
	if err := read(p.s, st, w); err != nil {
		return err
	}
	if err := w.end(); err != nil {
		return err
	}
	if st.Frame == nil {
		if digits != "" {
			return errors.New("only what peers send and receive has octets")
		}
	} else if want := fmt.Sprintf("%04x%04x", uint16(st.Frame.Channel), uint16(st.Frame.Type)); p.strict && digits != want {
		return fmt.Errorf("channel and frame type are %s, not %q", want, digits)
	}
	p.step = st
	p.s.Steps = append(p.s.Steps, st)
	return nil
}

// field reads a line that belongs to a step.
func (p *parser) field(n int, left string, tokens []token, digits string) error {
	name := tokens[0]
	if name.kind != word {
		return errors.New("a field begins with its name")
	}
	f := &Field{Line: n, Name: name.s, tokens: tokens[1:], raw: strings.TrimSpace(strings.TrimPrefix(left, name.s))}
	p.step.fields = append(p.step.fields, f)
	p.beside = append(p.beside, beside{n, digits})
	if p.step.Frame == nil && digits != "" {
		return errors.New("only what peers send and receive has octets")
	}
	return nil
}

// endStep makes the present step complete.
func (p *parser) endStep() error {
	st := p.step
	if st == nil {
		return nil
	}
	if st.Frame != nil {
		st.Frame.Fields = st.fields
		if err := encodeFields(st.fields, &p.s.Tags); err != nil {
			return err
		}
		for i, f := range st.fields {
			if f.octets.open && i != len(st.fields)-1 {
				return at(f.Line, errors.New("a * stands at the end of a payload"))
			}
			if want := f.octets.text(); p.strict && p.beside[i].digits != want {
				return at(f.Line, fmt.Errorf("the octets of this field are %s, not %q", want, p.beside[i].digits))
			}
			st.Frame.Golden.join(f.octets)
		}
		if st.Frame.Golden.open && st.Verb == "sends" {
			return at(st.Line, errors.New("what a * stands for can't be sent"))
		}
	} else {
		for _, f := range st.fields {
			if err := at(f.Line, st.take(f)); err != nil {
				return err
			}
		}
	}
	p.step, p.beside = nil, nil
	return nil
}

// take reads a field of a step of the application.
func (st *Step) take(f *Field) (err error) {
	w := &words{f.tokens}
	if !slices.Contains(appFields[st.Who+" "+st.Verb], f.Name) {
		return fmt.Errorf("%s %s has no field %q", st.Who, st.Verb, f.Name)
	}
	switch f.Name {
	case "corr":
		st.Corr, err = w.plain(f.Name)
	case "method":
		st.Method, err = w.plain(f.Name)
	case "media":
		st.Media, err = w.plain(f.Name)
	case "document":
		st.Document, err = w.plain(f.Name)
	case "type":
		st.DocumentType, err = w.plain(f.Name)
	case "proof":
		var p Proof
		var n uint64
		if n, err = w.named("scheme", proofNames, 16); err == nil {
			p.Scheme = uint16(n)
			p.Octets, err = w.plain(f.Name)
		}
		st.Proofs = append(st.Proofs, p)
	case "foreign":
		var b []byte
		b, err = w.plain(f.Name)
		st.Foreign = append(append([]byte{}, st.Foreign...), b...)
	case "content":
		var n uint64
		n, err = w.named(f.Name, contentNames, 8)
		st.Content = bridge.ContentType(n)
	case "effect":
		if st.Effect, err = w.word(f.Name); err == nil {
			if _, ok := effectNames[st.Effect]; !ok {
				err = fmt.Errorf("there is no effect %q", st.Effect)
			}
		}
	case "label":
		if w.is("none") {
			st.NoLabel = true
			break
		}
		var o Octets
		o, err = encodeLabel(w, nil)
		if err == nil {
			st.Label = o.b[4:]
		}
	}
	if err != nil {
		return err
	}
	return w.end()
}

// whole says what a script lacks.
func (p *parser) whole() error {
	s := p.s
	switch {
	case len(s.Clauses) == 0:
		return errors.New("no clause that the script proves")
	case s.Side == "":
		return errors.New("it does not say which side it tests")
	case len(s.Carries) == 0 && s.Side != Advertiser:
		return errors.New("the side carries nothing")
	case len(s.Steps) == 0:
		return errors.New("nothing happens")
	case len(s.Not) == 2:
		return errors.New("the script is run on nothing")
	}
	for _, st := range s.Steps {
		relayed := st.Who == "caller" || st.Who == "agent"
		if relayed != (s.Side == Relay) && (relayed || st.Who == "peer") {
			return at(st.Line, fmt.Errorf("there is no %s beside a %s", st.Who, s.Side))
		}
	}
	if s.Speaks == nil {
		for _, c := range s.Carries {
			s.Speaks = append(s.Speaks, uint8(c.ID))
		}
	}
	return s.Tags.Validate()
}

// settings are the lines before the steps.
var settings map[string]func(s *Script, w *words) error

func init() {
	settings = map[string]func(s *Script, w *words) error{
		"clause":      setClause,
		"tests":       setSide,
		"carries":     setCarries,
		"peer speaks": setSpeaks,
		"tags":        setTags,
		"policy":      setPolicy,
		"documents":   setDocuments,
		"holds":       setOctets(func(s *Script, n int) { s.Holds = n }),
		"pages":       setOctets(func(s *Script, n int) { s.Page = n }),
		"not":         setNot,
	}
}

func setDocuments(s *Script, w *words) error {
	if !w.is("on") || !w.is("Discovery") {
		return errors.New("documents are on Discovery, or as without this line")
	}
	s.Documents = wire.ChannelDiscovery
	return nil
}

func setOctets(set func(s *Script, n int)) func(s *Script, w *words) error {
	return func(s *Script, w *words) error {
		n, err := w.number("octets", 31)
		if err == nil && !w.is("octets") {
			err = errors.New("octets is missing")
		}
		set(s, int(n))
		return err
	}
}

func setClause(s *Script, w *words) error {
	for !w.empty() {
		doc, err := w.word("document")
		if err != nil {
			return err
		}
		section, err := w.word("section")
		if err != nil {
			return err
		}
		s.Clauses = append(s.Clauses, doc+" "+section)
	}
	return nil
}

func setSide(s *Script, w *words) error {
	name, err := w.word("side")
	if err != nil {
		return err
	}
	s.Side = Side(name)
	switch s.Side {
	case Responder, Originator, Relay, Advertiser:
		return nil
	}
	return fmt.Errorf("there is no side %q", name)
}

func setCarries(s *Script, w *words) error {
	var c Carries
	switch {
	case w.is("AGNTCY"):
		c.Mapping = "AGNTCY"
		if !w.is("as") {
			return errors.New("AGNTCY has no protocol id of its own: as ID is missing")
		}
		n, err := w.number("protocol id", 8)
		if err != nil {
			return err
		}
		c.ID = bridge.ProtocolID(n)
	case w.is("A2A"):
		c.Mapping, c.ID = "A2A", 2
	case w.is("MCP"):
		c.Mapping, c.ID = "MCP", 1
	default:
		n, err := w.number("protocol id", 8)
		if err != nil {
			return err
		}
		c.ID = bridge.ProtocolID(n)
		if c.Class, err = w.word("class"); err != nil {
			return err
		}
		if c.Class != "jsonrpc" && c.Class != "opaque" {
			return fmt.Errorf("there is no class %q", c.Class)
		}
		if !w.empty() && !w.is("without") {
			if n, err = w.named("content type", contentNames, 8); err != nil {
				return err
			}
			c.Content = bridge.ContentType(n)
		}
	}
	if w.is("without") {
		for !w.empty() {
			m, err := w.plain("method")
			if err != nil {
				return err
			}
			if len(m) == 0 {
				return errors.New("a method in quotes is missing")
			}
			c.Without = append(c.Without, string(m))
		}
	}
	s.Carries = append(s.Carries, c)
	return nil
}

func setSpeaks(s *Script, w *words) error {
	s.Speaks = []uint8{}
	for !w.empty() {
		n, err := w.named("protocol id", protocolNames, 8)
		if err != nil {
			return err
		}
		s.Speaks = append(s.Speaks, uint8(n))
	}
	return nil
}

func setTags(s *Script, w *words) error {
	for !w.empty() {
		name, err := w.word("feature")
		if err != nil {
			return err
		}
		bits := 16
		if name == "content" {
			bits = 8
		}
		n, err := w.number("number", bits)
		if err != nil {
			return err
		}
		switch name {
		case "mediatype":
			s.Tags.OpaqueContentType = wire.TLVType(n)
		case "binding":
			s.Tags.DocumentBinding = wire.TLVType(n)
		case "metadata":
			s.Tags.EdgeMetadata = wire.TLVType(n)
		case "content":
			s.Tags.OpaqueContent = bridge.ContentType(n)
		default:
			return fmt.Errorf("there is no feature %q", name)
		}
	}
	return nil
}

// setPolicy: policy denies METHOD because TEXT.
func setPolicy(s *Script, w *words) error {
	if !w.is("denies") {
		return errors.New("a policy denies")
	}
	method, err := w.plain("method")
	if err != nil {
		return err
	}
	if !w.is("because") {
		return errors.New("because is missing")
	}
	reason, err := w.plain("reason")
	s.Denies[string(method)] = string(reason)
	return err
}

// setNot: not BACKEND because WORDS.
func setNot(s *Script, w *words) error {
	name, err := w.word("backend")
	if err != nil {
		return err
	}
	if name != Machines && name != Program {
		return fmt.Errorf("there is no backend %q", name)
	}
	if !w.is("because") || w.empty() {
		return errors.New("the reason is missing: because WORDS")
	}
	var reason []string
	for _, t := range w.rest {
		reason = append(reason, t.s)
	}
	w.rest = nil
	s.Not[name] = strings.Join(reason, " ")
	return nil
}

type readStep func(s *Script, st *Step, w *words) error

// steps are who can do what.
var steps map[string]map[string]readStep

// appFields are the fields that a step of the application may have.
var appFields = map[string][]string{
	"app sees":      {"corr", "method", "effect", "label", "foreign", "content", "media"},
	"app responds":  {"corr", "foreign", "content", "media", "method"},
	"app fails":     {"corr", "foreign", "content", "media", "method"},
	"app refuses":   {"corr"},
	"app streams":   {"corr", "content", "media"},
	"app event":     {"corr", "foreign"},
	"app ends":      {"corr", "foreign"},
	"app calls":     {"method", "label", "foreign", "corr", "content", "media"},
	"app opens":     {"method", "label", "foreign", "corr", "content", "media"},
	"app notifies":  {"method", "label", "foreign", "content", "media"},
	"app resumes":   {"method", "label", "foreign", "corr"},
	"app cancels":   {"corr"},
	"app gets":      {"corr", "foreign", "content", "media", "document", "type", "proof"},
	"app fetches":   {"method", "label", "foreign", "corr"},
	"app presents":  {"corr", "document", "type", "content", "foreign", "proof"},
	"app withdraws": nil,
}

func init() {
	nothing := func(*Script, *Step, *words) error { return nil }
	peer := map[string]readStep{"sends": readFrame, "receives": readFrame}
	steps = map[string]map[string]readStep{
		"peer": peer, "caller": peer, "agent": peer,
		"link": {"breaks": nothing, "returns": nothing},
		"time": {"passes": func(_ *Script, st *Step, w *words) error {
			s, err := w.word("how long")
			if err != nil {
				return err
			}
			d, err := time.ParseDuration(s)
			if err == nil && (d <= 0 || d > time.Hour) {
				err = errors.New("more than nothing and up to an hour")
			}
			st.N = uint64(d)
			return err
		}},
		"side": {"counts": func(_ *Script, st *Step, w *words) (err error) {
			if st.Object, err = w.word("counter"); err != nil {
				return err
			}
			st.N, err = w.number("count", 64)
			return err
		}},
		"app": {
			"sees":     readOneOf("request", "notification", "cancel", "nothing"),
			"responds": readRefused, "fails": readRefused, "event": readRefused, "ends": readRefused,
			"refuses": readRefusal,
			"streams": func(_ *Script, st *Step, w *words) error {
				if w.is("resumable") {
					st.Flag = "resumable"
				}
				return nil
			},
			"calls": readRefused, "opens": readRefused, "notifies": readRefused, "cancels": nothing,
			"resumes": func(_ *Script, st *Step, w *words) (err error) {
				if !w.is("after") {
					return errors.New("after is missing")
				}
				st.N, err = w.number("event", 64)
				return err
			},
			"gets":     readOutcome,
			"fetches":  nothing,
			"presents": readRefused,
			"advertises": func(_ *Script, st *Step, w *words) (err error) {
				if !w.is("agent") {
					return errors.New("agent is missing")
				}
				if st.Text, err = w.plain("name"); err != nil || !w.is("revision") {
					return errors.Join(err, errors.New("a name and its revision are missing"))
				}
				st.N, err = w.number("revision", 64)
				return err
			},
			"withdraws": func(_ *Script, st *Step, w *words) (err error) {
				if !w.is("agent") {
					return errors.New("agent is missing")
				}
				st.Text, err = w.plain("name")
				return err
			},
		},
	}
}

func readOneOf(names ...string) readStep {
	return func(_ *Script, st *Step, w *words) (err error) {
		if st.Object, err = w.word("what"); err == nil && !slices.Contains(names, st.Object) {
			err = fmt.Errorf("%q is not one of %s", st.Object, strings.Join(names, ", "))
		}
		return err
	}
}

// readFrame: WHO sends|receives [malformed] TYPE on CHANNEL, or WHO receives nothing.
func readFrame(_ *Script, st *Step, w *words) error {
	if st.Verb == "receives" && w.is("nothing") {
		st.Object = "nothing"
		return nil
	}
	if st.Verb == "sends" && w.is("malformed") {
		st.Flag = "malformed"
	}
	name, err := w.word("frame type")
	if err != nil {
		return err
	}
	if !w.is("on") {
		return errors.New("on CHANNEL is missing")
	}
	channel, err := w.word("channel")
	if err != nil {
		return err
	}
	f := new(Frame)
	var ok bool
	if f.Channel, ok = channelNames[channel]; !ok {
		n, err := strconv.ParseUint(channel, 0, 16)
		if err != nil {
			return fmt.Errorf("there is no channel %q", channel)
		}
		f.Channel = wire.Channel(n)
	}
	types := bridgeTypes
	if channel == "Discovery" {
		types = discoveryTypes
	}
	if f.Type, ok = types[name]; !ok && channel == "Discovery" {
		f.Type, ok = bridgeTypes[name] // a document's frame (D25)
	}
	if !ok {
		n, err := strconv.ParseUint(name, 0, 16)
		if err != nil {
			return fmt.Errorf("%s has no frame type %q", channel, name)
		}
		f.Type = wire.FrameType(n)
	}
	st.Frame = f
	return nil
}

// readRefusal: CODE TEXT.
func readRefusal(_ *Script, st *Step, w *words) (err error) {
	if st.N, err = w.named("code", codeNames, 8); err != nil {
		return err
	}
	st.Text, err = w.plain("text")
	return err
}

// readRefused: nothing, or "and is refused: TEXT" for what is not sent.
func readRefused(_ *Script, st *Step, w *words) (err error) {
	if !w.is("but") {
		return nil
	}
	if !w.is("is") || !w.is("refused:") {
		return errors.New("what it says when it is refused is missing")
	}
	st.Object = "refused"
	st.Text, err = w.plain("text")
	return err
}

// readOutcome: response, error, event N, end N, end, CODE TEXT, CODE *, or nothing.
func readOutcome(_ *Script, st *Step, w *words) (err error) {
	if len(w.rest) > 0 && w.rest[0].kind == word {
		if n, ok := codeNames[w.rest[0].s]; ok {
			w.rest = w.rest[1:]
			st.Object, st.N = "refusal", n
			if w.is("*") {
				return nil
			}
			st.Text, err = w.plain("text")
			return err
		}
	}
	if err := readOneOf("response", "error", "event", "end", "set", "failure", "nothing")(nil, st, w); err != nil {
		return err
	}
	switch st.Object {
	case "event", "end":
		if !w.empty() {
			st.N, err = w.number("event id", 64)
		}
	case "failure":
		if !w.is("*") {
			st.Text, err = w.plain("text")
		}
	}
	return err
}
