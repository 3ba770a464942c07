package main

import (
	"slices"

	"github.com/trestle-npamp/trestle/bench"
)

// scenario is one kind of load, which all peers get.
type scenario struct {
	name string
	what string
	make func(o *bench.Options)
	kind string // bench's name of it
	// share of the best protocol's rate in the scenario of, offered to all alike in
	// an open loop.
	share float64
	of    string
}

var scenarios = []*scenario{
	{name: "unary-batch", kind: bench.Unary, what: "requests of 512 octets, 64 connections x 16 in flight; callbacks where the client has them", make: func(o *bench.Options) {}},
	{name: "unary-calls", kind: bench.Unary, what: "the same, a goroutine for each request in flight", make: func(o *bench.Options) { o.Client = bench.Blocking }},
	{name: "lone-batch", kind: bench.Unary, what: "one request at a time on one connection; callbacks where the client has them", make: lone},
	{name: "lone-calls", kind: bench.Unary, what: "one request at a time on one connection, by a goroutine", make: func(o *bench.Options) { lone(o); o.Client = bench.Blocking }},
	{name: "offered", kind: bench.Unary, what: "70 % of what the best protocol could, offered to all in an open loop; a goroutine for each request", make: func(o *bench.Options) { o.Client = bench.Blocking }, share: 0.7, of: "unary-calls"},
	{name: "mixed", kind: bench.Mixed, what: "requests of 512 octets, 4 connections x 16 in flight, while one of 256 KiB is in flight on each; a goroutine for each request; figures are of the small ones, costs of both", make: func(o *bench.Options) { o.LargeSize, o.Client = 256<<10, bench.Blocking }},
	{name: "stream-64", kind: bench.Stream, what: "64 streams of events of 256 octets, one on each of 64 connections", make: func(o *bench.Options) {}},
	{name: "stream-1", kind: bench.Stream, what: "the same 64 streams on one connection", make: func(o *bench.Options) { o.Conns, o.Streams = 1, 64 }},
	{name: "fanout", kind: bench.Fanout, what: "each event of 256 octets to 64 subscribers, one a connection", make: func(o *bench.Options) {}},
	{name: "handshake", kind: bench.Handshake, what: "connections made and ended, four at a time", make: func(o *bench.Options) {}},
	{name: "idle", kind: bench.Idle, what: "memory of connections that say nothing, before and after a burst of 1 MiB on a tenth of them", make: func(o *bench.Options) { o.LargeSize = 1 << 20 }},
}

func lone(o *bench.Options) { o.Conns, o.InFlight = 1, 1 }

// options are what one peer is measured with, at a rate if there is one.
func (s *scenario) options(p *plan, of *peer, rate float64) bench.Options {
	o := bench.Defaults(s.kind)
	o.Duration, o.Warmup = p.slice, p.warmup
	o.ServerLoops, o.ClientLoops = p.loops, p.loops
	s.make(&o)
	if p.events > 0 {
		o.Events = min(o.Events, p.events)
	}
	if p.small {
		o.Conns, o.InFlight, o.Streams, o.Events = min(o.Conns, 2), min(o.InFlight, 2), min(o.Streams, 2), min(o.Events, 50)
	}
	o.Rate = rate
	if s.kind == bench.Idle {
		o.Conns, o.Burst, o.Quiet = p.idle, max(1, p.idle/10), p.quiet
	}
	if !slices.Contains(of.shapes, o.Client) {
		o.Client = of.shapes[0]
	}
	if of.transport != "" {
		o.Transport = of.transport
	}
	if of.tls != "" {
		o.TLS = of.tls
	}
	return o
}
