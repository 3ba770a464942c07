package discovery

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
	"github.com/trestle-npamp/trestle/wire/disco"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func agentRecord(id, name string, revision uint64) disco.Record {
	return disco.Record{
		ID: []byte(id), Kind: disco.KindAgent, Revision: revision,
		Agent: disco.AgentBody{AgentID: []byte(name), Protocols: disco.ListOf(uint8(2))},
	}
}

// pair is two associations with a Discovery each.
type pair struct {
	*nptest.Pair
	t              *testing.T
	client, server *Discovery
}

func newPair(t *testing.T, client, server Config) *pair {
	c, s := New(client), New(server)
	p := nptest.NewPair(t, nptest.Options{
		Client: assoc.Options{Handlers: []assoc.ChannelHandler{c}},
		Server: assoc.Options{Handlers: []assoc.ChannelHandler{s}},
	})
	p.Run(time.Millisecond)
	return &pair{Pair: p, t: t, client: c, server: s}
}

// do runs f on a goroutine of its own and the pair until f returns.
func (p *pair) do(f func() error) error {
	p.t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	var err error
	p.RunUntil(func() bool {
		select {
		case err = <-done:
			return true
		default:
			return false
		}
	})
	return err
}

func (p *pair) announce(records ...disco.Record) {
	p.t.Helper()
	err := p.do(func() error { return p.client.Announce(p.t.Context(), p.Client.Association, records...) })
	if err != nil {
		p.t.Fatal(err)
	}
	p.Run(time.Millisecond)
}

// query asks the server's side for its records.
func (p *pair) query(f disco.Filter) (records []disco.Record, err error) {
	p.t.Helper()
	err = p.do(func() (err error) {
		records, err = p.client.Query(p.t.Context(), p.Client.Association, f)
		return err
	})
	return records, err
}

// held says what the server's side holds, as "id:name/revision ...".
func (p *pair) held() string {
	s := ""
	for _, r := range p.server.Records(p.Server.Association) {
		s += fmt.Sprintf("%s:%s/%d ", r.ID, r.Agent.AgentID, r.Revision)
	}
	return s
}

func TestAnnouncedRecordsAreHeld(t *testing.T) {
	p := newPair(t, Config{}, Config{})
	p.announce(agentRecord("1", "a", 1), agentRecord("2", "b", 7))
	if got := p.held(); got != "1:a/1 2:b/7 " {
		t.Errorf("held %q", got)
	}
	if s := p.server.Stats(); s.Announced != 2 || s.Refused+s.Stale+s.Dropped != 0 {
		t.Errorf("%+v", s)
	}
}

// DISC 8: a greater revision of an id replaces, another one is ignored.
func TestGreaterRevisionReplaces(t *testing.T) {
	p := newPair(t, Config{}, Config{})
	p.announce(agentRecord("1", "a", 5))
	for _, step := range []struct {
		name     string
		revision uint64
		want     string
	}{
		{"b", 4, "1:a/5 "}, {"c", 5, "1:a/5 "}, {"d", 6, "1:d/6 "}, {"e", 1 << 63, "1:e/9223372036854775808 "},
	} {
		p.announce(agentRecord("1", step.name, step.revision))
		if got := p.held(); got != step.want {
			t.Errorf("after revision %d: %q, want %q", step.revision, got, step.want)
		}
	}
	if s := p.server.Stats(); s.Stale != 2 || s.Announced != 3 {
		t.Errorf("%+v", s)
	}
}

// D22: who holds a name decides on records before they are held, and learns what
// they replace and when they end.
func TestAcceptDecidesAndLearnsOfTheEnd(t *testing.T) {
	var log []string
	gone := 0
	p := newPair(t, Config{}, Config{
		Accept: func(_ *assoc.Association, r, prev *disco.Record) error {
			old := ""
			if prev != nil {
				old = string(prev.Agent.AgentID)
			}
			log = append(log, old+">"+string(r.Agent.AgentID))
			if string(r.Agent.AgentID) == "taken" {
				return errors.New("taken")
			}
			return nil
		},
		Gone: func(*assoc.Association) { gone++ },
	})
	p.announce(agentRecord("1", "taken", 1))
	p.announce(agentRecord("1", "free", 1)) // a refused revision can be told again
	p.announce(agentRecord("1", "taken", 2))
	p.announce(agentRecord("1", "other", 2))
	if got := fmt.Sprint(log); got != "[>taken >free free>taken free>other]" {
		t.Errorf("asked %s", got)
	}
	if got := p.held(); got != "1:other/2 " {
		t.Errorf("held %q", got)
	}
	if s := p.server.Stats(); s.Refused != 2 {
		t.Errorf("%+v", s)
	}
	p.Client.Close(0, "")
	p.Run(2 * time.Second)
	if gone != 1 {
		t.Errorf("told of the end %d times", gone)
	}
	if records := p.server.Records(p.Server.Association); len(records) != 0 {
		t.Errorf("%d records outlive their association", len(records))
	}
}

