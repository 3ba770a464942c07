package a2a_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
)

// far is a Bridge channel without rules, which notes what arrives and sends what it is
// told.
type far struct {
	a      *assoc.Association
	frames []string // type and plaintext, in hex
}

func (p *far) Channel() wire.Channel { return wire.ChannelBridge }
func (p *far) Attach(a *assoc.Association) assoc.ChannelConn {
	p.a = a
	return p
}
func (p *far) HandleFrame(t wire.FrameType, b []byte) {
	p.frames = append(p.frames, fmt.Sprintf("%04x%x", uint16(t), b))
}
func (*far) HandleHello(*control.Hello) {}
func (*far) HandleRoom()                {}
func (*far) HandleDrain()               {}
func (*far) Busy() int                  { return 0 }
func (*far) HandleClose(error)          {}

// hexOf turns hex digits and 'quoted text' into hex digits alone.
func hexOf(s string) string {
	var out strings.Builder
	for i, part := range strings.Split(s, "'") {
		if i%2 == 1 {
			out.WriteString(hex.EncodeToString([]byte(part)))
			continue
		}
		out.WriteString(strings.ReplaceAll(part, " ", ""))
	}
	return out.String()
}

// says sends frames that are written as in wrote.
func (p *far) says(t *testing.T, frames ...string) {
	t.Helper()
	for _, f := range frames {
		b, err := hex.DecodeString(hexOf(f))
		if err != nil {
			t.Fatal(err)
		}
		frame := assoc.NewBuf(len(b) - 2)
		frame.B = append(frame.B, b[2:]...)
		if err := p.a.SendBuf(wire.ChannelBridge, wire.FrameType(b[0])<<8|wire.FrameType(b[1]), frame); err != nil {
			t.Fatal(err)
		}
	}
}

