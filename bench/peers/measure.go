package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/trestle-npamp/trestle/bench"
)

// turn is a peer under measurement: its server's process, and its client.
type turn struct {
	peer    *peer
	o       bench.Options
	server  *bench.Peer
	load    *bench.Load
	samples []*bench.Sample
	memory  *bench.Memory
	err     error
}

// measure runs all scenarios.
func (p *plan) measure(ctx context.Context, progress io.Writer) (*result, error) {
	r := &result{Machine: bench.ThisMachine(), Rounds: p.rounds, Slice: p.slice, Loops: p.loops}
	begun := time.Now()
	for i, s := range p.scenarios {
		rate := 0.0
		if s.share > 0 {
			best := r.best(s.of)
			if best == 0 {
				fmt.Fprintf(progress, "peers: %s is left out: it needs %s\n", s.name, s.of)
				continue
			}
			rate = s.share * best
		}
		fmt.Fprintf(progress, "peers: %4.0fs %s: %s\n", time.Since(begun).Seconds(), s.name, s.what)
		var until time.Time // each scenario has a share of the budget
		if p.budget > 0 {
			until = begun.Add(p.budget * time.Duration(i+1) / time.Duration(len(scenarios)-1)) // idle is the last and has its own
		}
		one, err := p.scenario(ctx, s, rate, until, progress)
		if err != nil {
			return nil, err
		}
		r.Scenarios = append(r.Scenarios, one)
	}
	r.Took = time.Since(begun).Round(100 * time.Millisecond)
	r.goals()
	return r, nil
}

// again is how many times longer a turn is in which nothing was seen the first time.
const again = 4

// between is what lies between two turns: what is in flight ends.
const between = 10 * time.Millisecond

// scenario measures all peers in turns, a few times. Where there is a time at which
// it should be over, turns are as short as that wants.
func (p *plan) scenario(ctx context.Context, s *scenario, rate float64, until time.Time, progress io.Writer) (*outcome, error) {
	var turns []*turn
	begun := time.Now()
	var connected, measured time.Duration
	defer func() {
		for _, t := range turns {
			if err := t.end(); err != nil {
				fmt.Fprintf(progress, "peers: %s: %v\n", t.peer.name, err)
			}
		}
		fmt.Fprintf(progress, "peers:       %.1fs to connect, %.1fs of turns, %.1fs to end\n", connected.Seconds(), (measured - connected).Seconds(), (time.Since(begun) - measured).Seconds())
	}()
	var wg sync.WaitGroup
	for _, of := range p.peers {
		if slices.Contains(of.not, s.kind) {
			continue
		}
		t := &turn{peer: of, o: s.options(p, of, rate)}
		turns = append(turns, t)
		if s.kind != bench.Idle {
			t.err = t.begin(ctx)
			continue
		}
		wg.Go(func() { t.err = t.begin(ctx) }) // they are quiet together
	}
	wg.Wait()
	for _, t := range turns {
		if t.err != nil {
			fmt.Fprintf(progress, "peers: %s: %v\n", t.peer.name, t.err)
		}
	}
	connected = time.Since(begun)
	defer func() { measured = time.Since(begun) }()
	rounds := p.rounds
	if s.kind == bench.Idle {
		rounds = 0 // all of it was done in the beginning
	}
	slice := p.slice
	if count := time.Duration(rounds * len(turns)); count > 0 && !until.IsZero() {
		slice = min(slice, max(time.Until(until)/count-p.warmup-between, shortest))
	}
	for round := range rounds {
		for i := range turns {
			// Who comes first changes, since the first may find another machine.
			t := turns[(i+round)%len(turns)]
			if t.err != nil {
				continue
			}
			t.load.Last(slice)
			sample, err := t.load.Run(ctx, t.server, io.Discard)
			if err == nil && sample.Main.Good == 0 { // too short for what takes so long here
				t.load.Last(again * slice)
				sample, err = t.load.Run(ctx, t.server, io.Discard)
			}
			if err != nil {
				t.err = err
				fmt.Fprintf(progress, "peers: %s: %v\n", t.peer.name, err)
				continue
			}
			t.samples = append(t.samples, sample)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return outcomeOf(s, rate, slice, turns), nil
}

// begin starts the server and connects; what is measured only once is measured.
func (t *turn) begin(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(t.o)
	if err != nil {
		return err
	}
	if t.server, err = bench.StartPeer(ctx, os.Stderr, self, "serve", t.peer.name, string(text)); err != nil {
		return err
	}
	target, err := t.peer.reach(t.o, t.server.Hello)
	if err != nil {
		return err
	}
	if t.o.Scenario == bench.Idle {
		t.memory, err = bench.IdleMemory(ctx, t.o, target, t.server, io.Discard)
		return errors.Join(err, target.Close())
	}
	t.load, err = bench.NewLoad(ctx, t.o, target)
	return err
}

// end stops the client and the server.
func (t *turn) end() error {
	var err error
	if t.load != nil && t.err == nil { // otherwise something may hang
		err = t.load.Close()
		if fault := t.load.Fault(); fault != nil {
			err = errors.Join(err, fmt.Errorf("the first fault: %w", fault))
		}
	}
	if t.server != nil {
		err = errors.Join(err, t.server.Close())
	}
	return err
}
