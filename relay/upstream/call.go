package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"syscall"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/relay/internal/body"
	"github.com/trestle-npamp/trestle/relay/internal/media"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Error says why there is no answer of the agent. Its text is fit to be told to
// a caller: it names no address, no header and no credential.
type Error struct {
	// Unknown says that octets of the request had left, so that the agent may
	// have acted on it. When false it has not.
	Unknown bool
	// Status is the HTTP status the agent answered with, 0 for none.
	Status int
	// Text says what happened, in a few words.
	Text string
	// Cause is for the log: it may name addresses.
	Cause error
}

// Error returns the text, which says so when the outcome is unknown.
func (e *Error) Error() string {
	if e.Unknown {
		return e.Text + "; outcome unknown"
	}
	return e.Text
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Call sends a request and returns the agent's JSON-RPC answer. Whatever else
// comes back, or nothing, is an *Error: an answer is never invented, and a body
// that was cut, that is not JSON-RPC or that answers another id is none.
//
// A JSON-RPC error object counts under every HTTP status, a result only under
// one that says success.
func (c *Client) Call(ctx context.Context, r *Request) (*Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	c.requests.Add(1)
	reply, err := c.call(ctx, r)
	if err != nil {
		c.failures.Add(1)
		return nil, err
	}
	return reply, nil
}

func (c *Client) call(ctx context.Context, r *Request) (*Reply, error) {
	response, sent, err := c.post(ctx, r, media.JSON)
	if err != nil {
		return nil, c.fault(ctx, sent, err)
	}
	defer response.Body.Close()
	return c.reply(ctx, r, response)
}

// reply makes a reply of a response.
func (c *Client) reply(ctx context.Context, r *Request, response *http.Response) (*Reply, error) {
	answer, err := c.answer(response)
	if err != nil {
		var fault *Error
		if errors.As(err, &fault) {
			return nil, fault
		}
		return nil, c.fault(ctx, true, err)
	}

	reply, err := check(r, response.StatusCode, answer)
	if err != nil {
		answer.Release()
		return nil, err
	}
	return reply, nil
}

// check makes a reply of an answer's octets, if they are one to r.
func check(r *Request, status int, answer *body.Body) (*Reply, error) {
	kind, err := kindOf(r, answer.Bytes())
	text := ""
	switch {
	case err == errOtherID:
		text = err.Error()
	case err != nil:
		text = statusText(status) + " with a body that is not a JSON-RPC response"
	case kind == jsonrpc.KindResponse && !success(status):
		text = statusText(status) + " with a JSON-RPC result"
	}
	if text != "" {
		return nil, &Error{Unknown: mayHaveActed(status), Status: status, Text: text, Cause: err}
	}
	return &Reply{Error: kind == jsonrpc.KindError, Body: answer.Bytes(), body: answer}, nil
}

var (
	errOtherID   = errors.New("the agent answered another id")
	errNotAnswer = errors.New("a JSON-RPC message that is no response")
)

// kindOf says what octets are as an answer to r, a result or an error object. An
// error says why they are none.
func kindOf(r *Request, octets []byte) (jsonrpc.Kind, error) {
	var m jsonrpc.Message
	err := jsonrpc.Scan(octets, &m)
	switch {
	case err != nil:
		return 0, err
	case m.Kind != jsonrpc.KindResponse && m.Kind != jsonrpc.KindError:
		return 0, errNotAnswer
	case m.Kind == jsonrpc.KindError && m.IDKind == jsonrpc.IDNull:
		// D17: the agent could not tell whose error it is; the connection tells.
	case !jsonrpc.EqualID(m.ID, r.ID):
		return 0, errOtherID
	}
	return m.Kind, nil
}

func success(status int) bool { return status >= 200 && status <= 299 }

// Notify sends a notification and waits until the agent has answered the HTTP
// request, whatever it says: nothing goes back (L35). An *Error tells only that
// the notification did not reach the agent.
func (c *Client) Notify(ctx context.Context, r *Request) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.NotifyTimeout)
	defer cancel()
	c.notifications.Add(1)
	response, sent, err := c.post(ctx, r, media.JSON)
	if err != nil {
		return c.fault(ctx, sent, err)
	}
	defer response.Body.Close()
	// What little is there is read so that the connection can be used again.
	_, _ = io.CopyN(io.Discard, response.Body, maxDiscardedReply)
	if response.StatusCode >= 400 {
		c.refused.Add(1)
		c.log.Debug("the agent refused a notification", slog.String("method", r.Method), slog.Int("status", response.StatusCode))
	}
	return nil
}

// post sends r, once or, where that can't make it happen twice, once more. accept
// is the media type of the answer that is hoped for. sent says whether octets of a
// failed request may have reached the agent.
func (c *Client) post(ctx context.Context, r *Request, accept string) (response *http.Response, sent bool, err error) {
	return c.send(ctx, http.MethodPost, c.endpoint.String(), accept, r)
}

// send is post with any verb and to any place.
func (c *Client) send(ctx context.Context, verb, target, accept string, r *Request) (response *http.Response, sent bool, err error) {
	for attempt := 0; ; attempt++ {
		var reused bool
		response, sent, reused, err = c.roundTrip(ctx, verb, target, accept, r)
		if err == nil || attempt > 0 || !reused || ctx.Err() != nil {
			return response, sent, err
		}
		// L29: a kept connection that the agent had closed. Nothing was written,
		// or what was written can do no harm twice.
		if sent && r.Effect != bridge.ReadOnly {
			return response, sent, err
		}
		c.retries.Add(1)
	}
}

