package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/trestle-npamp/trestle/carriage/discovery"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
	"github.com/trestle-npamp/trestle/wire/disco"
)

// Command is how the trestle binary is started.
type Command struct {
	Path string
	// Env is added to this process's environment.
	Env []string
}

// ProgramBackend plays a script against the trestle binary, over loopback. The peers
// are raw: they take and send whatever the script says. A responder is "trestle
// agent" in front of an HTTP agent (of A2A, or of ACP where the script carries
// AGNTCY) that does as the script's application, an
// originator is "trestle call", one process a call, and a relay is "trestle serve".
//
// What a program does not tell is not compared: the effect and label of what an HTTP
// agent gets, what a document set has besides its document, and counters.
type ProgramBackend struct {
	s   *Script
	cmd Command
	ctx context.Context
	end context.CancelFunc

	engines []*engine.Engine
	addr    string // where the peer listens
	procs   []*process

	mu      sync.Mutex
	changed chan struct{} // closed and made anew with every change
	links   map[string]*programLink
	arrived int // associations that came to the peer
	posts   []*post
	taken   int // of posts
	foreign map[string][]byte
	probes  int

	web   *http.Server
	url   string
	serve sync.WaitGroup
}

// patience bounds every wait; only a failing run gets near it.
const patience = 20 * time.Second

// agentName is the name of the agent in a script, to those who need one.
const agentName = "scripted"

// NewProgram starts what a script needs. Close must be called in the end, also after
// an error of Run.
func NewProgram(ctx context.Context, cmd Command, s *Script) (*ProgramBackend, error) {
	b := &ProgramBackend{
		s: s, cmd: cmd, changed: make(chan struct{}), links: map[string]*programLink{}, foreign: map[string][]byte{},
	}
	b.ctx, b.end = context.WithCancel(ctx)
	var err error
	switch s.Side {
	case Responder:
		err = b.startAgent()
	case Originator:
		err = b.listen("peer")
	case Relay, Advertiser:
		err = b.startRelay()
	default:
		err = fmt.Errorf("no program is a %s", s.Side)
	}
	if err != nil {
		err = errors.Join(err, b.Close())
		return nil, err
	}
	return b, nil
}

// Close ends all processes and peers.
func (b *ProgramBackend) Close() error {
	for _, p := range b.procs {
		p.kill()
	}
	b.end()
	if b.web != nil {
		_ = b.web.Close()
	}
	b.serve.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	for _, e := range b.engines {
		err = errors.Join(err, e.Shutdown(ctx))
	}
	return err
}

// change does f and wakes whoever waits.
func (b *ProgramBackend) change(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
	close(b.changed)
	b.changed = make(chan struct{})
}

// wait waits until f, called under the lock, is true.
func (b *ProgramBackend) wait(what string, f func() bool) error {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	for {
		b.mu.Lock()
		ok, changed := f(), b.changed
		b.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-limit.C:
			return fmt.Errorf("%s: nothing in %v%s", what, patience, b.said())
		}
	}
}

// said is what the processes wrote to standard error.
func (b *ProgramBackend) said() string {
	var s strings.Builder
	for _, p := range b.procs {
		if text := p.stderr.String(); text != "" {
			fmt.Fprintf(&s, "\n%s: %s", p.name, text)
		}
	}
	return s.String()
}

// programLink is one association of a peer.
type programLink struct {
	a      *engine.Association
	frames []Received
	ended  bool
}

// programChannel is one channel of a peer, without any rules.
type programChannel struct {
	b    *ProgramBackend
	peer string
	ch   wire.Channel
	link *programLink
}

