package relay

import (
	"bytes"
	"context"
	"errors"
	"net/http"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/mapping/agntcy"
	"github.com/trestle-npamp/trestle/relay/internal/media"
	"github.com/trestle-npamp/trestle/relay/upstream"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// The verbs of operations that are delivered.
var verbs = map[string]bool{
	http.MethodGet: true, http.MethodPost: true, http.MethodPut: true, http.MethodPatch: true, http.MethodDelete: true,
}

var (
	errNoOperation = &bridge.Error{Code: bridge.CodeMethodUnsupported, Text: "the method names no operation that is delivered here"}
	errOneWay      = errors.New("REST operations and SRPC calls are answered, so nobody notifies of them")
)

// operation makes the HTTP operation of a message: one of ACP as its method says, and
// a message or call of SLIM as a POST to its name.
func (s *server) operation(m *carriage.Inbound) (*upstream.Operation, error) {
	o := &upstream.Operation{
		Body: m.Foreign(), ContentType: bridge.Declared(m.Content(), m.MediaType()), Effect: m.Effect(), Carries: s.carries,
	}
	method := m.Method()
	if _, _, _, rest := agntcy.SplitACP(method); rest {
		verb, target, _ := bytes.Cut(method, []byte(" "))
		o.Verb, o.Target, o.Accept = string(verb), string(target), media.JSON
		if !verbs[o.Verb] {
			return nil, errNoOperation
		}
		return o, nil
	}
	if op, known := s.cfg.AGNTCY.Lookup(method); !known || op.Surface != agntcy.SLIM {
		return nil, errNoOperation
	}
	o.Verb, o.Target, o.Accept = http.MethodPost, "/"+string(method), bridge.ContentProto.MediaType()
	return o, nil
}

// operate serves a request of AGNTCY's: the agent's status, media type and body go
// back as they are, and its stream as it comes.
func (s *server) operate(r *carriage.Request) {
	o, err := s.operation(&r.Inbound)
	if err != nil {
		s.refuse(r, err)
		return
	}
	if r.Streams() {
		s.operateStream(r, o)
		return
	}
	ctx, cancel := context.WithTimeout(s.work, s.cfg.Timeout)
	defer cancel()
	answer, err := s.cfg.Operations.Do(ctx, o)
	if err != nil {
		s.refuse(r, err)
		return
	}
	defer answer.Release()
	if err := r.Declare(s.declaration(answer)); err != nil {
		s.refuse(r, err)
		return
	}
	if agntcy.Failed(answer.Status) {
		err = r.Fail(answer.Body)
	} else {
		err = r.Respond(answer.Body)
	}
	s.carried(r, err)
}

// operateStream serves a request that may be answered by a stream, which ends when
// the agent's does.
func (s *server) operateStream(r *carriage.Request, o *upstream.Operation) {
	to, err := r.Stream(carriage.StreamOptions{})
	if err != nil {
		return // the exchange is over
	}
	// When nobody takes the answer any more, its source is left.
	ctx, cancel := context.WithCancel(to.Context())
	defer cancel()
	defer context.AfterFunc(s.work, cancel)()
	if _, _, _, rest := agntcy.SplitACP(r.Method()); rest {
		o.Accept = media.EventStream + ", " + o.Accept
		o.Stream = func(from *upstream.EventStream) error { return s.events(ctx, to, from) }
	}
	answer, err := s.cfg.Operations.Do(ctx, o)
	switch {
	case err != nil:
	case answer == nil:
		err = to.EndEmpty()
	default:
		defer answer.Release()
		if err = to.Declare(s.declaration(answer)); err != nil {
			break
		}
		if agntcy.Failed(answer.Status) {
			err = to.Fail(answer.Body)
		} else {
			err = to.Respond(answer.Body)
		}
	}
	if err == nil || to.Err() != nil {
		return
	}
	s.carried(r, err)
	code, text := reason(err)
	_ = to.Refuse(code, text) // nobody else ends it
}

// events sends a stream on: where its media type can be declared, octet for octet as
// it is, and else the data of its events, octet for octet, which are JSON.
func (s *server) events(ctx context.Context, to *carriage.Producer, from *upstream.EventStream) error {
	if to.Declare(carriage.Declaration{MediaType: from.ContentType}) == nil {
		_, err := to.Copy(ctx, from)
		return err
	}
	if err := to.Declare(carriage.Declaration{Content: bridge.ContentJSON}); err != nil {
		return err
	}
	return from.Events(func(data []byte) error { return to.Send(ctx, data) }, agntcy.EventType, "message", "")
}

// declaration is what an answer declares. One without a body is declared as what the
// protocol usually has, since something must be.
func (s *server) declaration(a *upstream.Answer) carriage.Declaration {
	d := carriage.Declaration{Method: agntcy.Status(a.Status)}
	if len(a.Body) > 0 {
		d.MediaType, _ = s.mediaType(a.ContentType)
	}
	if d.MediaType == "" {
		d.Content = s.cfg.AGNTCY.Content()
	}
	return d
}

// carries says whether an answer with this Content-Type field can be declared.
func (s *server) carries(field string) bool {
	_, ok := s.mediaType(field)
	return ok
}

// mediaType is what a Content-Type field is declared as: what it says, where that can
// be. "application/json; charset=utf-8" says no more than "application/json" does,
// which always can (RFC 8259 8.1).
func (s *server) mediaType(field string) (string, bool) {
	if _, _, err := s.cfg.Tags.Declare([]byte(field)); err == nil {
		return field, true
	}
	if media.IsJSON(field) {
		return media.JSON, true
	}
	return "", false
}

// publish delivers a message of SLIM that has no answer.
func (s *server) publish(ctx context.Context, n *carriage.Notify) error {
	o, err := s.operation(&n.Inbound)
	if err != nil {
		return err
	}
	_, _, _, rest := agntcy.SplitACP(n.Method())
	if _, _, call := agntcy.SplitSRPC(n.Method()); rest || call {
		return errOneWay
	}
	answer, err := s.cfg.Operations.Do(ctx, o)
	if err != nil {
		return err
	}
	answer.Release()
	return nil
}
