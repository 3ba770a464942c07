//go:build darwin || freebsd

package loop

import (
	"errors"

	"golang.org/x/sys/unix"
)

// poller is a kqueue for one-shot write readiness, with a pipe to end it.
type poller struct {
	kq     int
	pipe   [2]int
	events [64]unix.Kevent_t
}

func (p *poller) open() error {
	kq, err := unix.Kqueue()
	if err != nil {
		return err
	}
	unix.CloseOnExec(kq)
	var fds [2]int
	if err := unix.Pipe(fds[:]); err != nil {
		_ = unix.Close(kq)
		return err
	}
	unix.CloseOnExec(fds[0])
	unix.CloseOnExec(fds[1])
	p.kq, p.pipe = kq, fds
	if err := p.change(fds[0], unix.EVFILT_READ, unix.EV_ADD); err != nil {
		p.close()
		return err
	}
	return nil
}

func (p *poller) change(fd, filter, flags int) error {
	var ev [1]unix.Kevent_t
	unix.SetKevent(&ev[0], fd, filter, flags)
	_, err := unix.Kevent(p.kq, ev[:], nil, nil)
	return err
}

func (p *poller) arm(fd int, _ bool) error {
	return p.change(fd, unix.EVFILT_WRITE, unix.EV_ADD|unix.EV_ONESHOT)
}

func (p *poller) remove(fd int) { _ = p.change(fd, unix.EVFILT_WRITE, unix.EV_DELETE) }

// wait blocks until something is ready and tells whether stop was called.
func (p *poller) wait(fds []int32) (ready []int32, stop bool) {
	n, err := unix.Kevent(p.kq, nil, p.events[:], nil)
	if err != nil {
		return nil, !errors.Is(err, unix.EINTR)
	}
	ready = fds[:0]
	for i := range p.events[:n] {
		fd := int(p.events[i].Ident)
		if fd == p.pipe[0] {
			stop = true
			continue
		}
		ready = append(ready, int32(fd))
	}
	return ready, stop
}

func (p *poller) stop() { _, _ = unix.Write(p.pipe[1], []byte{1}) }

func (p *poller) close() {
	_ = unix.Close(p.pipe[0])
	_ = unix.Close(p.pipe[1])
	_ = unix.Close(p.kq)
}