// wrote checks what has arrived since: type and plaintext in hex, blanks aside, with
// text in quotes.
func (p *far) wrote(t *testing.T, frames ...string) {
	t.Helper()
	var want []string
	for _, f := range frames {
		want = append(want, hexOf(f))
	}
	if got := strings.Join(p.frames, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("frames\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
	p.frames = nil
}

// messages are the frames that have arrived since, parsed.
func (p *far) messages(t *testing.T) (ms []bridge.Message) {
	t.Helper()
	for _, f := range p.frames {
		b, _ := hex.DecodeString(f)
		var m bridge.Message
		if err := bridge.Parse(&m, wire.FrameType(b[0])<<8|wire.FrameType(b[1]), b[2:], nil); err != nil {
			t.Fatal(err)
		}
		ms = append(ms, m)
	}
	p.frames = nil
	return ms
}

func sideOf(h assoc.ChannelHandler) assoc.Options {
	o := assoc.Options{Handlers: []assoc.ChannelHandler{h}}
	o.Conn.Protocols = []uint8{uint8(bridge.ProtocolA2A), 0x10, 0x80}
	o.Conn.PingInterval = -1
	return o
}

// asking joins a caller and a peer without rules, agent an agent and one.
func asking(t *testing.T, m *a2a.Mapping) (*nptest.Pair, *carriage.Bridge, *far) {
	t.Helper()
	b, p := carriage.New(carriage.Config{Protocols: []carriage.Protocol{m.Protocol(nil)}}), new(far)
	pair := nptest.NewPair(t, nptest.Options{Client: sideOf(b), Server: sideOf(p)})
	pair.Settle()
	return pair, b, p
}

func agent(t *testing.T, m *a2a.Mapping, h carriage.Handler) (*nptest.Pair, *carriage.Bridge, *far) {
	t.Helper()
	b, p := carriage.New(carriage.Config{Protocols: []carriage.Protocol{m.Protocol(h)}}), new(far)
	pair := nptest.NewPair(t, nptest.Options{Client: sideOf(p), Server: sideOf(b)})
	pair.Settle()
	return pair, b, p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	gotten  = `{"jsonrpc":"2.0","id":1,"result":{"kind":"task","id":"t","status":{"state":"working"}}}`
	working = `{"jsonrpc":"2.0","id":"s","result":{"kind":"status-update","taskId":"t","contextId":"c","final":false,"status":{"state":"working"}}}`
	done    = `{"jsonrpc":"2.0","id":"s","result":{"kind":"status-update","taskId":"t","contextId":"c","final":true,"status":{"state":"completed"}}}`
)

const streamRequest = `{"jsonrpc":"2.0","id":"s","method":"message/stream","params":{}}`

// frames of one stream under the correlation id "s", with its quotes.
func dataFrame(id int, flags int, event string) string {
	return fmt.Sprintf("0104 0010 0009 02 05 01 00 03'\"s\"' 00 0011 000b 01 00 %02x %016x '%s'", flags, id, event)
}
func endFrame(id int, flags int, event string) string {
	return fmt.Sprintf("0105 0010 0009 02 06 01 01 03'\"s\"' 00 0011 000b 01 00 %02x %016x '%s'", flags, id, event)
}

const streamFrame = "0100 0010 0017 02 01 01 00 03'\"s\"' 0e'message/stream' 0013 0002 02 00 '" + streamRequest + "'"

// pouring is an agent that has begun a stream and lost its association after events.
func pouring(t *testing.T, o carriage.RetainLimits, events int) (*carriage.Bridge, *carriage.Producer) {
	t.Helper()
	var s *carriage.Producer
	b := carriage.New(carriage.Config{Retain: o, Protocols: []carriage.Protocol{a2a.Protocol(carriage.HandlerFunc(func(r *carriage.Request) {
		r.RetainEnvelope()
		var err error
		s, err = r.Stream(carriage.StreamOptions{Resumable: true})
		must(t, err)
		r.Release()
	}))}})
	c := new(far)
	p := nptest.NewPair(t, nptest.Options{Client: sideOf(c), Server: sideOf(b)})
	p.Settle()
	c.says(t, streamFrame)
	p.Settle()
	for i := range events {
		must(t, s.TrySend([]byte(working)))
		p.Settle()
		c.wrote(t, dataFrame(i+1, 1, working))
	}
	p.Cut(errors.New("reset"))
	p.Settle()
	return b, s
}

// resubscribe is the resume of that stream: tasks/resubscribe under the stream's
// correlation id and id, with a cursor.
func resubscribe(after int) string {
	object := a2a.AppendResubscribe(nil, []byte(`"s"`), []byte(`"t"`), false)
	return fmt.Sprintf("0100 0010 001a 02 01 01 00 03'\"s\"' 11'tasks/resubscribe' 0011 000b 01 01 00 %016x 0013 0002 00 00 '%s'", after, object)
}

// MAP-A2A 6, 14, D27: tasks/resubscribe with a cursor goes on behind it, replays
// nothing that was consumed, and ends as the stream does.
func TestMapA2A6_ResubscribeResumes(t *testing.T) {
	b, s := pouring(t, carriage.RetainLimits{}, 3)
	c := new(far)
	p := nptest.NewPair(t, nptest.Options{Client: sideOf(c), Server: sideOf(b)})
	p.Settle()
	c.says(t, resubscribe(2))
	p.Settle()
	c.wrote(t, dataFrame(3, 1, working))
	must(t, s.End([]byte(done)))
	p.Settle()
	c.wrote(t, endFrame(4, 1, done))
}

// MAP-A2A 6, 14: what can't be resumed is refused with NotResumable, and nothing is
// replayed in its place.
func TestMapA2A6_ResubscribeIsRefused(t *testing.T) {
	for name, x := range map[string]struct {
		limits carriage.RetainLimits
		after  int
	}{
		"not held any more":     {carriage.RetainLimits{Octets: 300}, 1},
		"beyond what was there": {carriage.RetainLimits{}, 9},
	} {
		t.Run(name, func(t *testing.T) {
			b, _ := pouring(t, x.limits, 4)
			c := new(far)
			p := nptest.NewPair(t, nptest.Options{Client: sideOf(c), Server: sideOf(b)})
			p.Settle()
			c.says(t, resubscribe(x.after))
			p.Settle()
			ms := c.messages(t)
			if len(ms) != 1 || ms[0].Kind != bridge.KindError || string(ms[0].Corr) != `"s"` {
				t.Fatalf("%+v", ms)
			}
			if code, _, ok := bridge.ParseTransportError(ms[0].Foreign); !ok || code != bridge.CodeNotResumable {
				t.Errorf("%q", ms[0].Foreign)
			}
		})
	}
}

// MAP-A2A 6: the caller's side of it. An iterator that lost its association resumes
// by tasks/resubscribe, with the original id and correlation id, and its reader sees
// every event once.
func TestMapA2A6_CallerResubscribesByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(nil)}})
		f := new(far)
		link := func() *nptest.Pair {
			f.frames = nil
			p := nptest.NewPair(t, nptest.Options{Client: sideOf(b), Server: sideOf(f)})
			p.Settle()
			return p
		}
		p := link()
		var task []byte
		redial := &carriage.Redial{
			Dial: func(_ context.Context, _ *assoc.Association) (*assoc.Association, error) {
				p = link()
				return p.Client.Association, nil
			},
			Message: func() []byte { return a2a.AppendResubscribe(nil, []byte(`"s"`), task, false) },
		}
		s, err := b.Stream(t.Context(), p.Client.Association, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(streamRequest)}, &carriage.StreamCall{Redial: redial})
		must(t, err)
		p.Settle()
		f.wrote(t, streamFrame)
		f.says(t, dataFrame(1, 1, working), dataFrame(2, 1, working))
		p.Settle()
		for id := range 2 {
			e, err := s.Next()
			must(t, err)
			if e.ID != carriage.EventID(id+1) {
				t.Errorf("event %d", e.ID)
			}
			of, _ := a2a.TaskOf(e.Foreign)
			task = bytes.Clone(of)
		}
		p.Cut(errors.New("reset"))
		p.Settle()
		synctest.Wait()
		<-time.After(time.Second) // the wait before an attempt is over
		synctest.Wait()
		p.Settle()
		f.wrote(t, resubscribe(2))
		f.says(t, dataFrame(2, 1, working), endFrame(3, 1, done)) // repeats itself
		p.Settle()
		e, err := s.Next()
		if err != nil || e.ID != 3 || string(e.Foreign) != done {
			t.Errorf("%d %q %v", e.ID, e.Foreign, err)
		}
		s.Close()
	})
}