func TestRecordsOfOnePeerAreBounded(t *testing.T) {
	p := newPair(t, Config{}, Config{MaxRecords: 2, MaxOctets: 100})
	p.announce(agentRecord("1", "a", 1), agentRecord("2", "b", 1), agentRecord("3", "c", 1))
	if got := p.held(); got != "1:a/1 2:b/1 " {
		t.Errorf("held %q", got)
	}
	long := agentRecord("2", "b", 2)
	long.Label = bytes.Repeat([]byte("x"), 100)
	p.announce(agentRecord("1", "z", 2), long)
	if got := p.held(); got != "1:z/2 2:b/1 " {
		t.Errorf("held %q", got)
	}
	if s := p.server.Stats(); s.Refused != 2 {
		t.Errorf("%+v", s)
	}
}

// A peer whose records are refused gets one log line for all of a message, and no
// other for a while however often it announces: it must not fill the log.
func TestRefusedRecordsDoNotFloodTheLog(t *testing.T) {
	var log bytes.Buffer
	asked := 0
	p := newPair(t, Config{}, Config{
		Accept: func(*assoc.Association, *disco.Record, *disco.Record) error {
			asked++
			return errors.New("not here")
		},
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	lines := func() []string {
		text := log.String()
		log.Reset()
		return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	}
	many := []disco.Record{agentRecord("1", "a", 1), agentRecord("2", "b", 1), agentRecord("3", "c", 1)}
	for range 20 {
		p.announce(many...)
	}
	if got := lines(); len(got) != 1 || !strings.Contains(got[0], "count=3 ") || !strings.Contains(got[0], "not here") || asked != 60 {
		t.Errorf("%d records, logged %q", asked, got)
	}
	p.Run(refusalInterval)
	p.announce(many...)
	p.announce(many...)
	if got := lines(); len(got) != 1 || !strings.Contains(got[0], "count=60 ") {
		t.Errorf("logged %q", got)
	}
	if s := p.server.Stats(); s.Refused != 66 {
		t.Errorf("%+v", s)
	}
}

// What a message brings behind the first record over a limit is not looked at.
func TestAnnouncementEndsAtItsFirstRecordOverALimit(t *testing.T) {
	var log bytes.Buffer
	p := newPair(t, Config{}, Config{MaxRecords: 2, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	p.announce(agentRecord("1", "a", 1), agentRecord("2", "b", 1))
	p.announce(agentRecord("3", "c", 1), agentRecord("1", "a", 2), agentRecord("4", "d", 1))
	if got := p.held(); got != "1:a/1 2:b/1 " {
		t.Errorf("held %q", got)
	}
	if s := p.server.Stats(); s.Refused != 3 || s.Announced != 2 {
		t.Errorf("%+v", s)
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "count=3 ") {
		t.Errorf("logged %q", got)
	}
}

func TestQueryReturnsWhatPassesTheFilter(t *testing.T) {
	all := []disco.Record{
		agentRecord("3", "weather", 1), agentRecord("1", "echo", 1), agentRecord("2", "echo-two", 9),
		{ID: []byte("4"), Kind: disco.KindProtocol, Revision: 1, Protocol: disco.ProtocolBody{ProtocolID: 2, Class: disco.ClassJSONRPC}},
	}
	p := newPair(t, Config{}, Config{Advertise: func(*assoc.Association, *disco.Filter) []disco.Record { return all }})
	for _, c := range []struct {
		filter disco.Filter
		want   string
	}{
		{disco.Filter{}, "1234"},
		{disco.Filter{Kinds: disco.ListOf(disco.KindAgent)}, "123"},
		{disco.Filter{Kinds: disco.ListOf(disco.KindAgent), NamePrefix: []byte("echo")}, "12"},
		{disco.Filter{ProtocolIDs: disco.ListOf(uint8(3))}, ""},
	} {
		records, err := p.query(c.filter)
		got := ""
		for _, r := range records {
			got += string(r.ID)
		}
		if err != nil || got != c.want {
			t.Errorf("%+v: %q, %v, want %q", c.filter, got, err, c.want)
		}
	}
	if string(all[0].ID) != "3" {
		t.Error("what Advertise returned was reordered")
	}
}

// DISC 10: an empty answer is valid and says nothing.
func TestNothingAdvertisedIsAnEmptyAnswer(t *testing.T) {
	p := newPair(t, Config{}, Config{})
	if records, err := p.query(disco.Filter{}); err != nil || len(records) != 0 {
		t.Errorf("%v, %v", records, err)
	}
}

// DISC 6.2: a long list comes in pages, each record once.
func TestLongAnswerComesInPages(t *testing.T) {
	var all []disco.Record
	for i := range 500 {
		all = append(all, agentRecord(fmt.Sprintf("id-%03d", i), fmt.Sprintf("agent-%03d", i), 1))
	}
	results := 0
	p := newPair(t, Config{Burst: 1000}, Config{MaxResult: 1 << 10, Burst: 1000, Advertise: func(*assoc.Association, *disco.Filter) []disco.Record {
		results++
		return all
	}})
	records, err := p.query(disco.Filter{})
	if err != nil || len(records) != len(all) {
		t.Fatalf("%d records, %v", len(records), err)
	}
	for i, r := range records {
		if !bytes.Equal(r.ID, all[i].ID) {
			t.Fatalf("record %d is %q", i, r.ID)
		}
	}
	if results < 10 {
		t.Errorf("500 records of some 30 octets came in %d pages of 1 KiB", results)
	}
	if len(p.conn(t).queries) != 0 {
		t.Error("the query is still held")
	}

	p.client.cfg.MaxCollected = 100
	if _, err := p.query(disco.Filter{}); !errors.Is(err, ErrTooMany) {
		t.Errorf("%v, want ErrTooMany", err)
	}
}

func (p *pair) conn(t *testing.T) *conn {
	t.Helper()
	c, err := p.client.conn(p.Client.Association)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// raw is a peer whose Discovery frames a test writes and reads itself.
type raw struct {
	*nptest.Pair
	t      *testing.T
	server *Discovery
	types  []wire.FrameType
	frames [][]byte
}

func newRaw(t *testing.T, server Config) *raw {
	r := &raw{t: t, server: New(server)}
	r.Pair = nptest.NewPair(t, nptest.Options{
		Client: assoc.Options{Handlers: []assoc.ChannelHandler{r}},
		Server: assoc.Options{Handlers: []assoc.ChannelHandler{r.server}},
	})
	r.Run(time.Millisecond)
	return r
}

func (r *raw) Channel() wire.Channel                       { return wire.ChannelDiscovery }
func (r *raw) Attach(*assoc.Association) assoc.ChannelConn { return r }
func (r *raw) HandleFrame(t wire.FrameType, payload []byte) {
	r.types, r.frames = append(r.types, t), append(r.frames, bytes.Clone(payload))
}
func (r *raw) HandleHello(*control.Hello) {}
func (r *raw) HandleRoom()                {}
func (r *raw) HandleDrain()               {}
func (r *raw) Busy() int                  { return 0 }
func (r *raw) HandleClose(error)          {}

// send sends a frame and returns what it is answered with.
func (r *raw) send(t wire.FrameType, payload []byte) []disco.Message {
	r.t.Helper()
	r.types, r.frames = nil, nil
	b := assoc.NewBuf(len(payload))
	b.B = append(b.B, payload...)
	if err := r.Client.SendBuf(wire.ChannelDiscovery, t, b); err != nil {
		r.t.Fatal(err)
	}
	r.Run(time.Millisecond)
	answers := make([]disco.Message, len(r.frames))
	for i := range answers {
		if err := disco.Parse(&answers[i], r.types[i], r.frames[i]); err != nil {
			r.t.Fatalf("the answer %x is malformed: %v", r.frames[i], err)
		}
	}
	return answers
}

func (r *raw) sendMessage(m disco.Message) []disco.Message {
	r.t.Helper()
	payload, err := m.Append(nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.send(m.Type, payload)
}

// wantError checks for exactly one ERROR.
func (r *raw) wantError(answers []disco.Message, corr string, code disco.Code) {
	r.t.Helper()
	if len(answers) != 1 || answers[0].Type != disco.TypeError || string(answers[0].Corr) != corr || answers[0].Code != code {
		r.t.Errorf("answered with %+v, want ERROR %v for %q", answers, code, corr)
	}
}

func TestSubscriptionIsDeclined(t *testing.T) {
	r := newRaw(t, Config{})
	r.wantError(r.sendMessage(disco.Message{Type: disco.TypeSubscribe, Corr: []byte("s")}), "s", disco.CodeSubscriptionRefused)
}

// The fault table's row for Discovery: a malformed request whose correlation id
// is readable gets an ERROR, anything else is dropped and counted.
func TestMalformedDiscoveryFrames(t *testing.T) {
	r := newRaw(t, Config{})
	query, err := (&disco.Message{Type: disco.TypeQuery, Corr: []byte("q")}).Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	r.wantError(r.send(disco.TypeSubscribe, query), "q", disco.CodeKindMismatch)
	r.wantError(r.send(disco.TypeQuery, append(bytes.Clone(query), 0)), "q", disco.CodeMalformedPayload)
	dropped := r.server.Stats().Dropped
	for name, f := range map[string]struct {
		t       wire.FrameType
		payload []byte
	}{
		"no correlation id":        {disco.TypeQuery, []byte{0xA1, 0x00, 0x19, 0x01, 0x00}},
		"cut":                      {disco.TypeQuery, query[:3]},
		"empty":                    {disco.TypeQuery, nil},
		"a Bridge message (D25)":   {disco.TypeQuery, []byte{0x00, 0x10, 0x00, 0x00}},
		"a malformed RESULT":       {disco.TypeResult, query},
		"a malformed ANNOUNCE":     {disco.TypeAnnounce, query},
		"an unknown type":          {0x0107, query},
		"a RESULT nobody asked":    {disco.TypeResult, mustAppend(t, disco.Message{Type: disco.TypeResult, Corr: []byte("x"), Records: emptyList(t), Complete: true})},
		"an ERROR nobody asked":    {disco.TypeError, mustAppend(t, disco.Message{Type: disco.TypeError, Corr: []byte("x"), Code: disco.CodeStaleCursor})},
		"an UPDATE nobody asked":   {disco.TypeUpdate, mustAppend(t, disco.Message{Type: disco.TypeUpdate, Corr: []byte("x"), Withdrawn: mustIDs(t, "1")})},
		"an UNSUBSCRIBE of naught": {disco.TypeUnsubscribe, mustAppend(t, disco.Message{Type: disco.TypeUnsubscribe, Corr: []byte("x")})},
	} {
		if answers := r.send(f.t, f.payload); len(answers) != 0 {
			t.Errorf("%s: answered with %+v", name, answers)
		}
		if n := r.server.Stats().Dropped; n != dropped+1 {
			t.Errorf("%s: %d frames counted as dropped, want %d", name, n-dropped, 1)
		}
		dropped = r.server.Stats().Dropped
	}
	if r.Client.Err() != nil || r.Server.Err() != nil {
		t.Error("the association ended")
	}
}

func mustAppend(t *testing.T, m disco.Message) []byte {
	t.Helper()
	b, err := m.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func emptyList(t *testing.T) disco.Records { return list(t) }

func list(t *testing.T, records ...disco.Record) disco.Records {
	t.Helper()
	l, _, err := disco.AppendRecords(nil, records...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustIDs(t *testing.T, ids ...string) disco.IDs {
	t.Helper()
	var raw [][]byte
	for _, id := range ids {
		raw = append(raw, []byte(id))
	}
	l, err := disco.IDsOf(raw...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestStaleCursor(t *testing.T) {
	r := newRaw(t, Config{})
	r.wantError(r.sendMessage(disco.Message{Type: disco.TypeQuery, Corr: []byte("q"),
		Filter: disco.Filter{Cursor: bytes.Repeat([]byte("c"), disco.MaxRecordIDLen+1)}}), "q", disco.CodeStaleCursor)
}

// DISC 10: what a peer may ask is bounded in rate; it recovers with time.
func TestQueriesAreBoundedInRate(t *testing.T) {
	r := newRaw(t, Config{Burst: 3, Rate: 2})
	ask := disco.Message{Type: disco.TypeQuery, Corr: []byte("q")}
	for i := range 3 {
		if answers := r.sendMessage(ask); len(answers) != 1 || answers[0].Type != disco.TypeResult {
			t.Fatalf("query %d: %+v", i, answers)
		}
	}
	r.wantError(r.sendMessage(ask), "q", disco.CodeNotAdvertised)
	r.sendMessage(disco.Message{Type: disco.TypeAnnounce, Records: list(t, agentRecord("1", "a", 1))})
	if n := len(r.server.Records(r.Server.Association)); n != 0 {
		t.Error("an ANNOUNCE over the rate was taken")
	}
	r.Run(500 * time.Millisecond)
	if answers := r.sendMessage(ask); len(answers) != 1 || answers[0].Type != disco.TypeResult {
		t.Errorf("after half a second: %+v", answers)
	}
}

// A peer may send the pages of an answer unasked, or answer with pages that
// bring nothing.
func TestPagesThatComeUnaskedOrNeverEnd(t *testing.T) {
	d := New(Config{})
	peer := &raw{t: t}
	peer.Pair = nptest.NewPair(t, nptest.Options{
		Client: assoc.Options{Handlers: []assoc.ChannelHandler{peer}},
		Server: assoc.Options{Handlers: []assoc.ChannelHandler{d}},
	})
	peer.Run(time.Millisecond)
	query := func(answer func(corr []byte)) ([]disco.Record, error) {
		peer.types, peer.frames = nil, nil
		type outcome struct {
			records []disco.Record
			err     error
		}
		done := make(chan outcome, 1)
		go func() {
			records, err := d.Query(t.Context(), peer.Server.Association, disco.Filter{})
			done <- outcome{records, err}
		}()
		peer.RunUntil(func() bool { return len(peer.frames) > 0 })
		var m disco.Message
		if err := disco.Parse(&m, peer.types[0], peer.frames[0]); err != nil {
			t.Fatal(err)
		}
		answer(m.Corr)
		var o outcome
		peer.RunUntil(func() bool {
			select {
			case o = <-done:
				return true
			default:
				return false
			}
		})
		return o.records, o.err
	}
	page := func(corr []byte, complete bool, records ...disco.Record) {
		m := disco.Message{Type: disco.TypeResult, Corr: corr, Records: list(t, records...), Complete: complete}
		if !complete {
			m.Cursor = []byte("more")
		}
		b := assoc.NewBuf(1 << 10)
		b.B = append(b.B, mustAppend(t, m)...)
		if err := peer.Client.SendBuf(wire.ChannelDiscovery, disco.TypeResult, b); err != nil {
			t.Fatal(err)
		}
	}
	records, err := query(func(corr []byte) {
		page(corr, false, agentRecord("1", "a", 1))
		page(corr, false, agentRecord("1", "a", 1), agentRecord("2", "b", 1))
		page(corr, true, agentRecord("2", "b", 1), agentRecord("3", "c", 1))
	})
	if err != nil || len(records) != 3 {
		t.Errorf("pages sent unasked: %d records, %v", len(records), err)
	}
	if _, err := query(func(corr []byte) {
		page(corr, false, agentRecord("1", "a", 1))
		page(corr, false, agentRecord("1", "a", 1))
	}); !errors.Is(err, ErrNoProgress) {
		t.Errorf("pages that bring nothing: %v, want ErrNoProgress", err)
	}
	if _, err := query(func(corr []byte) {
		b := assoc.NewBuf(1 << 10)
		b.B = append(b.B, mustAppend(t, disco.Message{Type: disco.TypeError, Corr: corr, Code: disco.CodeNotAdvertised, Reason: []byte("no")})...)
		if err := peer.Client.SendBuf(wire.ChannelDiscovery, disco.TypeError, b); err != nil {
			t.Fatal(err)
		}
	}); !errors.Is(err, disco.ErrNotAdvertised) {
		t.Errorf("an ERROR: %v, want ErrNotAdvertised", err)
	}
}

func TestQueryEndsWithItsContextAndItsAssociation(t *testing.T) {
	p := newPair(t, Config{}, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	p.Server.Block(true) // its answers don't arrive
	errs := make(chan error, 2)
	ask := func(ctx context.Context) {
		_, err := p.client.Query(ctx, p.Client.Association, disco.Filter{})
		errs <- err
	}
	c, err := p.client.conn(p.Client.Association)
	if err != nil {
		t.Fatal(err)
	}
	go ask(ctx)
	p.RunUntil(func() bool { return len(c.queries) == 1 })
	cancel()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want Canceled", err)
	}
	p.RunUntil(func() bool { return len(c.queries) == 0 })

	go ask(t.Context())
	p.RunUntil(func() bool { return len(c.queries) == 1 })
	p.Cut(nil)
	p.Run(time.Second)
	if err := <-errs; !errors.Is(err, assoc.ErrClosed) {
		t.Errorf("%v, want ErrClosed", err)
	}
	if _, err := p.client.Query(t.Context(), p.Client.Association, disco.Filter{}); !errors.Is(err, assoc.ErrClosed) {
		t.Errorf("a query after the end: %v, want ErrClosed", err)
	}
	if err := p.client.Announce(t.Context(), p.Client.Association, agentRecord("1", "a", 1)); !errors.Is(err, assoc.ErrClosed) {
		t.Errorf("an announcement after the end: %v, want ErrClosed", err)
	}
}

func TestQueriesUnderWayAreBounded(t *testing.T) {
	p := newPair(t, Config{MaxQueries: 2}, Config{})
	p.Server.Block(true)
	c, err := p.client.conn(p.Client.Association)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := p.client.Query(ctx, p.Client.Association, disco.Filter{})
			done <- err
		}()
	}
	p.RunUntil(func() bool { return len(c.queries) == 2 })
	if _, err := p.query(disco.Filter{}); !errors.Is(err, ErrBusy) {
		t.Errorf("%v, want ErrBusy", err)
	}
	cancel()
	for range 2 {
		<-done
	}
	p.RunUntil(func() bool { return len(c.queries) == 0 })
}

func TestOtherAssociationsAreRefused(t *testing.T) {
	p := newPair(t, Config{}, Config{})
	if err := p.client.Announce(t.Context(), p.Server.Association, agentRecord("1", "a", 1)); !errors.Is(err, ErrNoChannel) {
		t.Errorf("%v, want ErrNoChannel", err)
	}
	if _, err := p.server.Query(t.Context(), p.Client.Association, disco.Filter{}); !errors.Is(err, ErrNoChannel) {
		t.Errorf("%v, want ErrNoChannel", err)
	}
	if r := p.server.Records(p.Client.Association); r != nil {
		t.Errorf("%v", r)
	}
	if err := p.client.Announce(t.Context(), p.Client.Association, disco.Record{}); !errors.Is(err, disco.FaultRecordIDLen) {
		t.Errorf("%v, want FaultRecordIDLen", err)
	}
}

// Whatever a peer sends, the channel answers at most one well-formed message and
// the association lives.
func FuzzFrames(f *testing.F) {
	for _, m := range []disco.Message{
		{Type: disco.TypeQuery, Corr: []byte("q")},
		{Type: disco.TypeQuery, Corr: []byte("q"), Filter: disco.Filter{NamePrefix: []byte("e"), Kinds: disco.ListOf(disco.KindAgent), Cursor: []byte("1")}},
		{Type: disco.TypeSubscribe, Corr: []byte("s")},
		{Type: disco.TypeUnsubscribe, Corr: []byte("s")},
		{Type: disco.TypeError, Corr: []byte("s"), Code: 1},
	} {
		b, err := m.Append(nil)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint16(m.Type), b)
	}
	records, _, err := disco.AppendRecords(nil, agentRecord("1", "a", 1))
	if err != nil {
		f.Fatal(err)
	}
	b, err := (&disco.Message{Type: disco.TypeAnnounce, Records: records}).Append(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint16(disco.TypeAnnounce), b)
	f.Fuzz(func(t *testing.T, typ uint16, payload []byte) {
		if wire.FrameType(typ) < wire.FirstChannelType {
			return
		}
		advertised := []disco.Record{agentRecord("1", "echo", 1), agentRecord("2", "other", 1)}
		r := newRaw(t, Config{MaxRecords: 4, MaxSubscribers: 1, Advertise: func(*assoc.Association, *disco.Filter) []disco.Record { return advertised }})
		if answers := r.send(wire.FrameType(typ), payload); len(answers) > 1 {
			t.Errorf("%d answers", len(answers))
		}
		if r.Server.Err() != nil {
			t.Errorf("the association ended: %v", r.Server.Err())
		}
		if n := len(r.server.Records(r.Server.Association)); n > 4 {
			t.Errorf("%d records are held", n)
		}
	})
}
