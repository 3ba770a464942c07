package edge

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/trestle-npamp/trestle/mapping/agntcy"
	"github.com/trestle-npamp/trestle/relay/internal/media"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// The verbs of operations. What HEAD, OPTIONS and others ask for is not the agent's
// to answer.
var operationVerbs = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

func (e *Edge) servesACP() bool {
	return e.cfg.AGNTCY != nil && e.cfg.AGNTCY.Surface()&agntcy.ACP != 0
}

// operation serves an operation of ACP. Its path and query go as they were written,
// and a path that servers could take for different ones goes nowhere.
func (x *exchange) operation() error {
	e := x.edge
	target, below := strings.CutPrefix(x.r.URL.EscapedPath(), agentsPath+x.message.Agent)
	if !below {
		return &Fault{Status: http.StatusNotFound, Text: "nothing is served here"}
	}
	if x.r.URL.RawQuery != "" || x.r.URL.ForceQuery {
		target += "?" + x.r.URL.RawQuery
	}
	method := []byte(x.r.Method + " " + target)
	if len(method) > maxMethod { // D18
		return &Fault{Status: http.StatusRequestURITooLong, Code: bridge.CodeEnvelopeMalformed,
			Text: "method, path and query are longer than " + strconv.Itoa(maxMethod) + " octets"}
	}
	if _, _, _, ok := agntcy.SplitACP(method); !ok {
		return &Fault{Status: http.StatusBadRequest, Code: bridge.CodeEnvelopeMalformed, Text: "the path or the query could be taken for another"}
	}
	if x.unasked() {
		return &Fault{Status: http.StatusForbidden, Text: "pages of other origins may not send this"}
	}
	if encoding := x.r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return &Fault{Status: http.StatusUnsupportedMediaType, Code: bridge.CodeEnvelopeMalformed, Text: "compressed bodies are not accepted"}
	}
	content, err := x.readBody()
	if err != nil {
		return err
	}
	defer content.Release()

	m := &x.message
	m.Protocol, m.Method, m.Body, m.release = e.cfg.AGNTCY.ID(), method, content.Bytes(), content.Release
	if len(m.Body) > 0 {
		field := x.r.Header.Get("Content-Type")
		if m.MediaType = x.declared(field); m.MediaType == nil {
			return &Fault{Status: http.StatusUnsupportedMediaType, Code: bridge.CodeEnvelopeMalformed, Text: "the Content-Type must be application/json"}
		}
	}
	if e.log.Enabled(x.r.Context(), slog.LevelDebug) {
		x.op = string(method)
	}
	op, known := e.cfg.AGNTCY.Lookup(method)
	m.Effect = op.Effect
	if !known {
		m.Effect = bridge.Destructive // D15
	}
	if !known || op.Carriage != agntcy.Unary {
		return x.operationStream(known)
	}
	ctx, cancel := context.WithTimeout(x.r.Context(), e.cfg.Timeout)
	defer cancel()
	reply, err := e.cfg.Forwarder.Call(ctx, m)
	if err != nil {
		return x.gone(err)
	}
	defer release(reply)
	return x.tell(reply.Status, reply.MediaType, reply.Body, reply.Error)
}

var crossOrigin http.CrossOriginProtection

// unasked says that a browser sends this for a page of another origin, and did not ask
// before whether it may: a POST without a body, or of a type that forms have. All else
// that changes anything it asks about (by OPTIONS, which is refused), whatever JSON is
// sent to A2A too.
func (x *exchange) unasked() bool {
	return x.r.Method == http.MethodPost && !media.IsJSON(x.r.Header.Get("Content-Type")) && crossOrigin.Check(x.r) != nil
}

// declared is the media type of a body with this Content-Type field; nil for one that
// can't be carried. As in the other direction "application/json; charset=utf-8" is
// application/json where no other can be.
func (x *exchange) declared(field string) []byte {
	if _, _, err := x.edge.cfg.Tags.Declare([]byte(field)); err == nil {
		return []byte(field)
	}
	if media.IsJSON(field) {
		return []byte(media.JSON)
	}
	return nil
}

// tell writes an agent's answer in one piece.
func (x *exchange) tell(status int, mediaType string, octets []byte, failed bool) error {
	bodiless := status == http.StatusNoContent || status == http.StatusResetContent
	if bodiless && len(octets) > 0 {
		return ErrBadReply
	}
	if failed {
		x.edge.stats.errors.Add(1)
	} else {
		x.edge.stats.results.Add(1)
	}
	h := x.w.Header()
	h.Set("Cache-Control", "no-store")
	if len(octets) > 0 {
		x.answer(status, mediaType, octets)
		return nil
	}
	x.status = status
	h["Content-Type"] = nil // there is nothing that one could be guessed from
	if !bodiless {
		h["Content-Length"] = []string{"0"}
	}
	_ = x.control.SetWriteDeadline(time.Now().Add(x.edge.cfg.WriteTimeout))
	x.w.WriteHeader(status)
	return nil
}

// operationStream serves an operation that may be answered by a stream. One that is
// known to be has no bound in time; its header is sent with the first event, or when
// something has to be said for the connection to live. Any other must begin its
// answer within Config.Timeout, and may yet have a status of its own.
//
// A stream of JSON is one of events, each under its number (OpenAPI 0.2.3,
// RunOutputStream). Under any other media type a stream is a body that comes in
// chunks, and each is written as it comes.
func (x *exchange) operationStream(known bool) error {
	e := x.edge
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	defer context.AfterFunc(e.cut, func() { cancel(ErrDraining) })()
	commit := max(0, e.cfg.KeepAlive)
	if !known {
		commit, x.message.Timeout = 0, e.cfg.Timeout
	}
	s, err := e.cfg.Forwarder.Stream(ctx, &x.message)
	x.message.Release()
	if err != nil {
		return x.streamFault(ctx, err, ErrDraining)
	}
	defer s.Close()
	e.stats.streaming.Add(1)
	defer e.stats.streaming.Add(-1)

	o := newOutput(x, cancel, commit)
	defer o.stop()
	for {
		event, err := s.Next()
		switch {
		case err == io.EOF:
			if err = o.finish(); err == nil {
				e.stats.streams.Add(1)
				return nil
			}
		case err == nil && event.Reply && o.stop():
			err = ErrBadReply // it came behind events, or too late for its status
		case err == nil && event.Reply:
			return x.tell(event.Status, event.MediaType, event.Body, event.Error)
		case err == nil && event.MediaType != media.JSON:
			err = o.chunk(event.MediaType, event.Body)
		case err == nil:
			err = o.numbered(event.ID, event.Body)
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

// finish ends the body. One without an event is an empty stream.
func (o *output) finish() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	o.timer.Stop()
	err := o.begin()
	if err != nil {
		return o.wrote(err)
	}
	return nil
}

var agentEvent = []byte(agntcy.EventType)

// numbered writes an event of ACP's streams.
func (o *output) numbered(id uint64, octets []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	err := o.begin()
	if err == nil {
		err = o.w.Named(strconv.AppendUint(o.number[:0], id, 10), agentEvent, octets)
	}
	return o.wrote(err)
}

// chunk writes a part of a body as it is. From then on there are no comments: they
// could come into the middle of something.
func (o *output) chunk(mediaType string, octets []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.silent {
		if o.begun && !media.IsEventStream(mediaType) {
			return ErrBadReply // the header has said otherwise
		}
		o.media, o.silent = mediaType, true
		o.timer.Stop()
	}
	err := o.begin()
	if err == nil {
		_, err = o.Write(octets)
	}
	if err == nil {
		err = o.x.control.Flush()
	}
	return o.wrote(err)
}