// MAP-A2A 6, D19: a stream that pauses in an interrupted state and ends cleanly ends
// with a STREAM_END without an event; with final true the event itself is the end.
func TestMapA2A6_InterruptedStates(t *testing.T) {
	for event, want := range map[string]a2a.Event{
		`{"jsonrpc":"2.0","id":"s","result":{"kind":"status-update","final":true,"status":{"state":"input-required"}}}`:              a2a.Terminal,
		`{"jsonrpc":"2.0","id":"s","result":{"kind":"status-update","final":true,"status":{"state":"auth-required"}}}`:               a2a.Terminal,
		`{"jsonrpc":"2.0","id":"s","result":{"kind":"status-update","final":false,"status":{"state":"input-required"}}}`:             a2a.Interrupted,
		`{"jsonrpc":"2.0","id":"s","result":{"statusUpdate":{"taskId":"t","status":{"state":"TASK_STATE_AUTH_REQUIRED"}}}}`:          a2a.Interrupted,
		`{"jsonrpc":"2.0","id":"s","result":{"statusUpdate":{"taskId":"t","status":{"state":"TASK_STATE_INPUT_REQUIRED"}}}}`:         a2a.Interrupted,
		`{"jsonrpc":"2.0","id":"s","result":{"kind":"task","id":"t","status":{"state":"input-required"}}}`:                           a2a.Interrupted,
		`{"jsonrpc":"2.0","id":"s","result":{"kind":"status-update","final":false,"status":{"state":"working","input-required":1}}}`: a2a.Other,
	} {
		if got := a2a.Classify([]byte(event)); got != want {
			t.Errorf("%s: %d, want %d", event, got, want)
		}
		if want == a2a.Other {
			continue
		}
		q, _, c := agent(t, nil, carriage.HandlerFunc(func(r *carriage.Request) {
			s, err := r.Stream(carriage.StreamOptions{})
			must(t, err)
			if a2a.Classify([]byte(event)) == a2a.Terminal {
				must(t, s.End([]byte(event)))
				return
			}
			must(t, s.TrySend([]byte(event)))
			must(t, s.EndEmpty()) // the source ended behind it
		}))
		c.says(t, streamFrame)
		q.Settle()
		if want == a2a.Terminal {
			c.wrote(t, endFrame(1, 0, event))
		} else {
			c.wrote(t, dataFrame(1, 0, event), endFrame(2, 0, ""))
		}
	}
}

