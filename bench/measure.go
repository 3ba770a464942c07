package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Measure runs a scenario against the server that t reaches, and closes t. Lines
// of progress go to progress.
//
// Errors: of class ErrOptions, ErrLoad or ErrTrace; the context's; the server's; or what
// kept the client from connecting.
func Measure(ctx context.Context, o Options, t Target, server Server, progress io.Writer) (*Report, error) {
	if err := o.Validate(); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	switch o.Scenario {
	case Idle:
		m, err := IdleMemory(ctx, o, t, server, progress)
		if err := errors.Join(err, t.Close()); err != nil {
			return nil, err
		}
		return &Report{Options: o, Shape: o.Client, Machine: ThisMachine(), Requests: uint64(m.Connections), Memory: m}, nil
	case Notify:
		s, err := Notifications(ctx, o, t, server, progress)
		if err := errors.Join(err, t.Close()); err != nil {
			return nil, err
		}
		return reportOf(o, Blocking, s), nil
	}
	l, err := NewLoad(ctx, o, t)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	fmt.Fprintf(progress, "bench: %s: %s; warming up for %v\n", o.Scenario, o.Load(), o.Warmup)
	s, err := l.Run(ctx, server, progress)
	var calls *Syscalls
	if err == nil && o.Syscalls && s.Main.Good > 0 {
		calls, err = l.count(ctx, server, progress)
	}
	if err := errors.Join(err, l.Close()); err != nil {
		return nil, err
	}
	if s.Main.Good == 0 {
		if fault := l.Fault(); fault != nil {
			return nil, fmt.Errorf("%w: %w", ErrLoad, fault)
		}
		if s.Unsent == 0 {
			return nil, fmt.Errorf("%w in %v", ErrLoad, s.Elapsed)
		}
	}
	r := reportOf(o, l.Shape(), s)
	r.Syscalls = calls
	return r, nil
}

// warmers are how many connections come and go before an empty server's memory is
// read, so that what is loaded and made once is not taken for the connections'.
const warmers = 128

// IdleMemory measures what idle connections cost the server: Options.Conns are
// made, a request each, and say nothing for Options.Quiet; then a large message
// goes to and fro once on Options.Burst of them, and all are quiet again.
func IdleMemory(ctx context.Context, o Options, t Target, server Server, progress io.Writer) (*Memory, error) {
	warm, err := dial(ctx, t, min(warmers, o.Conns))
	if err == nil {
		err = once(ctx, warm, Plain)
	}
	for _, c := range warm {
		if c != nil {
			err = errors.Join(err, c.Close())
		}
	}
	if err != nil {
		return nil, err
	}
	base, err := settle(server)
	if err != nil {
		return nil, err
	}
	conns, err := dial(ctx, t, o.Conns)
	if err == nil {
		err = once(ctx, conns, Plain)
	}
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(progress, "bench: %d connections stand; quiet for %v\n", o.Conns, o.Quiet)
	begun, err := server.Usage()
	if err != nil {
		return nil, err
	}
	start := time.Now()
	before, err := quiet(ctx, o, server)
	if err != nil {
		return nil, err
	}
	used, shares := before.asItWas.Sub(begun), float64(o.Conns)*time.Since(start).Seconds()
	if o.Burst > 0 && o.LargeSize > 0 {
		burst := conns[:min(o.Burst, len(conns))]
		if err := once(ctx, burst, Large); err != nil {
			return nil, err
		}
		fmt.Fprintf(progress, "bench: a burst of %d octets on %d of them; quiet for %v\n", o.LargeSize, len(burst), o.Quiet)
	}
	after, err := quiet(ctx, o, server)
	if err != nil {
		return nil, err
	}
	if err := once(ctx, conns, Plain); err != nil {
		return nil, fmt.Errorf("bench: connections are lost: %w", err)
	}
	return &Memory{
		Connections:   o.Conns,
		Before:        kib(before.asItWas, base, o.Conns),
		SettledBefore: kib(before.settled, base, o.Conns),
		After:         kib(after.asItWas, base, o.Conns),
		SettledAfter:  kib(after.settled, base, o.Conns),
		CPU:           rounded(float64(used.CPU())/float64(time.Microsecond)/shares, 3),
		Allocs:        rounded(float64(used.Allocs)/shares, 4),
		Base:          kib(base, Usage{}, 1),
		Growth:        growth(after.settled, before.settled),
		GrowthAsItWas: growth(after.asItWas, before.asItWas),
		Goroutines:    [3]int64{base.Goroutines, before.settled.Goroutines, after.settled.Goroutines},
	}, nil
}

// reading is what a server had used, before and after it collected its garbage.
type reading struct{ asItWas, settled Usage }

// quiet waits and then reads.
func quiet(ctx context.Context, o Options, server Server) (r reading, err error) {
	if err = pause(ctx, o.Quiet); err != nil {
		return r, err
	}
	if r.asItWas, err = server.Usage(); err != nil {
		return r, err
	}
	r.settled, err = settle(server)
	return r, err
}

