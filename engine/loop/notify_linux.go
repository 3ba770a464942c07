package loop

import (
	"errors"

	"golang.org/x/sys/unix"
)

// poller is an epoll instance for one-shot write readiness, with an eventfd to
// end it.
type poller struct {
	ep, wake int
	events   [64]unix.EpollEvent
}

func (p *poller) open() error {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		err = unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wake)})
		if err != nil {
			_ = unix.Close(wake)
		}
	}
	if err != nil {
		_ = unix.Close(ep)
		return err
	}
	p.ep, p.wake = ep, wake
	return nil
}

func (p *poller) arm(fd int, again bool) error {
	op := unix.EPOLL_CTL_ADD
	if again {
		op = unix.EPOLL_CTL_MOD
	}
	return unix.EpollCtl(p.ep, op, fd, &unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLONESHOT, Fd: int32(fd)})
}

func (p *poller) remove(fd int) { _ = unix.EpollCtl(p.ep, unix.EPOLL_CTL_DEL, fd, nil) }

// wait blocks until something is ready and tells whether stop was called.
func (p *poller) wait(fds []int32) (ready []int32, stop bool) {
	n, err := unix.EpollWait(p.ep, p.events[:], -1)
	if err != nil {
		return nil, !errors.Is(err, unix.EINTR)
	}
	ready = fds[:0]
	for _, ev := range p.events[:n] {
		if int(ev.Fd) == p.wake {
			stop = true
			continue
		}
		ready = append(ready, ev.Fd)
	}
	return ready, stop
}

func (p *poller) stop() {
	_, _ = unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

func (p *poller) close() {
	_ = unix.Close(p.wake)
	_ = unix.Close(p.ep)
}