// roundTrip makes one attempt. r is nil for a GET.
func (c *Client) roundTrip(ctx context.Context, method, target, accept string, r *Request) (_ *http.Response, sent, reused bool, err error) {
	var conn *countedConn
	var before int64
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) {
			reused = info.Reused
			if conn = counted(info.Conn); conn != nil {
				before = conn.left.Load()
			}
		},
	})
	// A reader of our own leaves the request without GetBody, so that the
	// transport can't send it a second time on its own account.
	var content io.Reader
	switch {
	case r == nil:
	case len(r.Body) == 0 && method != http.MethodGet:
		// This gives "Content-Length: 0". With a reader there would be an empty chunked
		// body, which some servers take for the next request. The transport repeats by
		// itself only what reads alone, and none of these.
		content = http.NoBody
	default:
		content = struct{ io.Reader }{bytes.NewReader(r.Body)}
	}
	request, err := http.NewRequestWithContext(ctx, method, target, content)
	if err != nil {
		return nil, false, false, err
	}
	header := c.header
	if r == nil {
		header = c.cardHeader
	}
	for name, values := range header {
		request.Header[name] = values
	}
	request.Header.Set("Accept", accept)
	request.Header.Set("Accept-Encoding", "identity")
	if r != nil {
		request.ContentLength = int64(len(r.Body))
		switch {
		case r.contentType != "" && len(r.Body) > 0:
			request.Header.Set("Content-Type", r.contentType)
		case len(r.Body) > 0:
			request.Header.Set("Content-Type", media.JSON)
		}
		if a2a.IsV1(r.Method) { // D21
			request.Header[headerProtocolVersion] = []string{"1.0"}
		}
	}
	response, err := c.client.Do(request)
	if err != nil {
		return nil, conn != nil && conn.left.Load() != before, reused, err
	}
	return response, true, reused, nil
}

// answer reads the body of a response that could hold an answer; an *Error says
// that it can't. Plain text is one if it is a JSON object: servers that name no
// type are often given this one by the library below them.
func (c *Client) answer(response *http.Response) (*body.Body, error) {
	fail := func(text string) error {
		return &Error{Unknown: mayHaveActed(response.StatusCode), Status: response.StatusCode, Text: text}
	}
	field := response.Header.Get("Content-Type")
	kind := media.Type(field)
	if kind == "" || len(kind) > 64 {
		kind = "an unknown type"
	}
	other := fail(statusText(response.StatusCode) + " with " + kind + " in place of JSON")
	switch {
	case response.StatusCode >= 300 && response.StatusCode <= 399:
		return nil, fail(statusText(response.StatusCode) + ": redirects are not followed")
	case response.ContentLength == 0 || response.StatusCode == http.StatusNoContent:
		return nil, fail(statusText(response.StatusCode) + " without a body")
	case field == "":
		return nil, fail(statusText(response.StatusCode) + " without a Content-Type")
	case !media.IsJSON(field) && !media.IsPlain(field):
		return nil, other
	case !identity(response.Header.Values("Content-Encoding")):
		return nil, fail(statusText(response.StatusCode) + " with a content encoding that was not asked for")
	}
	answer, err := body.Read(response.Body, response.ContentLength, c.cfg.MaxReply, c.budget)
	switch {
	case errors.Is(err, body.ErrTooLarge):
		return nil, fail("the agent's answer is over the limit of " + strconv.Itoa(c.cfg.MaxReply) + " octets")
	case errors.Is(err, body.ErrBudget):
		return nil, fail("no memory is left for the agent's answer")
	case err != nil:
		return nil, err
	case !media.IsJSON(field) && !isObject(answer.Bytes()):
		answer.Release()
		return nil, other
	}
	return answer, nil
}

// mayHaveActed says whether an agent that answered with this status, but without
// a JSON-RPC object, may have acted on the request: it has not when it says that
// the request was at fault.
func mayHaveActed(status int) bool { return status < 400 || status > 499 }

func identity(encodings []string) bool {
	for _, e := range encodings {
		if e != "" && e != "identity" {
			return false
		}
	}
	return true
}

// statusText names an HTTP status for a caller.
func statusText(status int) string {
	return "the agent answered HTTP status " + strconv.Itoa(status)
}

// fault words an error of the HTTP client for a caller, and logs what it really
// was.
func (c *Client) fault(ctx context.Context, sent bool, err error) *Error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // the URL may hold a password
	}
	c.log.Debug("no answer of the agent", slog.Bool("sent", sent), slog.Any("error", err))
	e := &Error{Unknown: sent, Cause: err}
	var dns *net.DNSError
	var timeout net.Error
	switch {
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		e.Text = "the agent did not answer in time"
	case context.Cause(ctx) == errSilent:
		e.Text = errSilent.Error()
	case ctx.Err() != nil:
		e.Text = "the request was given up"
	case errors.As(err, &dns):
		e.Text = "the agent's host was not found"
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Text = "the agent refused the connection"
	case errors.As(err, &timeout) && timeout.Timeout():
		e.Text = "the agent could not be reached in time"
	case !sent:
		e.Text = "the agent could not be reached"
	default:
		e.Text = "the connection to the agent broke"
	}
	return e
}