// settle reads what a server makes use of.
func settle(server Server) (Usage, error) {
	u, err := server.Settle()
	u.Resident -= u.Free
	return u, err
}

func growth(after, before Usage) float64 {
	if before.Resident == 0 {
		return 0
	}
	return rounded(float64(after.Resident)/float64(before.Resident), 3)
}

func kib(u, base Usage, conns int) float64 {
	return rounded(float64(u.Resident-base.Resident)/1024/float64(conns), 2)
}

// dial makes connections. Those that were made are returned also with an error.
func dial(ctx context.Context, t Target, n int) ([]Conn, error) {
	conns := make([]Conn, n)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(dialling)
	for i := range conns {
		g.Go(func() error {
			c, err := t.Dial(ctx)
			if err != nil {
				return fmt.Errorf("bench: connection %d of %d: %w", i+1, n, err)
			}
			conns[i] = c
			return nil
		})
	}
	return conns, g.Wait()
}

// bursting bounds how many large messages are under way at a time.
const bursting = 4

// once makes one request on each connection.
func once(ctx context.Context, conns []Conn, m Message) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(bursting)
	for _, c := range conns {
		g.Go(func() error { return c.Call(ctx, m) })
	}
	return g.Wait()
}

const (
	// Lone requests have a rest before each, among the notifications and after them.
	amongRest = time.Millisecond
	loneRest  = 5 * time.Millisecond
	// polling is how often the server is asked how far it is.
	polling = 2 * time.Millisecond
)

// Notifications sends Options.Count notifications over Options.Conns connections,
// from Options.InFlight goroutines on each, as fast as they are taken, and waits
// until the server has them all. The server counts nothing else. Meanwhile requests
// are made on the first connection, one at a time, whose times are Sample.Among; and
// then Options.Lone of them with a rest before each, whose times are Sample.Beside:
// batches must not hold back a message that has nobody to travel with. How slow the
// machine is just then is Sample.Bare.
func Notifications(ctx context.Context, o Options, t Target, server Server, progress io.Writer) (*Sample, error) {
	conns, err := dial(ctx, t, o.Conns)
	if err != nil {
		return nil, err
	}
	own := newSampler()
	defer own.close()
	if _, err := own.read(); err != nil {
		return nil, err
	}
	before, err := server.Usage()
	if err != nil {
		return nil, err
	}
	ownBefore, err := own.read()
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(progress, "bench: %s: %s\n", o.Scenario, o.Load())
	start := time.Now()
	var taken atomic.Int64
	g, gctx := errgroup.WithContext(ctx)
	for _, c := range conns {
		nc, ok := c.(NotifyConn)
		if !ok {
			return nil, fmt.Errorf("%w: this client has no %s", ErrOptions, o.Scenario)
		}
		for range o.InFlight {
			g.Go(func() error {
				for taken.Add(1) <= int64(o.Count) {
					if err := nc.Notify(gctx); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	s := new(Sample)
	actx, enough := context.WithCancel(ctx)
	defer enough()
	var among sync.WaitGroup
	among.Go(func() {
		for actx.Err() == nil {
			// Those that have begun are finished.
			s.Among.take(func() error { return conns[0].Call(ctx, Plain) })
			_ = pause(actx, amongRest)
		}
	})
	err = g.Wait()
	enough()
	among.Wait()
	if err != nil {
		return nil, err
	}
	// What has been sent is under way; a server that has no processor for a while
	// takes nothing for as long.
	const quiet = 5 * time.Second
	moved := time.Now()
	for s.Main.Good < uint64(o.Count) {
		if err := pause(ctx, polling); err != nil {
			return nil, err
		}
		u, err := server.Usage()
		if err != nil {
			return nil, err
		}
		s.Server = u.Sub(before)
		if s.Server.Handled > s.Main.Good {
			moved = time.Now()
		} else if time.Since(moved) > quiet {
			s.Main.Bad = uint64(o.Count) - s.Main.Good // nothing more comes
			break
		}
		s.Main.Good = s.Server.Handled
	}
	s.Elapsed = time.Since(start)
	ownAfter, err := own.read()
	if err != nil {
		return nil, err
	}
	s.Client = ownAfter.Sub(ownBefore)
	if s.Main.Good == 0 {
		return nil, fmt.Errorf("%w: no notification arrived", ErrLoad)
	}
	for range o.Lone {
		if err := pause(ctx, loneRest); err != nil {
			return nil, err
		}
		s.Beside.take(func() error { return conns[0].Call(ctx, Plain) })
		if err := pause(ctx, loneRest); err != nil {
			return nil, err
		}
		s.Bare.take(func() error { _, err := server.Usage(); return err })
	}
	return s, nil
}

// take counts f, and how long it takes.
func (p *Part) take(f func() error) {
	begun := time.Now()
	if f() != nil {
		p.Bad++
		return
	}
	p.times().record(time.Since(begun))
	p.Good++
}
