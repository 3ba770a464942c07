package edge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/relay/internal/media"
	"github.com/trestle-npamp/trestle/relay/sse"
)

// Event is what an agent says in a stream.
type Event struct {
	// Body is a JSON-RPC response, octet for octet, or what the stream of an operation
	// has. It is borrowed until the next call of Next or Close.
	Body []byte
	// Reply says that the agent gave it in place of a stream. Nothing follows it.
	Reply bool
	// Error says of a Reply that it is an error object.
	Error bool
	// ID is the event's number in the stream, from 1.
	ID uint64
	// Status, of a Reply, and MediaType are an operation's; elsewhere they mean
	// nothing.
	Status    int
	MediaType string
}

// Stream is an agent's answer that comes event by event. It is used by one
// goroutine.
type Stream interface {
	// Next waits for the next event. io.EOF says that the stream ended as it
	// should; any other error, one that FaultOf knows, that it did not.
	Next() (Event, error)
	// Close gives the stream up unless it has ended.
	Close()
}

// stream serves a request that is answered by a stream:
//
//	waiting ---- first event, or CommitAfter passed ----> begun: status 200
//	   |                                                    |
//	   '-- a reply in one piece: status 200, JSON           '-- end: the body ends
//	   '-- no stream: the fault's status                    '-- broken: the body is cut
//
// The request holds nothing any more once it is on its way.
func (x *exchange) stream() error {
	e := x.edge
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	defer context.AfterFunc(e.cut, func() { cancel(ErrDraining) })()
	id := bytes.Clone(x.message.ID)
	s, err := e.cfg.Forwarder.Stream(ctx, &x.message)
	x.message.Release()
	if err != nil {
		return x.streamFault(ctx, err, ErrDraining)
	}
	defer s.Close()
	e.stats.streaming.Add(1)
	defer e.stats.streaming.Add(-1)

	o := newOutput(x, cancel, e.cfg.CommitAfter)
	defer o.stop()
	for n := 0; ; n++ {
		event, err := s.Next()
		switch {
		case err == io.EOF && n > 0:
			o.stop()
			o.extend() // for the end of the body
			e.stats.streams.Add(1)
			return nil
		case err == io.EOF:
			err = ErrBadReply // an empty stream would read as a success
		case err == nil && !answers(event.Body, id):
			err = ErrBadReply
		case err == nil && event.Reply && !o.stop():
			x.reply(event.Body, event.Error)
			return nil
		case err == nil:
			err = o.event(event.Body)
		}
		if err == nil {
			e.stats.events.Add(1)
			continue
		}
		err = x.streamFault(ctx, err, ErrCut)
		if o.stop() {
			x.abort(cmp.Or(o.failed, err))
		}
		return err
	}
}

// answers says whether octets are a JSON-RPC response to the request with this id
// (D17). The link does not look into events, and what is none would not even cross
// as it is: only in JSON a CR is white space.
func answers(octets, id []byte) bool {
	var m jsonrpc.Message
	if jsonrpc.Scan(octets, &m) != nil {
		return false
	}
	switch m.Kind {
	case jsonrpc.KindError:
		return m.IDKind == jsonrpc.IDNull || jsonrpc.EqualID(m.ID, id)
	case jsonrpc.KindResponse:
		return jsonrpc.EqualID(m.ID, id)
	}
	return false
}

// reply writes what an agent said in one piece.
func (x *exchange) reply(octets []byte, isError bool) {
	if isError {
		x.edge.stats.errors.Add(1)
	} else {
		x.edge.stats.results.Add(1)
	}
	x.w.Header().Set("Cache-Control", "no-store")
	x.answer(http.StatusOK, media.JSON, octets)
}

// streamFault is what ended a stream that ended with err: the end of ctx comes
// first. cut is what a shutdown is to it.
func (x *exchange) streamFault(ctx context.Context, err, cut error) error {
	switch cause := context.Cause(ctx); cause {
	case nil:
		return err
	case ErrDraining:
		return cut
	}
	return errGone
}

// errStalled says that the caller takes nothing.
var errStalled = errors.New("edge: the caller reads too slowly")

