package relay

import (
	"net"
	"sync"
)

// limitConns is l with at most n connections open at a time: the next one is
// accepted when one of them is closed.
func limitConns(l net.Listener, n int) net.Listener {
	return &limited{Listener: l, places: make(chan struct{}, n), closed: make(chan struct{})}
}

type limited struct {
	net.Listener
	places chan struct{}
	closed chan struct{}
	once   sync.Once
}

func (l *limited) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	conn, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &placed{Conn: conn, l: l}, nil
}

func (l *limited) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// placed is a connection that holds a place until it is closed.
type placed struct {
	net.Conn
	l    *limited
	once sync.Once
}

func (c *placed) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { <-c.l.places })
	return err
}

// CloseWrite lets the HTTP server end its side first, so that a caller that is
// still sending reads its answer instead of a reset.
func (c *placed) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}

// SetLinger lets the edge break a connection whose mere end would be misread.
func (c *placed) SetLinger(sec int) error {
	if l, ok := c.Conn.(interface{ SetLinger(sec int) error }); ok {
		return l.SetLinger(sec)
	}
	return nil
}