func (c programChannel) Channel() wire.Channel { return c.ch }
func (c programChannel) Attach(a *engine.Association) engine.ChannelConn {
	c.b.change(func() {
		if l := c.b.links[c.peer]; l == nil || l.a != a {
			c.b.links[c.peer] = &programLink{a: a}
			c.b.arrived++
		}
		c.link = c.b.links[c.peer]
	})
	return c
}
func (c programChannel) HandleFrame(t wire.FrameType, payload []byte) {
	f := Received{c.ch, t, bytes.Clone(payload)}
	c.b.change(func() { c.link.frames = append(c.link.frames, f) })
}
func (c programChannel) HandleClose(error)          { c.b.change(func() { c.link.ended = true }) }
func (c programChannel) HandleHello(*control.Hello) {}
func (c programChannel) HandleRoom()                {}
func (c programChannel) HandleDrain()               {}
func (c programChannel) Busy() int                  { return 0 }

// engine makes a peer's engine, whose Bridge channel is the script's; more are other
// channels.
func (b *ProgramBackend) engine(peer string, more ...engine.ChannelHandler) (*engine.Engine, error) {
	channels := append([]engine.ChannelHandler{programChannel{b: b, peer: peer, ch: wire.ChannelBridge}}, more...)
	e, err := engine.New(engine.Config{Channels: channels, Protocols: b.s.Speaks, Loops: 1})
	if err == nil {
		b.engines = append(b.engines, e)
	}
	return e, err
}

func (b *ProgramBackend) listen(peer string, more ...engine.ChannelHandler) error {
	e, err := b.engine(peer, more...)
	if err != nil {
		return err
	}
	l, err := e.Listen(b.ctx, "127.0.0.1:0")
	if err != nil {
		return err
	}
	b.addr = l.Addr().String()
	return nil
}

// startAgent starts "trestle agent" between the peer, which takes it as a relay
// would, and an HTTP agent that does as the script says.
func (b *ProgramBackend) startAgent() error {
	args := []string{"agent", "--name", agentName}
	switch c := b.s.Carries; {
	case len(c) == 1 && c[0].Mapping == "A2A":
	case len(c) == 1 && c[0].Mapping == "AGNTCY":
		args = append(args, "--protocol", "acp", "--protocol-id", strconv.Itoa(int(c[0].ID)))
	default:
		return errors.New("trestle agent carries A2A or ACP")
	}
	args = append(args, b.tags()...)
	var held *discovery.Discovery
	held = discovery.New(discovery.Config{
		Advertise: func(a *engine.Association, _ *disco.Filter) []disco.Record { return held.Records(a) },
	})
	if err := b.listen("peer", held); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	b.web = &http.Server{Handler: http.HandlerFunc(b.serveHTTP)}
	b.serve.Go(func() { _ = b.web.Serve(l) })
	b.url = "http://" + l.Addr().String() + "/"
	p, err := b.start("", append(args, "--to", b.addr, "--upstream", b.url)...)
	if err != nil {
		return err
	}
	_, err = p.line()
	return err
}

var readyRelay = regexp.MustCompile(`^ready npamp=(\S+) http=\S+ key=([0-9a-f]+)$`)

