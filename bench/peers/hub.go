package main

import (
	"context"
	"sync"
)

// hub is the fan-out of servers that have none of their own: a bounded channel a
// subscriber, for which the publisher waits.
type hub struct {
	mu   sync.RWMutex
	subs map[*subscriber]struct{}
}

type subscriber struct {
	events chan []byte
	gone   <-chan struct{}
}

// waiting is how many events wait for one subscriber.
const waiting = 256

// join adds a subscriber until gone is closed; leave must follow.
func (h *hub) join(gone <-chan struct{}) *subscriber {
	s := &subscriber{events: make(chan []byte, waiting), gone: gone}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.subs == nil {
		h.subs = make(map[*subscriber]struct{})
	}
	h.subs[s] = struct{}{}
	return s
}

func (h *hub) leave(s *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subs, s)
}

// publish hands event, which nobody changes any more, to all and says to how many.
func (h *hub) publish(ctx context.Context, event []byte) (n uint64, err error) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for s := range h.subs {
		select {
		case s.events <- event:
			n++
		case <-s.gone:
		case <-ctx.Done():
			return n, ctx.Err()
		}
	}
	return n, nil
}
