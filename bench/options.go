package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/engine"
)

// ErrOptions is the class of errors about what was asked for.
var ErrOptions = errors.New("bench: invalid options")

// What can be measured.
const (
	Unary     = "unary"     // requests, each with its reply
	Mixed     = "mixed"     // the same, with large ones on the same connections
	Stream    = "stream"    // streams of events from the server
	Fanout    = "fanout"    // each event to a subscriber on every connection
	Notify    = "notify"    // messages without a reply, among them lone requests, and after them
	Handshake = "handshake" // connections that are made and ended
	Idle      = "idle"      // what connections cost that say nothing
)

// Shapes of a client.
const (
	Callback = "callback" // the next request starts on the loop that brought the reply
	Blocking = "blocking" // a goroutine for each request in flight
)

// Classes of messages.
const (
	Opaque  = "opaque"  // octets that nobody looks into
	JSONRPC = "jsonrpc" // A2A's message/send, with all that is checked about it
)

// Who makes the records of TLS under the associations.
const (
	OwnTLS      = "own" // our record layer, which works in place
	StandardTLS = "std" // crypto/tls, to compare with
)

// Options say what is measured.
type Options struct {
	Scenario string `json:"scenario"`
	// Conns connections: 64, with Mixed 4, with Idle 10,000, with Notify 1. With
	// Handshake it is how many are being made at a time: 4.
	Conns int `json:"conns"`
	// InFlight requests are open on each at any time (16); of an open loop at most
	// so many are, and with Fanout it is publications on one more connection (4).
	InFlight int `json:"in_flight"`
	// Size of a request's foreign message and of its reply's, or of an event's or
	// notification's, in octets: 512, of events 256, of notifications 60.
	Size int `json:"size"`
	// LargeInFlight requests (1) of LargeSize octets (1 MiB) are open on each
	// connection besides, with Mixed. With Idle, LargeSize is the size of the burst
	// (10 MiB).
	LargeSize     int `json:"large_size,omitempty"`
	LargeInFlight int `json:"large_in_flight,omitempty"`
	// Streams on each connection (1), of Events events (1,000) each, with Stream.
	Streams int `json:"streams,omitempty"`
	Events  int `json:"events,omitempty"`
	// Buffer is how many octets of events each producer may be ahead (16 KiB), where
	// that can be said.
	Buffer int `json:"buffer,omitempty"`
	// Count of what Notify sends: 1,000,000; and how many Lone requests follow it, each
	// after a rest: 200.
	Count int `json:"count,omitempty"`
	Lone  int `json:"lone,omitempty"`
	// Burst is on how many connections, with Idle, a large message goes once to and
	// fro (100), and Quiet how long all of them then say nothing, before the first
	// reading and before the second (10 s).
	Burst int           `json:"burst,omitempty"`
	Quiet time.Duration `json:"quiet_ns,omitempty"`
	// What a server may come to with Idle, for Report.Missed: after the burst so many
	// per cent more resident memory than before it (10), and for each connection at
	// either time so many KiB (any). 0 is any.
	MostGrowth float64 `json:"most_growth_percent,omitempty"`
	MostEach   float64 `json:"most_each_kib,omitempty"`
	// Rate makes the loop an open one, with so many requests a second in all; 0 is
	// a closed loop. It is for Unary, Mixed (without the large ones) and Fanout.
	Rate float64 `json:"rate,omitempty"`
	// Duration of the measured part (10 s) after Warmup (2 s).
	Duration time.Duration `json:"duration_ns"`
	Warmup   time.Duration `json:"warmup_ns"`
	// Syscalls asks for a count of both processes' system calls too, in a second of
	// its own after what is measured; see Report.Syscalls. It is not for Notify and
	// Idle, which are not repeated.
	Syscalls bool `json:"syscalls,omitempty"`
	// Class is what the messages of Unary are.
	Class string `json:"class"`
	// Client is the shape of the client, and with Stream of the server's producers.
	Client string `json:"client"`
	// Transport under the associations: "tls" or "tcp".
	Transport string `json:"transport"`
	// TLS says whose records those of transport "tls" are: "own" or "std".
	TLS string `json:"tls"`
	// Event loops of each side; 0 is one a processor.
	ServerLoops int `json:"server_loops"`
	ClientLoops int `json:"client_loops"`
}

// What Options may name.
var (
	Scenarios  = []string{Unary, Mixed, Stream, Fanout, Notify, Handshake, Idle}
	Classes    = []string{Opaque, JSONRPC}
	Clients    = []string{Callback, Blocking}
	TLSRecords = []string{OwnTLS, StandardTLS}
	Transports = []string{engine.TransportTLS.String(), engine.TransportTCP.String()}
)

// Defaults returns a scenario's options as they are unless asked otherwise.
func Defaults(scenario string) Options {
	o := Options{
		Scenario: scenario,
		Conns:    64, InFlight: 16, Size: 512,
		Duration: 10 * time.Second, Warmup: 2 * time.Second,
		Class: Opaque, Client: Callback, Transport: engine.TransportTLS.String(), TLS: OwnTLS,
	}
	switch scenario {
	case Mixed:
		o.Conns, o.LargeSize, o.LargeInFlight = 4, 1<<20, 1
	case Stream:
		o.Size, o.InFlight, o.Streams, o.Events, o.Buffer = 256, 1, 1, 1000, 16<<10
	case Fanout:
		o.Size, o.InFlight = 256, 4
	case Notify:
		o.Size, o.Conns, o.InFlight, o.Count, o.Lone = 60, 1, 1, 1_000_000, 200
	case Handshake:
		o.Conns, o.InFlight = 4, 1
	case Idle:
		o.Conns, o.InFlight, o.LargeSize, o.Burst, o.Quiet, o.MostGrowth = 10_000, 1, 10<<20, 100, 10*time.Second, 10
	}
	return o
}