// startRelay starts "trestle serve" between two peers.
func (b *ProgramBackend) startRelay() error {
	p, err := b.start("", "serve", "--no-demo", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0")
	if err != nil {
		return err
	}
	line, err := p.line()
	if err != nil {
		return err
	}
	m := readyRelay.FindStringSubmatch(line)
	if m == nil {
		return fmt.Errorf("%q is no line of a relay that is ready", line)
	}
	key, err := identity.ParsePublicKey(m[2])
	if err != nil {
		return err
	}
	if b.s.Side == Advertiser {
		e, err := b.engine("peer", programChannel{b: b, peer: "peer", ch: wire.ChannelDiscovery})
		if err != nil {
			return err
		}
		_, err = e.Dial(b.ctx, m[1], engine.DialOptions{Peer: identity.Pin(key)})
		return err
	}
	d := discovery.New(discovery.Config{})
	agent, err := b.engine("agent", d)
	if err != nil {
		return err
	}
	a, err := agent.Dial(b.ctx, m[1], engine.DialOptions{Peer: identity.Pin(key)})
	if err != nil {
		return err
	}
	if err := d.Announce(b.ctx, a, disco.Record{
		ID: []byte{1}, Kind: disco.KindAgent, Revision: 1,
		Agent: disco.AgentBody{AgentID: []byte(agentName), Protocols: disco.ListOf(bridge.ProtocolA2A)},
	}); err != nil {
		return err
	}
	records, err := d.Query(b.ctx, a, disco.Filter{Kinds: disco.ListOf(disco.KindAgent)})
	if err == nil && len(records) != 1 {
		err = fmt.Errorf("the relay holds %d agents", len(records))
	}
	if err != nil {
		return err
	}
	caller, err := b.engine("caller")
	if err != nil {
		return err
	}
	_, err = caller.Dial(b.ctx, m[1], engine.DialOptions{Peer: identity.Pin(key), Agent: agentName})
	return err
}

// Send implements Backend.
func (b *ProgramBackend) Send(peer string, ch wire.Channel, t wire.FrameType, payload []byte) error {
	b.mu.Lock()
	l := b.links[peer]
	var m bridge.Message
	if bridge.Parse(&m, t, payload, &b.s.Tags) == nil && m.Kind == bridge.KindRequest {
		b.foreign[string(m.Corr)] = bytes.Clone(m.Foreign)
	}
	b.mu.Unlock()
	if l == nil {
		return errors.New("there is no association yet")
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	return l.a.Send(ctx, ch, t, payload)
}

// Receive implements Backend.
func (b *ProgramBackend) Receive(peer string) (f Received, ok bool, err error) {
	err = b.wait("no frame came", func() bool {
		l := b.links[peer]
		if l == nil || len(l.frames) == 0 {
			return l != nil && l.ended
		}
		f, ok = l.frames[0], true
		l.frames = l.frames[1:]
		return true
	})
	return f, ok, err
}

// probeID is a protocol that no side carries.
const probeID = 0x7F

// settle waits until what a peer has sent so far has been dealt with: it asks for
// something that is refused at once.
func (b *ProgramBackend) settle(peer string) error {
	b.mu.Lock()
	l := b.links[peer]
	b.probes++
	corr := fmt.Sprintf("probe %d", b.probes)
	b.mu.Unlock()
	if l == nil {
		return nil
	}
	m := bridge.Message{Kind: bridge.KindRequest, Protocol: probeID, Content: bridge.ContentJSON, Corr: []byte(corr)}
	payload, err := m.Append(nil, nil)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	if err := l.a.Send(ctx, wire.ChannelBridge, bridge.TypeRequest, payload); err != nil {
		return nil // it has ended, and nothing more comes
	}
	return b.wait("no answer to a probe", func() bool {
		for i, f := range l.frames {
			var m bridge.Message
			if bridge.Parse(&m, f.Type, f.Payload, &b.s.Tags) == nil && string(m.Corr) == corr {
				l.frames = append(l.frames[:i:i], l.frames[i+1:]...)
				return true
			}
		}
		return l.ended
	})
}

// Quiet implements Backend.
func (b *ProgramBackend) Quiet(peer string) (f Received, ok bool, err error) {
	if err := b.settle(peer); err != nil {
		return f, false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if l := b.links[peer]; l != nil && len(l.frames) > 0 {
		f, ok = l.frames[0], true
		l.frames = l.frames[1:]
	}
	return f, ok, nil
}

// Do implements Backend.
func (b *ProgramBackend) Do(st *Step) error {
	switch st.Who + " " + st.Verb {
	case "side counts":
		return nil // nobody tells
	case "app sees":
		return b.sees(st)
	case "app responds", "app fails", "app refuses", "app streams", "app event", "app ends", "app presents":
		return b.answer(st)
	case "app calls", "app opens", "app notifies", "app fetches":
		return b.ask(st)
	case "app cancels":
		return b.of(st, func(p *process) error { return p.cmd.Process.Signal(os.Interrupt) })
	case "app gets":
		return b.of(st, func(p *process) error { return b.gets(st, p) })
	}
	return fmt.Errorf("%s %s: no program does that", st.Who, st.Verb)
}

// Finish implements Backend.
func (b *ProgramBackend) Finish() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.taken < len(b.posts) {
		return fmt.Errorf("the HTTP agent got %q", b.posts[b.taken].body)
	}
	for _, p := range b.procs {
		if p.call && len(p.stdout) > 0 {
			return fmt.Errorf("trestle call wrote %q", p.stdout)
		}
	}
	return nil
}

// post is a message that the HTTP agent got and has not answered.
type post struct {
	body    []byte
	method  []byte                                // of ACP: verb and target
	answer  chan func(w http.ResponseWriter) bool // false: the answer is complete
	gone    <-chan struct{}
	streams bool
}

const maxPost = 16 << 20

func (b *ProgramBackend) serveHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxPost))
	// A card is asked for by its path, on the link by a method and no message (D24).
	card := r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/agent-card.json")
	acp := b.s.Carries[0].Mapping == "AGNTCY"
	if err != nil || r.Method != http.MethodPost && !card && !acp {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	var method []byte
	if acp {
		method = []byte(r.Method + " " + r.URL.RequestURI())
	}
	p := &post{body: body, method: method, answer: make(chan func(http.ResponseWriter) bool), gone: r.Context().Done()}
	b.change(func() { b.posts = append(b.posts, p) })
	for {
		select {
		case f := <-p.answer:
			if !f(w) {
				return
			}
		case <-p.gone:
			return
		case <-b.ctx.Done():
			return
		}
	}
}

