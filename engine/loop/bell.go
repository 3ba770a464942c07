package loop

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/panjf2000/gnet/v2"
	"golang.org/x/sys/unix"
)

// bell lets a loop remind itself of work in such a way that its sockets come first:
// it is one of them. gnet runs tasks, those too that tasks or other goroutines post
// meanwhile, until there are none, before it looks at a socket again. So a loop that
// has done enough leaves everything but its sockets alone until its bell is heard:
// other goroutines find that work waits already and post no task, and the tasks end.
type bell struct {
	l    *eventLoop // set at OnOpen
	rope int        // the other end
}

// ring is the other end of the loop's bell. Loop only.
func (l *eventLoop) ring() {
	if !l.rung {
		_, err := unix.Write(l.rope, []byte{0})
		l.rung = err == nil // otherwise the next tick rings again
	}
}

// hang runs on the loop whose bell it becomes.
func (b *bell) hang(l *eventLoop) { b.l, l.rope = l, b.rope }

// heard runs on the loop when its bell was rung.
func (b *bell) heard(c gnet.Conn) {
	_, _ = c.Next(-1)
	l := b.l
	l.rung = false
	l.looked()
	l.enter()
	l.leave()
}

// hangBells gives each of n loops its bell, before anything else is enrolled: gnet
// picks the loop with the fewest connections.
func (g *Group) hangBells(n int) error {
	for range n {
		end, rope, err := pair()
		if err != nil {
			return fmt.Errorf("loop: bell: %w", err)
		}
		g.ropes = append(g.ropes, rope)
		if _, err = g.client.EnrollContext(end, &bell{rope: rope}); err != nil {
			return fmt.Errorf("loop: bell: %w", err)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.loops) != n {
		return errors.New("loop: bell: not every loop got one")
	}
	return nil
}

// pair makes two connected sockets, the second of which does not block.
func pair() (net.Conn, int, error) {
	syscall.ForkLock.RLock()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(fds[0])
		unix.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, -1, err
	}
	f := os.NewFile(uintptr(fds[0]), "bell")
	c, err := net.FileConn(f)
	_ = f.Close()
	if err == nil {
		err = unix.SetNonblock(fds[1], true)
	}
	if err != nil {
		_ = unix.Close(fds[1])
		if c != nil {
			_ = c.Close()
		}
		return nil, -1, err
	}
	return c, fds[1], nil
}

// dropBells is called when the loops have stopped.
func (g *Group) dropBells() {
	for _, fd := range g.ropes {
		_ = unix.Close(fd)
	}
	g.ropes = nil
}
