package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/trestle-npamp/trestle/relay/internal/media"
	"github.com/trestle-npamp/trestle/relay/sse"
)

// ErrEnough is what the function given to Stream returns when it wants no more
// events. Stream then returns no error.
var ErrEnough = errors.New("upstream: no more events are wanted")

var errSilent = errors.New("the agent was silent for too long")

// What is still read of a stream when no more events are wanted: most agents end
// it just then, and its connection can be used again.
const (
	lingerTime   = time.Second
	lingerOctets = 64 << 10
)

// Stream sends a request whose answer is a stream of events, and hands each one
// to event as it comes: a JSON-RPC response to r, octet for octet, borrowed until
// event returns. While event works nothing more is read, so that an agent can't
// send faster than its events are taken. An error of event ends the stream and is
// returned.
//
// nil and nil say that the agent ended its stream, whatever it said in it. A Reply
// is what an agent answered in one piece in place of a stream (L16). Everything
// else is an *Error: a stream that broke, that was cut within an event, or that
// holds something else than responses to r. Events that only keep the stream
// alive, those without data and those of a type of their own that are no JSON-RPC
// responses, are skipped and counted.
//
// No bound is set to how long a stream may take, and Config.StreamIdle bounds its
// silence. When ctx ends, the connection is closed, which is all the agent learns
// of it: its task is not ours to cancel.
func (c *Client) Stream(ctx context.Context, r *Request, event func(octets []byte) error) (*Reply, error) {
	c.streams.Add(1)
	reply, err := c.stream(ctx, r, event)
	var fault *Error
	if errors.As(err, &fault) {
		c.failures.Add(1)
	}
	return reply, err
}

func (c *Client) stream(ctx context.Context, r *Request, event func([]byte) error) (*Reply, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pulse := newPulse(c.cfg.StreamIdle, func() { cancel(errSilent) })
	defer pulse.stop()

	response, sent, err := c.post(ctx, r, media.EventStream)
	if err != nil {
		return nil, c.fault(ctx, sent, err)
	}
	defer response.Body.Close()
	if !success(response.StatusCode) || !media.IsEventStream(response.Header.Get("Content-Type")) {
		late := time.AfterFunc(c.cfg.Timeout, func() { cancel(context.DeadlineExceeded) })
		defer late.Stop()
		return c.reply(ctx, r, response)
	}
	fail := func(text string, cause error) error {
		return &Error{Unknown: true, Status: response.StatusCode, Text: text, Cause: cause}
	}
	if !identity(response.Header.Values("Content-Encoding")) {
		return nil, fail(statusText(response.StatusCode)+" with a content encoding that was not asked for", nil)
	}
	source := &source{body: response.Body, pulse: pulse}
	in := sse.NewReader(source, c.cfg.MaxReply, c.budget)
	defer in.Release()
	for {
		e, err := in.Next()
		switch err {
		case nil:
		case io.EOF:
			return nil, nil
		case sse.ErrTooLarge:
			return nil, fail("an event of the agent is over the limit of "+strconv.Itoa(c.cfg.MaxReply)+" octets", err)
		case sse.ErrBudget:
			return nil, fail("no memory is left for the agent's events", err)
		default:
			return nil, c.fault(ctx, true, err)
		}
		if _, err := kindOf(r, e.Data); err != nil {
			switch {
			case e.Cut:
				return nil, fail("the agent's stream was cut within an event", err)
			case err == errOtherID:
				return nil, fail(err.Error(), nil)
			case !e.Message() || len(bytes.TrimSpace(e.Data)) == 0:
				c.skipped.Add(1)
				c.log.Debug("an event was skipped", slog.String("type", string(e.Type)), slog.Int("octets", len(e.Data)))
				continue
			}
			return nil, fail("the agent's stream holds an event that is not a JSON-RPC response", err)
		}
		pulse.pause() // what event waits for is not the agent's silence
		switch err := event(e.Data); err {
		case nil:
			pulse.beat()
		case ErrEnough:
			source.limited, source.left = true, lingerOctets
			late := time.AfterFunc(lingerTime, func() { cancel(ErrEnough) })
			defer late.Stop()
			c.linger(in)
			return nil, nil
		default:
			return nil, err
		}
	}
}

// linger reads on to the end of a stream, within bounds, and counts what is not
// delivered.
func (c *Client) linger(in *sse.Reader) {
	for {
		if _, err := in.Next(); err != nil {
			return
		}
		c.late.Add(1)
	}
}

// source is a response's body whose octets are signs of life.
type source struct {
	body    io.Reader
	pulse   *pulse
	limited bool
	left    int
}

func (s *source) Read(b []byte) (int, error) {
	if s.limited {
		if s.left <= 0 {
			return 0, http.ErrBodyReadAfterClose
		}
		b = b[:min(len(b), s.left)]
	}
	n, err := s.body.Read(b)
	s.left -= n
	if n > 0 {
		s.pulse.beat()
	}
	return n, err
}

// pulse calls a function when there has been no sign of life for a while. The nil
// pulse waits for ever.
type pulse struct {
	timer *time.Timer
	idle  time.Duration
}

func newPulse(idle time.Duration, dead func()) *pulse {
	if idle <= 0 {
		return nil
	}
	return &pulse{timer: time.AfterFunc(idle, dead), idle: idle}
}

func (p *pulse) beat() {
	if p != nil {
		p.timer.Reset(p.idle)
	}
}

func (p *pulse) pause() { p.stop() }

func (p *pulse) stop() {
	if p != nil {
		p.timer.Stop()
	}
}