// MAP-A2A 3, 14(1): A2A is protocol 2 and JSON, on every frame of either side, and what
// is under another id is no A2A whatever it looks like.
func TestMapA2A3_ProtocolIDAndContentType(t *testing.T) {
	if p := a2a.Protocol(nil); p.ID != 2 || p.Class != carriage.ClassJSONRPC || p.Content != 1 {
		t.Errorf("%+v", p)
	}
	served := 0
	q, _, c := agent(t, nil, carriage.HandlerFunc(func(r *carriage.Request) { served++; _ = r.Respond([]byte(gotten)) }))
	const object = `{"jsonrpc":"2.0","id":1,"method":"tasks/get"}`
	for _, id := range []string{"01", "03", "10", "7f", "80", "ff"} {
		c.says(t, "0100 0010 0010 "+id+" 01 01 00 01'1' 09'tasks/get' 0013 0002 00 00 '"+object+"'")
		q.Settle()
		ms := c.messages(t)
		if len(ms) != 1 || ms[0].Kind != bridge.KindError || served != 0 {
			t.Fatalf("under %s: %+v", id, ms)
		}
		if code, _, ok := bridge.ParseTransportError(ms[0].Foreign); !ok || code != bridge.CodeProtocolUnsupported {
			t.Errorf("under %s: %v", id, code)
		}
	}
	for _, content := range []string{"02", "03"} {
		c.says(t, "0100 0010 0010 02 01 "+content+" 00 01'1' 09'tasks/get' 0013 0002 00 00 '"+object+"'")
		q.Settle()
		if code, _, ok := bridge.ParseTransportError(c.messages(t)[0].Foreign); !ok || code != bridge.CodeEnvelopeMalformed || served != 0 {
			t.Errorf("content type %s: %v", content, code)
		}
	}
}

// MAP-A2A 3: an object without "jsonrpc":"2.0", and what is no object (an HTTP head, an
// event's line, a batch) is EnvelopeMalformed, and not sent either.
func TestMapA2A3_OnlyJSONRPCObjects(t *testing.T) {
	served := 0
	q, _, c := agent(t, nil, carriage.HandlerFunc(func(r *carriage.Request) { served++; _ = r.Respond([]byte(gotten)) }))
	p, b, f := asking(t, nil)
	for _, object := range []string{
		`{"id":1,"method":"tasks/get"}`,
		`{"jsonrpc":"1.0","id":1,"method":"tasks/get"}`,
		`[{"jsonrpc":"2.0","id":1,"method":"tasks/get"}]`,
		"POST / HTTP/1.1\r\nHost: a\r\n\r\n" + `{"jsonrpc":"2.0","id":1,"method":"tasks/get"}`,
		`data: {"jsonrpc":"2.0","id":1,"method":"tasks/get"}`,
		"event: message\ndata: {}\n\n",
		`{"jsonrpc":"2.0","id":1,"method":"tasks/get"}` + "\n\ndata: x",
		"",
	} {
		c.says(t, "0100 0010 0010 02 01 01 00 01'1' 09'tasks/get' 0013 0002 00 00 "+hex.EncodeToString([]byte(object)))
		q.Settle()
		ms := c.messages(t)
		if code, _, ok := bridge.ParseTransportError(ms[0].Foreign); len(ms) != 1 || !ok || code != bridge.CodeEnvelopeMalformed {
			t.Errorf("%q: %+v", object, ms)
		}
		if _, err := b.Start(p.Client.Association, &carriage.Call{Protocol: bridge.ProtocolA2A, Method: "tasks/get", Foreign: []byte(object)}, nil); !errors.Is(err, carriage.ErrMalformed) {
			t.Errorf("%q: %v", object, err)
		}
	}
	p.Settle()
	f.wrote(t)
	if served != 0 {
		t.Errorf("%d served", served)
	}
}

