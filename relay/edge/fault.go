package edge

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/trestle-npamp/trestle/relay/internal/media"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// What a Forwarder returns besides transport errors (*bridge.Error) and the
// context's errors.
var (
	// ErrNoAgent says that no agent of that name is there.
	ErrNoAgent = errors.New("no agent of this name is connected")
	// ErrLost says that the agent's association ended before the reply came. The
	// agent may have acted on the request.
	ErrLost = errors.New("the agent was lost before it answered; outcome unknown")
	// ErrBadReply says that what came back from the agent is no reply to the
	// request. The agent may have acted on it.
	ErrBadReply = errors.New("the agent's reply is malformed; outcome unknown")
	// ErrTooLarge says that the message is more than the agent's side accepts.
	ErrTooLarge = errors.New("the message is larger than the agent accepts")
	// ErrCut says that a shutdown ended a request which had left for the agent. The
	// agent may have acted on it.
	ErrCut = errors.New("shutting down; outcome unknown")
	// ErrDraining and ErrBusy say that nothing is taken now.
	ErrDraining = errors.New("shutting down")
	ErrBusy     = errors.New("over capacity")
)

// Fault is an error as an HTTP caller is told it.
type Fault struct {
	// Status is the HTTP status.
	Status int
	// Code is the transport error's, 0 where no transport error fits.
	Code bridge.Code
	// Text says what happened.
	Text string
	// RetryAfter, if not 0, is when the caller may try again, in whole seconds.
	RetryAfter time.Duration
	// Cause is for the log.
	Cause error
}

// Error returns the text.
func (f *Fault) Error() string { return f.Text }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Cause }

const retryAfter = time.Second

// FaultOf says what an HTTP caller is told when a message did not get through
// (D23):
//
//	400  EnvelopeMalformed, told by the far side of the link
//	403  SafetyPolicy
//	404  ErrNoAgent
//	413  ErrTooLarge
//	501  MethodUnsupported, ProtocolUnsupported
//	502  NotDelivered, ErrLost, ErrCut, ErrBadReply, and every other transport error
//	503  ErrDraining, ErrBusy
//	504  a deadline that passed
//
// An error that it doesn't know is a 500 that tells nothing.
func FaultOf(err error) *Fault {
	fault := func(status int, code bridge.Code) *Fault {
		return &Fault{Status: status, Code: code, Text: err.Error(), Cause: err}
	}
	var told *Fault
	var transport *bridge.Error
	switch {
	case errors.As(err, &told):
		return told
	case errors.As(err, &transport):
		f := fault(http.StatusBadGateway, transport.Code)
		f.Text = transport.Text
		if f.Text == "" {
			f.Text = "told by the link, without a reason"
		}
		switch transport.Code {
		case bridge.CodeEnvelopeMalformed:
			f.Status = http.StatusBadRequest
		case bridge.CodeSafetyPolicy:
			f.Status = http.StatusForbidden
		case bridge.CodeMethodUnsupported, bridge.CodeProtocolUnsupported:
			f.Status = http.StatusNotImplemented
		}
		return f
	case errors.Is(err, ErrNoAgent):
		return fault(http.StatusNotFound, bridge.CodeNotDelivered)
	case errors.Is(err, ErrTooLarge):
		return fault(http.StatusRequestEntityTooLarge, bridge.CodeNotDelivered)
	case errors.Is(err, ErrLost), errors.Is(err, ErrCut):
		return fault(http.StatusBadGateway, bridge.CodeNotDelivered)
	case errors.Is(err, ErrBadReply):
		return fault(http.StatusBadGateway, bridge.CodeEnvelopeMalformed)
	case errors.Is(err, ErrDraining), errors.Is(err, ErrBusy):
		f := fault(http.StatusServiceUnavailable, bridge.CodeNotDelivered)
		f.RetryAfter = retryAfter
		return f
	case errors.Is(err, context.DeadlineExceeded):
		f := fault(http.StatusGatewayTimeout, bridge.CodeNotDelivered)
		f.Text = "the agent did not answer in time; outcome unknown"
		return f
	}
	return &Fault{Status: http.StatusInternalServerError, Text: "an internal error", Cause: err}
}

// malformed is the fault for a body that is no JSON-RPC message.
func malformed(err error) *Fault {
	return &Fault{Status: http.StatusBadRequest, Code: bridge.CodeEnvelopeMalformed,
		Text: strings.TrimPrefix(err.Error(), "jsonrpc: "), Cause: err}
}

// problem is the body of a fault (RFC 9457). Its type is about:blank, and so its
// title the status' own; code and name are the transport error's.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Code   int    `json:"code,omitempty"`
	Name   string `json:"name,omitempty"`
}

// fail tells the caller of a fault.
func (x *exchange) fail(f *Fault) {
	if errors.Is(f, errGone) {
		x.edge.stats.left.Add(1)
		return
	}
	x.edge.stats.faults.Add(1)
	p := problem{Type: "about:blank", Title: http.StatusText(f.Status), Status: f.Status, Detail: f.Text}
	if f.Code != 0 {
		p.Code, p.Name = int(f.Code), f.Code.String()
	}
	octets, err := json.Marshal(p)
	if err != nil {
		x.edge.log.Error("a problem could not be written down", slog.Any("error", err))
		return
	}
	if f.RetryAfter > 0 {
		x.w.Header().Set("Retry-After", strconv.Itoa(int((f.RetryAfter+time.Second-1)/time.Second)))
	}
	if x.edge.gate.Closed() {
		x.w.Header().Set("Connection", "close")
	}
	if f.Status >= 500 {
		x.edge.log.Debug("fault", slog.String("agent", x.message.Agent), slog.Int("status", f.Status),
			slog.String("code", f.Code.String()), slog.String("detail", f.Text), slog.Any("cause", f.Cause))
	}
	x.w.Header().Set("Cache-Control", "no-store")
	lingers := x.lingers() && x.control.EnableFullDuplex() == nil
	if lingers {
		x.w.Header().Set("Connection", "close")
	}
	x.answer(f.Status, media.Problem, append(octets, '\n'))
	if lingers {
		x.linger()
	}
}
