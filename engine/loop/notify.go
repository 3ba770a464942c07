package loop

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// notifier tells loops that a socket takes octets again. gnet drains its
// outbound buffer by itself but tells nobody, so a second descriptor of the
// socket waits here, armed for one event at a time.
type notifier struct {
	poll   poller
	mu     sync.Mutex
	links  map[int32]*link // by the watched descriptor
	closed bool
	done   chan struct{}
}

// watch is one link's part of it, guarded by the notifier's mutex but for armed.
type watch struct {
	fd    int // duplicate of the socket, -1 before the first arm
	added bool
	armed atomic.Bool
}

func newNotifier() (*notifier, error) {
	n := &notifier{links: make(map[int32]*link), done: make(chan struct{})}
	if err := n.poll.open(); err != nil {
		return nil, err
	}
	go n.run()
	return n, nil
}

// arm asks for one wake-up of k when its socket is writable. Loop only.
func (n *notifier) arm(k *link) error {
	if !k.watch.armed.CompareAndSwap(false, true) {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return ErrGroupClosed
	}
	if k.watch.fd < 0 {
		fd, err := k.c.Dup()
		if err != nil {
			k.watch.armed.Store(false)
			return err
		}
		k.watch.fd = fd
		n.links[int32(fd)] = k
	}
	err := n.poll.arm(k.watch.fd, k.watch.added)
	if err != nil {
		k.watch.armed.Store(false)
		return err
	}
	k.watch.added = true
	return nil
}

// remove forgets k; its socket is about to be closed. Loop only.
func (n *notifier) remove(k *link) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if k.watch.fd < 0 {
		return
	}
	delete(n.links, int32(k.watch.fd))
	n.poll.remove(k.watch.fd)
	_ = unix.Close(k.watch.fd)
	k.watch.fd = -1
}

func (n *notifier) run() {
	defer close(n.done)
	var fds [64]int32
	for {
		ready, stop := n.poll.wait(fds[:])
		for _, fd := range ready {
			n.mu.Lock()
			k := n.links[fd]
			n.mu.Unlock()
			if k == nil {
				continue // closed since
			}
			k.watch.armed.Store(false)
			k.Wake()
		}
		if stop {
			return
		}
	}
}

// close ends the goroutine and waits for it.
func (n *notifier) close() {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return
	}
	n.closed = true
	n.mu.Unlock()
	n.poll.stop()
	<-n.done
	n.poll.close()
}
