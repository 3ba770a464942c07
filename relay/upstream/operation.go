package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/trestle-npamp/trestle/relay/internal/body"
	"github.com/trestle-npamp/trestle/relay/internal/media"
	"github.com/trestle-npamp/trestle/relay/sse"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Operation is one plain HTTP operation for the agent, whose body and answer are not
// looked into.
type Operation struct {
	// Verb is the HTTP method, Target the path below the agent's URL, with its
	// leading slash, and the query.
	Verb, Target string
	// ContentType is Body's; it is sent unless Body is empty.
	ContentType string
	Body        []byte
	// Accept is the answer that is hoped for, as a header field has it.
	Accept string
	// Effect is what the operation may do; ReadOnly allows one more attempt when a
	// kept connection turns out to be dead.
	Effect bridge.Effect

	// Carries says whether an answer in one piece with this Content-Type field can go
	// back; nil says yes. The body of one that can't is not read.
	Carries func(contentType string) bool
	// Stream, if set, takes an answer that is a stream of Server-Sent Events with
	// status 200. Its error is returned.
	Stream func(s *EventStream) error
}

// Answer is what the agent answered in one piece.
type Answer struct {
	Status int
	// ContentType is the header field as it was sent, "" for none.
	ContentType string
	// Body is its octets, which live until Release.
	Body []byte

	body *body.Body
}

// Release gives the body's memory back.
func (a *Answer) Release() {
	a.Body = nil
	a.body.Release()
}

// EventStream is the answer to an Operation that comes bit by bit. It is for one
// goroutine and ends when Operation.Stream returns.
type EventStream struct {
	// ContentType is the header field as it was sent.
	ContentType string

	c      *Client
	ctx    context.Context
	source *source
	pulse  *pulse
}

// Read reads the body as it is sent, octet for octet. io.EOF says that the agent
// ended it; any other error is an *Error.
func (s *EventStream) Read(b []byte) (int, error) {
	s.pulse.beat()
	n, err := s.source.Read(b)
	s.pulse.pause() // until the next call: what its caller waits for is not the agent's silence
	if err != nil && err != io.EOF {
		err = s.c.fault(s.ctx, true, err)
	}
	return n, err
}

// Events calls event with the data of each event as it comes, borrowed until event
// returns. Only events of the given types count, "" being one without a type. An
// event without data is passed over, as keep-alives are. Any other type is an error,
// since its event would be lost, and so is an event that was cut. nil says that the
// agent ended the stream.
func (s *EventStream) Events(event func(data []byte) error, types ...string) error {
	fail := func(text string, cause error) error {
		return &Error{Unknown: true, Status: http.StatusOK, Text: text, Cause: cause}
	}
	in := sse.NewReader(s.source, s.c.cfg.MaxReply, s.c.budget)
	defer in.Release()
	for {
		e, err := in.Next()
		switch err {
		case nil:
		case io.EOF:
			return nil
		case sse.ErrTooLarge:
			return fail("an event of the agent is over the limit of "+strconv.Itoa(s.c.cfg.MaxReply)+" octets", err)
		case sse.ErrBudget:
			return fail("no memory is left for the agent's events", err)
		default:
			return s.c.fault(s.ctx, true, err)
		}
		switch {
		case e.Cut:
			return fail("the agent's stream was cut within an event", nil)
		case len(e.Data) == 0:
			s.c.skipped.Add(1)
			continue
		case !among(string(e.Type), types):
			return fail("the agent's stream has an event of a type that can't be carried", nil)
		}
		s.pulse.pause()
		if err := event(e.Data); err != nil {
			return err
		}
		s.pulse.beat()
	}
}

func among(s string, list []string) bool {
	for _, l := range list {
		if s == l {
			return true
		}
	}
	return false
}

// Do performs an operation. The answer is the agent's under whatever status from 200
// to 299 or 400 to 599, octet for octet; nil and nil say that Operation.Stream took
// it. Everything else is an *Error: no answer, a redirect, a content encoding, an
// answer over the limit or one that Carries does not want.
//
// Config.Timeout bounds the time until an answer in one piece is complete or a stream
// begins; a stream has no other bound than Config.StreamIdle, which counts from its
// beginning. When ctx ends the connection is closed.
func (c *Client) Do(ctx context.Context, o *Operation) (*Answer, error) {
	c.requests.Add(1)
	answer, err := c.do(ctx, o)
	var fault *Error
	if errors.As(err, &fault) {
		c.failures.Add(1)
	}
	return answer, err
}

func (c *Client) do(ctx context.Context, o *Operation) (*Answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	late := time.AfterFunc(c.cfg.Timeout, func() { cancel(context.DeadlineExceeded) })
	defer late.Stop()

	r := &Request{Body: o.Body, Effect: o.Effect, contentType: o.ContentType}
	response, sent, err := c.send(ctx, o.Verb, c.below(o.Target), o.Accept, r)
	if err != nil {
		return nil, c.fault(ctx, sent, err)
	}
	defer response.Body.Close()
	status, field := response.StatusCode, response.Header.Get("Content-Type")
	fail := func(text string) error {
		return &Error{Unknown: mayHaveActed(status), Status: status, Text: text}
	}
	switch {
	case status < 200 || status >= 300 && status <= 399 || status > 599:
		return nil, fail(statusText(status) + ": redirects are not followed")
	case !identity(response.Header.Values("Content-Encoding")):
		return nil, fail(statusText(status) + " with a content encoding that was not asked for")
	case o.Stream != nil && status == http.StatusOK && media.IsEventStream(field):
		if !late.Stop() {
			return nil, c.fault(ctx, true, context.DeadlineExceeded)
		}
		pulse := newPulse(c.cfg.StreamIdle, func() { cancel(errSilent) })
		defer pulse.stop()
		return nil, o.Stream(&EventStream{
			ContentType: field, c: c, ctx: ctx, pulse: pulse, source: &source{body: response.Body, pulse: pulse},
		})
	}
	uncarried := func() error {
		kind := media.Type(field)
		if kind == "" || len(kind) > 64 {
			kind = "an unknown type"
		}
		return fail(statusText(status) + " with " + kind + ", which can't be carried")
	}
	carries := o.Carries == nil || o.Carries(field)
	if !carries && field != "" && response.ContentLength != 0 {
		return nil, uncarried()
	}
	content, err := body.Read(response.Body, response.ContentLength, c.cfg.MaxReply, c.budget)
	switch {
	case errors.Is(err, body.ErrTooLarge):
		return nil, fail("the agent's answer is over the limit of " + strconv.Itoa(c.cfg.MaxReply) + " octets")
	case errors.Is(err, body.ErrBudget):
		return nil, fail("no memory is left for the agent's answer")
	case err != nil:
		return nil, c.fault(ctx, true, err)
	case !carries && len(content.Bytes()) > 0: // of no type at all
		content.Release()
		return nil, uncarried()
	}
	return &Answer{Status: status, ContentType: field, Body: content.Bytes(), body: content}, nil
}

// below is the URL of a target below the agent's. A query of the agent's own URL
// comes first.
func (c *Client) below(target string) string {
	path, query, asked := strings.Cut(target, "?")
	u := *c.endpoint
	own := u.RawQuery
	u.RawQuery, u.ForceQuery = "", false
	s := strings.TrimSuffix(u.String(), "/") + path
	switch {
	case own != "" && query != "":
		return s + "?" + own + "&" + query
	case own != "":
		return s + "?" + own
	case asked:
		return s + "?" + query
	}
	return s
}