// MAP-A2A 4: the envelope's method is the object's, and the correlation id is made of
// its id, in either direction: both sides may ask.
func TestMapA2A4_MethodAndCorrelationID(t *testing.T) {
	for id, corr := range map[string]string{`"a\"b"`: `"a\"b"`, `0`: `0`, `1.0`: `1.0`, `123456789012345678901`: `123456789012345678901`} {
		object := `{"jsonrpc":"2.0","id":` + id + `,"method":"tasks\/get"}`
		want := fmt.Sprintf("0100 0010 %04x 02 01 01 00 %02x'%s' 09'tasks/get' 0013 0002 00 00 '%s'", 15+len(corr), len(corr), corr, object)
		p, b, f := asking(t, nil)
		_, err := b.Start(p.Client.Association, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(object)}, nil)
		must(t, err)
		p.Settle()
		f.wrote(t, want)

		back, other := new(far), carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(nil)}})
		q := nptest.NewPair(t, nptest.Options{Client: sideOf(back), Server: sideOf(other)}) // the agent asks
		q.Settle()
		_, err = other.Start(q.Server.Association, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(object)}, nil)
		must(t, err)
		q.Settle()
		back.wrote(t, want)
	}
	q, _, c := agent(t, nil, carriage.HandlerFunc(func(r *carriage.Request) { t.Error("served"); _ = r.Respond([]byte(gotten)) }))
	c.says(t, "0100 0010 0010 02 01 01 00 01'1' 09'tasks/get' 0013 0002 00 00 '"+`{"jsonrpc":"2.0","id":1,"method":"tasks/cancel"}`+"'")
	q.Settle()
	if code, _, _ := bridge.ParseTransportError(c.messages(t)[0].Foreign); code != bridge.CodeEnvelopeMalformed {
		t.Errorf("%v", code)
	}
}

// MAP-A2A 4: a notification has no correlation id and no answer.
func TestMapA2A4_Notifications(t *testing.T) {
	const note = `{"jsonrpc":"2.0","method":"message/send","params":{}}`
	p, b, f := asking(t, nil)
	must(t, b.TryNotify(p.Client.Association, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(note)}))
	p.Settle()
	f.wrote(t, "0103 0010 0012 02 03 01 00 00 0c'message/send' 0013 0002 02 00 '"+note+"'")
	q, _, c := agent(t, nil, carriage.HandlerFunc(func(*carriage.Request) {}))
	c.says(t, "0103 0010 0012 02 03 01 00 00 0c'message/send' 0013 0002 02 00 '"+note+"'")
	q.Settle()
	c.wrote(t)
}

// MAP-A2A 4: an operation that is not carried is MethodUnsupported, under either
// name, and its handler does not see it.
func TestMapA2A4_MethodUnsupported(t *testing.T) {
	m, err := a2a.NewMapping(a2a.Options{NotCarried: []string{a2a.MethodStream, a2a.MethodSubscribeV1, a2a.MethodSetPush}})
	must(t, err)
	var served []string
	q, b, c := agent(t, m, carriage.HandlerFunc(func(r *carriage.Request) {
		served = append(served, string(r.Method()))
		_ = r.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
	}))
	for _, method := range []string{"message/stream", "SendStreamingMessage", "tasks/resubscribe", "SubscribeToTask", "tasks/pushNotificationConfig/set", "CreateTaskPushNotificationConfig"} {
		c.says(t, fmt.Sprintf("0100 0010 %04x 02 01 01 00 01'1' %02x'%s' '%s'", 7+len(method), len(method), method, `{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`))
		q.Settle()
		ms := c.messages(t)
		if code, _, ok := bridge.ParseTransportError(ms[0].Foreign); len(ms) != 1 || !ok || code != bridge.CodeMethodUnsupported {
			t.Errorf("%s: %+v", method, ms)
		}
	}
	c.says(t, "0100 0010 0010 02 01 01 00 01'1' 09'tasks/get' '"+`{"jsonrpc":"2.0","id":1,"method":"tasks/get"}`+"'")
	q.Settle()
	if ms := c.messages(t); len(ms) != 1 || ms[0].Kind != bridge.KindResponse || fmt.Sprint(served) != "[tasks/get]" || b.Stats().RequestsUnsupported != 6 {
		t.Errorf("%+v, served %v", ms, served)
	}
}