// do lets the HTTP agent's handler do something for a message.
func (b *ProgramBackend) do(p *post, f func(w http.ResponseWriter) bool) error {
	select {
	case p.answer <- f:
		return nil
	case <-p.gone:
		return errors.New("nobody waits for this answer")
	case <-b.ctx.Done():
		return b.ctx.Err()
	}
}

func (b *ProgramBackend) sees(st *Step) error {
	switch st.Object {
	case "nothing":
		if err := b.settle("peer"); err != nil {
			return err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.taken < len(b.posts) {
			return fmt.Errorf("the HTTP agent got %q", b.posts[b.taken].body)
		}
		return nil
	case "cancel":
		p, err := b.post(st)
		if err != nil {
			return err
		}
		limit := time.NewTimer(patience)
		defer limit.Stop()
		select {
		case <-p.gone:
			return nil
		case <-limit.C:
			return errors.New("the stream goes on")
		}
	}
	var p *post
	want, known := b.foreign[string(st.Corr)], st.Corr != nil
	if err := b.wait("nothing came to the HTTP agent", func() bool {
		for i := b.taken; i < len(b.posts); i++ {
			// What comes at the same time comes in any order.
			if !known || bytes.Equal(b.posts[i].body, want) {
				p = b.posts[i]
				b.posts[i], b.posts[b.taken] = b.posts[b.taken], p
				b.taken++
				return true
			}
		}
		return false
	}); err != nil {
		return err
	}
	if st.Object == "notification" {
		if err := b.do(p, func(w http.ResponseWriter) bool {
			w.WriteHeader(http.StatusAccepted)
			return false
		}); err != nil {
			return err
		}
	}
	return st.Check(&Seen{Kind: st.Object, Method: p.method, Foreign: p.body, Content: -1})
}

// post is the message that a step is about.
func (b *ProgramBackend) post(st *Step) (*post, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := b.taken - 1; i >= 0; i-- {
		if st.Corr == nil || bytes.Equal(b.posts[i].body, b.foreign[string(st.Corr)]) {
			return b.posts[i], nil
		}
	}
	return nil, errors.New("there is no such request")
}

func (b *ProgramBackend) answer(st *Step) error {
	if st.Object == "refused" {
		return errors.New("an HTTP agent is not told what is refused")
	}
	p, err := b.post(st)
	if err != nil {
		return err
	}
	event := func(w http.ResponseWriter) {
		for line := range bytes.SplitSeq(st.Foreign, []byte("\n")) {
			fmt.Fprintf(w, "data: %s\n", line)
		}
		fmt.Fprint(w, "\n")
		_ = http.NewResponseController(w).Flush()
	}
	switch st.Verb {
	case "presents":
		if len(st.Proofs) > 0 {
			return errors.New("an HTTP agent has its proofs in the card")
		}
		fallthrough
	case "responds", "fails":
		return b.do(p, func(w http.ResponseWriter) bool {
			if len(st.Foreign) > 0 {
				w.Header().Set("Content-Type", "application/json")
			}
			if st.Method != nil { // ACP's status
				status, err := strconv.Atoi(string(st.Method))
				if err != nil || status < 200 || status > 599 {
					status = http.StatusInternalServerError
				}
				w.WriteHeader(status)
			}
			_, _ = w.Write(st.Foreign)
			return false
		})
	case "refuses":
		switch {
		case st.N != uint64(bridge.CodeNotDelivered):
			return errors.New("an HTTP agent can't say that")
		case p.streams:
			return b.do(p, func(http.ResponseWriter) bool { panic(http.ErrAbortHandler) })
		}
		return b.do(p, func(w http.ResponseWriter) bool {
			http.Error(w, string(st.Text), http.StatusServiceUnavailable)
			return false
		})
	case "streams":
		p.streams = true
		return b.do(p, func(w http.ResponseWriter) bool {
			w.Header().Set("Content-Type", "text/event-stream")
			w.WriteHeader(http.StatusOK)
			return http.NewResponseController(w).Flush() == nil
		})
	case "event":
		return b.do(p, func(w http.ResponseWriter) bool {
			event(w)
			return true
		})
	}
	return b.do(p, func(w http.ResponseWriter) bool { // ends
		if len(st.Foreign) > 0 {
			event(w)
		}
		return false
	})
}

// process is one run of the program.
type process struct {
	b      *ProgramBackend
	name   string
	cmd    *exec.Cmd
	stderr lockedBuffer
	ended  chan struct{}

	// Under the backend's lock.
	stdout []byte // what has not been taken
	over   bool   // it has ended, and all of its output has been read
	code   int    // after over

	corr   []byte // of a call
	call   bool
	frames bool
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Write collects what the process writes to standard output.
func (p *process) Write(out []byte) (int, error) {
	p.b.change(func() { p.stdout = append(p.stdout, out...) })
	return len(out), nil
}

func (b *ProgramBackend) start(stdin string, args ...string) (*process, error) {
	p := &process{b: b, name: "trestle " + args[0], ended: make(chan struct{})}
	p.cmd = exec.Command(b.cmd.Path, args...)
	p.cmd.Env = append(os.Environ(), b.cmd.Env...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = strings.NewReader(stdin), p, &p.stderr
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	b.procs = append(b.procs, p)
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the code tells
		b.change(func() { p.over, p.code = true, p.cmd.ProcessState.ExitCode() })
	}()
	return p, nil
}

// kill ends the process and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// line waits for a line on standard output.
func (p *process) line() (line string, err error) {
	found := false
	err = p.b.wait("no line of "+p.name, func() bool {
		var rest []byte
		var head []byte
		if head, rest, found = bytes.Cut(p.stdout, []byte("\n")); found {
			line, p.stdout = string(head), rest
		}
		return found || p.over
	})
	if err == nil && !found {
		err = fmt.Errorf("%s ended with code %d%s", p.name, p.code, p.b.said())
	}
	return line, err
}

// tags are the flags for configured numbers.
func (b *ProgramBackend) tags() []string {
	if n := b.s.Tags.DocumentBinding; n != 0 {
		return []string{"--document-binding", strconv.Itoa(int(n))}
	}
	return nil
}

// ask starts a call.
func (b *ProgramBackend) ask(st *Step) error {
	if st.Object == "refused" {
		return errors.New("a call that is not sent needs the machines")
	}
	args := []string{"call", "--to", b.addr, "--agent", agentName}
	switch {
	case st.NoLabel:
		args = append(args, "--label", "none")
	case len(st.Label) > 2:
		return errors.New("trestle call has no scopes")
	case st.Label != nil:
		args = append(args, "--label", bridge.Effect(st.Label[0]).String())
	}
	if len(st.Method) > 0 {
		args = append(args, "--method", string(st.Method))
	}
	if st.Verb == "opens" {
		args = append(args, "--frames")
	}
	args = append(args, b.tags()...)
	b.mu.Lock()
	before := b.arrived
	b.mu.Unlock()
	p, err := b.start(string(st.Foreign), args...)
	if err != nil {
		return err
	}
	p.call, p.corr, p.frames = true, st.Corr, st.Verb == "opens"
	err = b.wait("trestle call does not come", func() bool { return b.arrived > before || p.over })
	if err == nil && b.arrived == before {
		err = fmt.Errorf("trestle call ended with code %d%s", p.code, b.said())
	}
	if err != nil || st.Verb != "notifies" {
		return err
	}
	p.corr = nil
	return nil
}

// of does f with the call that a step is about.
func (b *ProgramBackend) of(st *Step, f func(p *process) error) error {
	for i := len(b.procs) - 1; i >= 0; i-- {
		if p := b.procs[i]; p.call && (st.Corr == nil || bytes.Equal(p.corr, st.Corr)) {
			return f(p)
		}
	}
	return errors.New("nothing was asked for under this id")
}

// The exit codes of trestle call.
const (
	codeOK        = 0
	codeForeign   = 3
	codeTransport = 4
)

var transportLine = regexp.MustCompile(`(?s)transport error ([0-9]+) [A-Za-z]+: (.*)\n$`)

// gets compares what a call wrote and how it ended.
func (b *ProgramBackend) gets(st *Step, p *process) error {
	switch {
	case st.Object == "nothing":
		if err := b.settle("peer"); err != nil {
			return err
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if p.over || len(p.stdout) > 0 {
			return fmt.Errorf("it wrote %q (ended: %v)", p.stdout, p.over)
		}
		return nil
	case st.Object == "event":
		frame, err := p.frame()
		if err != nil {
			return err
		}
		return st.Compare(&Outcome{Kind: "event", Foreign: frame})
	}
	if err := b.wait("trestle call does not end", func() bool { return p.over }); err != nil {
		return err
	}
	o := Outcome{Kind: "response"}
	switch p.code {
	case codeOK:
		switch {
		case p.frames:
			o.Kind = "end"
		case st.Object == "set": // of which the document is written
			o.Kind, o.Document, o.DocumentType, o.Proofs = "set", st.Document, st.DocumentType, st.Proofs
		}
	case codeForeign:
		o.Kind = "error"
	case codeTransport:
		m := transportLine.FindStringSubmatch(p.stderr.String())
		if m == nil {
			return fmt.Errorf("it says %q", p.stderr.String())
		}
		code, err := strconv.ParseUint(m[1], 10, 8)
		if err != nil {
			return err
		}
		o.Kind, o.Code, o.Text = "refusal", code, m[2]
	default:
		return fmt.Errorf("it ended with code %d%s", p.code, b.said())
	}
	if p.frames && o.Kind != "refusal" && len(st.Foreign) > 0 {
		frame, err := p.frame()
		if err != nil {
			return err
		}
		o.Foreign = frame
	} else {
		b.mu.Lock()
		o.Foreign, p.stdout = p.stdout, nil
		b.mu.Unlock()
	}
	return st.Compare(&o)
}

// frame takes the next event that a call with --frames wrote.
func (p *process) frame() (frame []byte, err error) {
	found := false
	err = p.b.wait("no event of "+p.name, func() bool {
		head, rest, ok := bytes.Cut(p.stdout, []byte("\n"))
		n, bad := strconv.Atoi(string(head))
		if ok && bad == nil && n >= 0 && len(rest) > n {
			frame, p.stdout, found = rest[:n:n], rest[n+1:], true
		}
		return found || p.over
	})
	if err == nil && !found {
		err = fmt.Errorf("%s ended with code %d and %q%s", p.name, p.code, p.stdout, p.b.said())
	}
	return frame, err
}