const (
	maxConns    = 1 << 16
	maxInFlight = carriage.DefaultMaxInFlight
	maxSize     = 1 << 20
	maxLarge    = 15 << 20 // less than a frame
	maxEvents   = 1 << 30
	maxRate     = 1e8
)

// Validate says what can't be measured. The error is of class ErrOptions.
func (o *Options) Validate() error {
	// What a scenario is about, it must have.
	least := func(n int, scenarios ...string) int {
		if slices.Contains(scenarios, o.Scenario) {
			return n
		}
		return 0
	}
	for _, n := range []struct {
		name      string
		value     int
		low, high int
	}{
		{"conns", o.Conns, 1, maxConns},
		{"inflight", o.InFlight, 1, maxInFlight},
		{"size", o.Size, least(stampLen, Stream, Fanout), maxSize},
		{"large-size", o.LargeSize, least(1, Mixed), maxLarge},
		{"large-inflight", o.LargeInFlight, least(1, Mixed), maxInFlight},
		{"streams", o.Streams, least(1, Stream), maxInFlight},
		{"events", o.Events, least(1, Stream), maxEvents},
		{"buffer", o.Buffer, 0, maxLarge},
		{"count", o.Count, least(1, Notify), maxEvents},
		{"lone", o.Lone, 0, maxEvents},
		{"burst", o.Burst, 0, maxConns},
		{"server-loops", o.ServerLoops, 0, 1024},
		{"client-loops", o.ClientLoops, 0, 1024},
	} {
		if n.value < n.low || n.value > n.high {
			return fmt.Errorf("%w: %s is %d, must be %d to %d", ErrOptions, n.name, n.value, n.low, n.high)
		}
	}
	if o.Duration <= 0 || o.Warmup < 0 || o.Quiet < 0 {
		return fmt.Errorf("%w: duration %v, warmup %v, quiet %v", ErrOptions, o.Duration, o.Warmup, o.Quiet)
	}
	if !(o.MostGrowth >= 0) || !(o.MostEach >= 0) {
		return fmt.Errorf("%w: at most %v per cent more, at most %v KiB each", ErrOptions, o.MostGrowth, o.MostEach)
	}
	if o.Rate < 0 || o.Rate > maxRate || o.Rate != o.Rate {
		return fmt.Errorf("%w: rate is %v, must be 0 to %v", ErrOptions, o.Rate, maxRate)
	}
	if o.Rate > 0 && o.Scenario != Unary && o.Scenario != Mixed && o.Scenario != Fanout {
		return fmt.Errorf("%w: %s has no rate", ErrOptions, o.Scenario)
	}
	if o.InFlight+o.LargeInFlight > maxInFlight {
		return fmt.Errorf("%w: more than %d requests in flight on a connection", ErrOptions, maxInFlight)
	}
	for _, c := range []struct {
		name, value string
		known       []string
	}{{"scenario", o.Scenario, Scenarios}, {"class", o.Class, Classes}, {"client", o.Client, Clients}, {"transport", o.Transport, Transports}, {"tls", o.TLS, TLSRecords}} {
		if !slices.Contains(c.known, c.value) {
			return fmt.Errorf("%w: %s is %q, must be one of %s", ErrOptions, c.name, c.value, strings.Join(c.known, ", "))
		}
	}
	if o.Syscalls && (o.Scenario == Notify || o.Scenario == Idle) {
		return fmt.Errorf("%w: system calls of %s are not counted", ErrOptions, o.Scenario)
	}
	if o.TLS != OwnTLS && o.transport() != engine.TransportTLS {
		return fmt.Errorf("%w: transport %s has no records of TLS", ErrOptions, o.Transport)
	}
	if o.Class == JSONRPC && o.Scenario != Unary {
		return fmt.Errorf("%w: the messages of %s are opaque", ErrOptions, o.Scenario)
	}
	if shortest := len(jsonMessage("request", 0)); o.Class == JSONRPC && o.Size < shortest {
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

// under is what is under the associations, in words.
func (o *Options) under() string {
	if o.TLS == StandardTLS {
		return o.Transport + " by crypto/tls"
	}
	return o.Transport
}

// Load says what the load is, in words.
func (o *Options) Load() string {
	loop := "closed loop"
	if o.Rate > 0 {
		loop = fmt.Sprintf("open loop, %.0f requests/s", o.Rate)
	}
	switch o.Scenario {
	case Mixed:
		return fmt.Sprintf("%d connections x %d in flight, %d octets, beside %d of %d octets, %s", o.Conns, o.InFlight, o.Size, o.LargeInFlight, o.LargeSize, loop)
	case Stream:
		return fmt.Sprintf("%d connections x %d streams of %d events, %d octets", o.Conns, o.Streams, o.Events, o.Size)
	case Fanout:
		return fmt.Sprintf("%d subscribers, %d octets, %d publications in flight, %s", o.Conns, o.Size, o.InFlight, loop)
	case Notify:
		return fmt.Sprintf("%d notifications of %d octets over %d connections", o.Count, o.Size, o.Conns)
	case Handshake:
		return fmt.Sprintf("%d at a time", o.Conns)
	case Idle:
		return fmt.Sprintf("%d connections, a burst of %d octets on %d of them", o.Conns, o.LargeSize, o.Burst)
	}
	return fmt.Sprintf("%d connections x %d in flight, %d octets, %s", o.Conns, o.InFlight, o.Size, loop)
}