// MAP-A2A 5: a sender labels tasks/cancel either way, and a receiver with a stricter
// policy takes it for destructive whatever the label says.
func TestMapA2A5_StrictCancelOnTheWire(t *testing.T) {
	m, err := a2a.NewMapping(a2a.Strict)
	must(t, err)
	p, b, f := asking(t, m)
	for _, method := range []string{"tasks/cancel", "CancelTask"} {
		object := `{"jsonrpc":"2.0","id":1,"method":"` + method + `"}`
		_, err := b.Start(p.Client.Association, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(object)}, nil)
		must(t, err)
		p.Settle()
		if ms := f.messages(t); len(ms) != 1 || !ms[0].HasLabel || ms[0].Label.Effect != bridge.Destructive {
			t.Errorf("%s: %+v", method, ms)
		}
		f.says(t, "0101 0010 0007 02 02 01 00 01'1' 00 '"+`{"jsonrpc":"2.0","id":1,"result":{}}`+"'")
		p.Settle()

		var effect bridge.Effect
		var label bridge.Label
		q, _, c := agent(t, m, carriage.HandlerFunc(func(r *carriage.Request) {
			effect = r.Effect()
			label, _ = r.Label()
			_ = r.Respond([]byte(`{"jsonrpc":"2.0","id":1,"result":{}}`))
		}))
		c.says(t, fmt.Sprintf("0100 0010 %04x 02 01 01 00 01'1' %02x'%s' 0013 0002 02 00 '%s'", 7+len(method), len(method), method, object))
		q.Settle()
		if effect != bridge.Destructive || label.Effect != bridge.NonIdempotentWrite {
			t.Errorf("%s: effect %v, label %v", method, effect, label.Effect)
		}
	}
}

// MAP-A2A 8: push-notification configuration is carried like any other unary
// operation, and an agent without it says so with A2A's own error.
func TestMapA2A8_PushNotificationConfiguration(t *testing.T) {
	const unsupported = `{"jsonrpc":"2.0","id":1,"error":{"code":-32003,"message":"Push Notification is not supported"}}`
	methods := map[string]bridge.Effect{
		"tasks/pushNotificationConfig/set": bridge.IdempotentWrite, "CreateTaskPushNotificationConfig": bridge.IdempotentWrite,
		"tasks/pushNotificationConfig/get": bridge.ReadOnly, "GetTaskPushNotificationConfig": bridge.ReadOnly,
		"tasks/pushNotificationConfig/list": bridge.ReadOnly, "ListTaskPushNotificationConfigs": bridge.ReadOnly,
		"tasks/pushNotificationConfig/delete": bridge.Destructive, "DeleteTaskPushNotificationConfig": bridge.Destructive,
	}
	for method, effect := range methods {
		l := newLink(t)
		c := ask(method)
		if r := l.call(c); r.Err != nil || r.Kind != bridge.KindResponse || l.label.Effect != effect || l.saw != string(c.Foreign) {
			t.Errorf("%s: %v, labelled %v, saw %q", method, r.Err, l.label.Effect, l.saw)
		}
		if a2a.IsStream(method) || a2a.IsDocument(method) {
			t.Errorf("%s is not unary", method)
		}
		served := 0
		q, _, f := agent(t, nil, a2a.WithoutPush(carriage.HandlerFunc(func(*carriage.Request) { served++ })))
		f.says(t, fmt.Sprintf("0100 0010 %04x 02 01 01 00 01'1' %02x'%s' '%s'", 7+len(method), len(method), method, `{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`))
		q.Settle()
		f.wrote(t, "0102 0010 0007 02 04 01 00 01'1' 00 '"+unsupported+"'")
		if served != 0 {
			t.Errorf("%s reached the agent", method)
		}
	}
	served := 0
	q, _, f := agent(t, nil, a2a.WithoutPush(carriage.HandlerFunc(func(r *carriage.Request) { served++; _ = r.Respond([]byte(gotten)) })))
	f.says(t, "0100 0010 0010 02 01 01 00 01'1' 09'tasks/get' '"+`{"jsonrpc":"2.0","id":1,"method":"tasks/get"}`+"'")
	q.Settle()
	if served != 1 {
		t.Error("another operation did not reach the agent")
	}
}

