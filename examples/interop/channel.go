package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// handler serves the channel of every association.
type handler struct {
	o   *options
	out *log.Logger
}

// Channel implements engine.ChannelHandler.
func (h *handler) Channel() wire.Channel { return h.o.channel }

// Attach implements engine.ChannelHandler: an association stands.
func (h *handler) Attach(a *engine.Association) engine.ChannelConn {
	h.out.Printf("association with %v, key %v (%s), profile %s, suite %v", a.RemoteAddr(), a.PeerKey(), a.PeerKey().Handle(), a.Profile().Name, a.Suite())
	c := &channel{handler: h, a: a}
	if h.o.dial != "" {
		c.echoes = make(chan []byte, h.o.window)
	}
	return c
}

// channel serves it of one. The association's loop calls its methods, which
// therefore must not wait.
type channel struct {
	*handler
	a      *engine.Association
	echoes chan []byte // nil where we listen
	frames int
	octets int
}

// HandleFrame implements engine.ChannelConn. p is the frame's plaintext and is
// ours only until we return.
func (c *channel) HandleFrame(t wire.FrameType, p []byte) {
	c.frames++
	c.octets += len(p)
	if c.o.verbose {
		c.out.Printf("frame on %v, type 0x%04x, %d octets", c.o.channel, uint16(t), len(p))
	}
	if c.echoes != nil {
		select {
		case c.echoes <- bytes.Clone(p):
		default: // more than we asked for
			c.a.Close(control.CodeProtocol, "unexpected frame")
		}
		return
	}
	b, err := c.a.Begin(c.o.channel, t, len(p))
	if err == nil {
		err = c.a.End(append(b, p...))
	}
	if err != nil { // the peer does not read its echoes, or takes no frame of this size
		c.a.Close(control.CodeLimit, err.Error())
		return
	}
	if c.o.keyUpdates+c.o.ratchets+c.o.rekems > 0 {
		n := c.frames
		go func() { // renew waits for the loop, on which we are
			if err := c.renew(context.Background(), n); err != nil {
				c.out.Printf("after %d frames: %v", n, err)
			}
		}()
	}
}

// renew changes the keys that the flags want changed after n frames.
func (c *channel) renew(ctx context.Context, n int) error {
	for _, change := range []struct {
		every int
		name  string
		make  func() error
	}{
		{c.o.keyUpdates, "KEY_UPDATE", func() error { return c.a.UpdateKey(ctx, c.o.channel) }},
		{c.o.ratchets, "MASTER_RATCHET", func() error { return c.a.Ratchet(ctx) }},
		{c.o.rekems, "REKEM", func() error { return c.a.Rekem(ctx) }},
	} {
		if change.every == 0 || n%change.every != 0 {
			continue
		}
		switch err := change.make(); {
		case errors.Is(err, engine.ErrRate): // more often than peers put up with
		case errors.Is(err, engine.ErrRekemCrossed): // the peer's own step was faster
		case errors.Is(err, engine.ErrClosed): // whoever sends next is told why
		case err != nil:
			return fmt.Errorf("%s: %w", change.name, err)
		}
	}
	return nil
}

// HandleHello implements engine.ChannelConn.
func (c *channel) HandleHello(h *control.Hello) {
	c.out.Printf("HELLO: channels %v, protocols %v, frames up to %d octets", h.Channels, h.Protocols, h.MaxMessage)
}

// HandleRoom, HandleDrain and Busy implement engine.ChannelConn: nothing waits
// here, and nothing has to be finished.
func (c *channel) HandleRoom()  {}
func (c *channel) HandleDrain() {}
func (c *channel) Busy() int    { return 0 }

// HandleClose implements engine.ChannelConn.
func (c *channel) HandleClose(err error) {
	c.out.Printf("association with %v ended after %d frames, %d octets: %v", c.a.RemoteAddr(), c.frames, c.octets, err)
}
