package main

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/trestle-npamp/trestle/bench"
)

// closers are what a client has to close at its end.
type closers struct {
	mu  sync.Mutex
	all map[io.Closer]struct{}
}

func (c *closers) add(x io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = make(map[io.Closer]struct{})
	}
	c.all[x] = struct{}{}
}

func (c *closers) remove(x io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, x)
}

func (c *closers) close() (err error) {
	c.mu.Lock()
	left := make([]io.Closer, 0, len(c.all))
	for x := range c.all {
		left = append(left, x)
	}
	c.mu.Unlock()
	for _, x := range left {
		err = errors.Join(err, x.Close())
	}
	return err
}

// countingListener counts the connections of a server that has no count of its own.
type countingListener struct {
	net.Listener
	n atomic.Uint64
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

// or is what a server has handled: connections where those are what is measured.
func (l *countingListener) or(o bench.Options, c *bench.Counter) func() uint64 {
	if o.Scenario == bench.Handshake || o.Scenario == bench.Idle {
		return l.n.Load
	}
	return c.Sum
}