// MAP-A2A 9, 14(8): everything is on the Bridge channel (cards may be on Discovery as
// well), and nothing goes to a peer that does not advertise it.
func TestMapA2A9_Channels(t *testing.T) {
	channels := make(map[wire.Channel]int)
	b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(nil)}})
	o := nptest.Options{Client: sideOf(b), Server: sideOf(new(far))}
	o.Tap = func(from assoc.Role, batch []byte) {
		for from == assoc.Client && len(batch) > 0 {
			f, n, err := wire.ParseFrame(batch, wire.MaxFrameLen)
			must(t, err)
			if f.Header().Type() >= 0x0100 {
				channels[f.Header().Channel()]++
			}
			batch = batch[n:]
		}
	}
	p := nptest.NewPair(t, o)
	p.Settle()
	clear(channels) // HELLO
	for i, row := range []string{"message/send", "tasks/get", "tasks/cancel", "tasks/pushNotificationConfig/set"} {
		_, err := b.Start(p.Client.Association, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q}`, i, row)}, nil)
		must(t, err)
	}
	_, err := b.StartStream(p.Client.Association, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(streamRequest)}, nil, new(collected))
	must(t, err)
	_, err = b.Start(p.Client.Association, &carriage.Call{Protocol: bridge.ProtocolA2A, Method: a2a.MethodGetCard}, nil)
	must(t, err)
	p.Settle()
	if len(channels) != 1 || channels[wire.ChannelBridge] != 6 {
		t.Errorf("%v", channels)
	}

	// A peer that does not name A2A is sent none.
	without := sideOf(new(far))
	without.Conn.Protocols = []uint8{uint8(bridge.ProtocolMCP)}
	q := nptest.NewPair(t, nptest.Options{Client: sideOf(b), Server: without})
	q.Settle()
	var told *bridge.Error
	if _, err := b.Start(q.Client.Association, &carriage.Call{Protocol: bridge.ProtocolA2A, Foreign: []byte(streamRequest)}, nil); !errors.As(err, &told) || told.Code != bridge.CodeProtocolUnsupported {
		t.Errorf("%v", err)
	}
}

// MAP-A2A 10, 14(9): every code point that A2A's carriage uses is one of those that
// others define.
func TestMapA2A10_NoCodePointsOfItsOwn(t *testing.T) {
	for _, v := range []struct{ got, want int }{
		{int(bridge.ProtocolA2A), 0x02}, {int(bridge.ContentJSON), 0x01},
		{int(wire.ChannelBridge), 0x0D}, {int(wire.ChannelDiscovery), 0x10},
		{int(bridge.TypeRequest), 0x0100}, {int(bridge.TypeResponse), 0x0101}, {int(bridge.TypeError), 0x0102},
		{int(bridge.TypeNotify), 0x0103}, {int(bridge.TypeStreamData), 0x0104}, {int(bridge.TypeStreamEnd), 0x0105},
		{int(wire.TagBridgeEnvelope), 0x0010}, {int(wire.TagStreamControl), 0x0011}, {int(wire.TagSafetyLabel), 0x0013},
	} {
		if v.got != v.want {
			t.Errorf("%#x, want %#x", v.got, v.want)
		}
	}
}

// MAP-A2A 12: a label describes and permits nothing: the policy decides on the effect
// that has to be assumed, before any handler.
func TestMapA2A12_LabelIsNoPermission(t *testing.T) {
	served := 0
	b := carriage.New(carriage.Config{
		Protocols: []carriage.Protocol{a2a.Protocol(carriage.HandlerFunc(func(r *carriage.Request) { served++; _ = r.Respond([]byte(gotten)) }))},
		Authorize: func(m *carriage.Inbound) error {
			if m.Effect() > bridge.ReadOnly {
				return errors.New("read only")
			}
			return nil
		},
	})
	c := new(far)
	p := nptest.NewPair(t, nptest.Options{Client: sideOf(c), Server: sideOf(b)})
	p.Settle()
	for _, method := range []string{"message/send", "tasks/cancel", "tasks/pushNotificationConfig/delete"} {
		c.says(t, fmt.Sprintf("0100 0010 %04x 02 01 01 00 01'1' %02x'%s' 0013 0002 00 00 '%s'", 7+len(method), len(method), method, `{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`))
		p.Settle()
		if code, text, _ := bridge.ParseTransportError(c.messages(t)[0].Foreign); code != bridge.CodeSafetyPolicy || string(text) != "read only" || served != 0 {
			t.Errorf("%s: %v %q", method, code, text)
		}
	}
}