// abort ends a body that has begun so that nobody takes it for complete.
func (x *exchange) abort(err error) {
	s := &x.edge.stats
	switch err {
	case errGone:
		s.left.Add(1)
	case errStalled:
		s.stalled.Add(1)
		x.edge.log.Warn("a stream was cut: its caller reads too slowly", slog.String("agent", x.message.Agent), slog.String("from", x.r.RemoteAddr))
	default:
		s.broken.Add(1)
		x.edge.log.Debug("a stream broke", slog.String("agent", x.message.Agent), slog.Any("cause", err))
	}
	if !x.r.ProtoAtLeast(1, 1) {
		x.reset()
	}
	panic(http.ErrAbortHandler)
}

// reset breaks the connection of a caller that speaks HTTP/1.0, as some proxies do:
// where a body ends with its connection, a mere end of it would look like the
// stream's.
func (x *exchange) reset() {
	conn, _, err := x.control.Hijack()
	if err != nil {
		return
	}
	below := conn
	for {
		if c, ok := below.(interface{ NetConn() net.Conn }); ok { // TLS
			below = c.NetConn()
			continue
		}
		if c, ok := below.(interface{ SetLinger(sec int) error }); ok {
			_ = c.SetLinger(0)
		}
		_ = below.Close()
		return
	}
}

// output is the body of a stream. Events are written by the exchange's goroutine,
// the header and comments also by a timer's.
type output struct {
	x      *exchange
	cancel context.CancelCauseFunc
	timer  *time.Timer

	mu     sync.Mutex
	w      *sse.Writer
	begun  bool
	over   bool
	media  string // of the body, "" for events
	silent bool   // no comments
	number [20]byte
	failed error // why nothing can be written: errStalled or errGone
	room   int   // octets until the write deadline is moved
}

// newOutput returns an output that sends its header after a while, with 0 only
// together with the first event.
func newOutput(x *exchange, cancel context.CancelCauseFunc, commit time.Duration) *output {
	o := &output{x: x, cancel: cancel}
	o.w = sse.NewWriter(o, x.control.Flush)
	o.timer = time.AfterFunc(time.Hour, o.tick)
	if commit > 0 {
		o.timer.Reset(commit) // tick may run from here on
	} else {
		o.timer.Stop()
	}
	return o
}

// stop makes the exchange's goroutine the only one that writes, and says whether
// the header was sent.
func (o *output) stop() (begun bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	o.timer.Stop()
	return o.begun
}

// event writes an event.
func (o *output) event(octets []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.begin()
	if err == nil {
		err = o.w.Event(octets)
	}
	return o.wrote(err)
}

var keepAlive = []byte("keep-alive")

// tick sends the header of a stream that has no event yet, and comments while
// there are none. Whoever is writing an event just now starts the timer anew.
func (o *output) tick() {
	if !o.mu.TryLock() {
		return
	}
	defer o.mu.Unlock()
	if o.over {
		return
	}
	begun := o.begun
	err := o.begin()
	if begun && err == nil {
		err = o.w.Comment(keepAlive)
	}
	_ = o.wrote(err)
}

// begin sends the header unless that has happened, and moves the write deadline.
func (o *output) begin() error {
	o.extend()
	if o.begun {
		return nil
	}
	o.begun = true
	o.x.status = http.StatusOK
	h := o.x.w.Header()
	sse.SetHeader(h)
	if o.media != "" {
		h["Content-Type"] = []string{o.media}
	}
	h["X-Content-Type-Options"] = []string{"nosniff"}
	o.x.w.WriteHeader(http.StatusOK)
	// The header goes ahead of the first event, which may be long.
	return o.x.control.Flush()
}

// wrote notes how a write ended. The next comment is due a while after it.
func (o *output) wrote(err error) error {
	if err == nil {
		if interval := o.x.edge.cfg.KeepAlive; interval > 0 && !o.silent {
			o.timer.Reset(interval)
		}
		return nil
	}
	o.failed = errGone
	if errors.Is(err, os.ErrDeadlineExceeded) {
		o.failed = errStalled
	}
	o.cancel(o.failed)
	return o.failed
}

// extend moves the write deadline.
func (o *output) extend() {
	o.room = writeStep
	_ = o.x.control.SetWriteDeadline(time.Now().Add(o.x.edge.cfg.StallTimeout))
}

// Write implements io.Writer for the sse.Writer: the caller has to take each step
// of it in time.
func (o *output) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		if o.room <= 0 {
			o.extend()
		}
		step := b[n:min(len(b), n+o.room)]
		var k int
		k, err = o.x.w.Write(step)
		n += k
		o.room -= k
	}
	return n, err
}
