package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// ErrOptions is the class of errors about what was asked for.
var ErrOptions = errors.New("bench: invalid options")

// Options say what is measured.
type Options struct {
	// Conns associations (64), each with InFlight requests open at any time (16).
	Conns    int `json:"conns"`
	InFlight int `json:"in_flight"`
	// Size of a request's foreign message, and of its reply's, in octets (512).
	Size int `json:"size"`
	// Duration of the measured part (10 s) after Warmup (2 s).
	Duration time.Duration `json:"duration_ns"`
	Warmup   time.Duration `json:"warmup_ns"`
	// Class is what the messages are: "opaque", octets that nobody looks into, or
	// "jsonrpc", A2A's message/send with all that is checked about it.
	Class string `json:"class"`
	// Client is the shape of the client: "callback", which starts the next request
	// on the loop that brought the reply, or "blocking", a goroutine for each
	// request in flight.
	Client string `json:"client"`
	// Transport under the associations: "tls" or "tcp".
	Transport string `json:"transport"`
	// Event loops of each side; 0 is one a processor.
	ServerLoops int `json:"server_loops"`
	ClientLoops int `json:"client_loops"`
}

// What Options may name.
var (
	Classes    = []string{"opaque", "jsonrpc"}
	Clients    = []string{"callback", "blocking"}
	Transports = []string{engine.TransportTLS.String(), engine.TransportTCP.String()}
)

// Defaults returns the options as they are unless asked otherwise.
func Defaults() Options {
	return Options{
		Conns: 64, InFlight: 16, Size: 512,
		Duration: 10 * time.Second, Warmup: 2 * time.Second,
		Class: "opaque", Client: "callback", Transport: engine.TransportTLS.String(),
	}
}

const (
	maxConns    = 1 << 16
	maxInFlight = carriage.DefaultMaxInFlight
	maxSize     = 1 << 20
)

// Validate says what can't be measured. The error is of class ErrOptions.
func (o *Options) Validate() error {
	for _, n := range []struct {
		name      string
		value     int
		low, high int
	}{
		{"conns", o.Conns, 1, maxConns},
		{"inflight", o.InFlight, 1, maxInFlight},
		{"size", o.Size, 0, maxSize},
		{"server-loops", o.ServerLoops, 0, 1024},
		{"client-loops", o.ClientLoops, 0, 1024},
	} {
		if n.value < n.low || n.value > n.high {
			return fmt.Errorf("%w: %s is %d, must be %d to %d", ErrOptions, n.name, n.value, n.low, n.high)
		}
	}
	if o.Duration <= 0 || o.Warmup < 0 {
		return fmt.Errorf("%w: duration %v, warmup %v", ErrOptions, o.Duration, o.Warmup)
	}
	for _, c := range []struct {
		name, value string
		known       []string
	}{{"class", o.Class, Classes}, {"client", o.Client, Clients}, {"transport", o.Transport, Transports}} {
		if !slices.Contains(c.known, c.value) {
			return fmt.Errorf("%w: %s is %q, must be one of %s", ErrOptions, c.name, c.value, strings.Join(c.known, ", "))
		}
	}
	if shortest := len(jsonMessage("request", 0)); o.Class == "jsonrpc" && o.Size < shortest {
		return fmt.Errorf("%w: a message of class jsonrpc has at least %d octets", ErrOptions, shortest)
	}
	return nil
}

func (o *Options) transport() engine.Transport {
	if o.Transport == engine.TransportTCP.String() {
		return engine.TransportTCP
	}
	return engine.TransportTLS
}

// opaque is the protocol id of the opaque class's messages.
const opaque = bridge.FirstExperimental

// protocols are what both sides carry; h serves the requests.
func protocols(h carriage.Handler) []carriage.Protocol {
	return []carriage.Protocol{
		{
			ID: opaque, Class: carriage.ClassOpaque, Content: bridge.ContentProto, Handler: h,
			Effect: func([]byte) (bridge.Effect, bool) { return bridge.ReadOnly, true },
		},
		a2a.Protocol(h),
	}
}

// call is the request that is sent over and over, and the reply it must get. All
// have the same id, as requests of different callers may: each hop numbers its
// exchanges itself.
func (o *Options) call() (c carriage.Call, reply []byte) {
	if o.Class == "jsonrpc" {
		return carriage.Call{Protocol: bridge.ProtocolA2A, Hop: true, Foreign: jsonMessage("request", o.Size)}, jsonMessage("reply", o.Size)
	}
	message := make([]byte, o.Size)
	for i := range message {
		message[i] = byte(i*7 + 1)
	}
	return carriage.Call{Protocol: opaque, Method: "bench/echo", Hop: true, Foreign: message}, message
}

// jsonMessage is a message/send or its result, padded to size octets with text.
func jsonMessage(kind string, size int) []byte {
	head, tail := `{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m","role":"user","parts":[{"kind":"text","text":"`, `"}]}}}`
	if kind == "reply" {
		head, tail = `{"jsonrpc":"2.0","id":1,"result":{"kind":"message","messageId":"r","role":"agent","parts":[{"kind":"text","text":"`, `"}]}}`
	}
	return []byte(head + strings.Repeat("x", max(0, size-len(head)-len(tail))) + tail)
}
