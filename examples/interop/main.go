// Command interop makes one association with another implementation of N-PAMP and
// sends frames to and fro on one channel. Start it against your own:
//
//	interop --listen 127.0.0.1:47700              # echoes every frame
//	interop --dial 127.0.0.1:47700 --count 3      # sends frames, checks the echoes
//
// or start both lines to see it talk to itself. What a peer must do for this: the
// handshake at the Standard profile, and frames on channel Memory (--channel),
// type 0x0120 (--type). It needs to know no HELLO; with --hello we send ours.
//
// The transport is TCP with TLS 1.3 and ALPN "n-pamp/2", or, with --transport tcp,
// the frames alone. A peer on this machine may have any key, another must have
// the one given with --pin.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		os.Exit(2) // package flag has said why
	case err != nil:
		fmt.Fprintln(os.Stderr, "interop:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("wrong usage")

// options are the command line.
type options struct {
	listen, dial, transport, suites, pin string
	hello, verbose                       bool

	channel   wire.Channel
	frameType wire.FrameType
	maxFrame  int

	message        string
	size, count    int
	window         int
	pause, timeout time.Duration

	// So often, in frames, keys are changed.
	keyUpdates, ratchets, rekems int
}

func parse(args []string, stderr io.Writer) (*options, error) {
	o := new(options)
	fs := flag.NewFlagSet("interop", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.listen, "listen", "", "echo what peers send to `HOST:PORT`")
	fs.StringVar(&o.dial, "dial", "", "send frames to the peer at `HOST:PORT`")
	fs.StringVar(&o.transport, "transport", "tls", "`tls` or tcp")
	fs.StringVar(&o.suites, "suites", "", "AEADs to offer or accept, preferred first: `aes,chacha`; empty is what this CPU favours")
	fs.StringVar(&o.pin, "pin", "", "accept only the peer whose public key is `HEX`")
	fs.BoolVar(&o.hello, "hello", false, "send HELLO; leave it out towards peers that would take it for a frame of the application")
	fs.BoolVar(&o.verbose, "v", false, "print a line for every frame")
	channel := fs.Uint("channel", uint(wire.ChannelMemory), "`NUMBER` of the channel")
	frameType := fs.Uint("type", 0x0120, "`NUMBER` of the frame type that --dial sends")
	fs.IntVar(&o.maxFrame, "max-frame", wire.DefaultFrameLen, "take frames of up to `N` octets, header and tag included")
	fs.StringVar(&o.message, "message", "hello from Trestle", "what a frame carries")
	fs.IntVar(&o.size, "size", -1, "let a frame carry `N` octets instead")
	fs.IntVar(&o.count, "count", 1, "send `N` frames")
	fs.IntVar(&o.window, "window", 1, "have up to `N` of them under way")
	fs.IntVar(&o.keyUpdates, "update-key", 0, "renew the channel's sending key (KEY_UPDATE) after every `N` frames")
	fs.IntVar(&o.ratchets, "ratchet", 0, "replace the root of the keys we send with (MASTER_RATCHET) after every `N` frames")
	fs.IntVar(&o.rekems, "rekem", 0, "replace the root of the keys we receive with (REKEM) after every `N` frames")
	fs.DurationVar(&o.pause, "pause", 0, "say nothing for `D` before the last frame")
	fs.DurationVar(&o.timeout, "timeout", 10*time.Second, "give up when an echo, or the end, takes longer than `D`")
	if err := fs.Parse(args); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			err = errUsage
		}
		return nil, err
	}
	o.channel, o.frameType = wire.Channel(*channel), wire.FrameType(*frameType)
	if (o.listen == "") == (o.dial == "") || fs.NArg() > 0 {
		fmt.Fprintln(stderr, "interop: give either --listen or --dial, and nothing beside flags")
		return nil, errUsage
	}
	return o, nil
}

// config is all that the engine must know of a peer that it can't ask: the
// channel, if it sends no HELLO, and whether it wants ours.
func (o *options) config(h engine.ChannelHandler, stderr io.Writer) (engine.Config, error) {
	cfg := engine.Config{
		Channels:     []engine.ChannelHandler{h},
		PeerChannels: []wire.Channel{o.channel},
		NoHello:      !o.hello,
		Limits:       engine.Limits{MaxFrame: o.maxFrame},
		Logger:       slog.New(slog.NewTextHandler(stderr, nil)),
	}
	switch o.transport {
	case "tls":
		cfg.Transport = engine.TransportTLS
	case "tcp":
		cfg.Transport = engine.TransportTCP
	default:
		return cfg, fmt.Errorf("no transport %q", o.transport)
	}
	for name := range strings.FieldsFuncSeq(o.suites, func(r rune) bool { return r == ',' }) {
		switch name {
		case "aes":
			cfg.Suites = append(cfg.Suites, profiles.AES256GCM)
		case "chacha":
			cfg.Suites = append(cfg.Suites, profiles.ChaCha20Poly1305)
		default:
			return cfg, fmt.Errorf("no AEAD suite %q", name)
		}
	}
	if o.pin != "" {
		key, err := identity.ParsePublicKey(o.pin)
		if err != nil {
			return cfg, err
		}
		cfg.Peers = identity.Pin(key)
	}
	return cfg, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	out := log.New(stdout, "", 0) // lines of several goroutines do not mix
	h := &handler{o: o, out: out}
	cfg, err := o.config(h, stderr)
	if err != nil {
		return err
	}
	e, err := engine.New(cfg)
	if err != nil {
		return err
	}
	if o.listen != "" {
		err = listen(ctx, e, o, out)
	} else {
		err = dial(ctx, e, o, out)
	}
	last, cancel := context.WithTimeout(context.Background(), o.timeout)
	defer cancel()
	err = errors.Join(err, e.Shutdown(last))
	s := e.Stats()
	out.Printf("frames in %d out %d, octets in %d out %d, pings in %d out %d, of unknown type %d, on unknown channels %d",
		s.FramesIn, s.FramesOut, s.OctetsIn, s.OctetsOut, s.PingsIn, s.PingsOut, s.UnknownType, s.SkippedChannel)
	out.Printf("key updates in %d out %d, ratchets in %d out %d, rekems in %d (and %d stale) out %d (and %d without effect)",
		s.KeyUpdatesIn, s.KeyUpdatesOut, s.RatchetsIn, s.RatchetsOut, s.RekemsIn, s.StaleRekems, s.RekemsOut, s.RekemsDropped)
	return err
}

// listen echoes until a signal comes.
func listen(ctx context.Context, e *engine.Engine, o *options, out *log.Logger) error {
	l, err := e.Listen(ctx, o.listen)
	if err != nil {
		return err
	}
	out.Printf("listening on %v, key %v", l.Addr(), e.Identity())
	<-ctx.Done()
	return nil
}

// dial sends frames and compares what comes back.
func dial(ctx context.Context, e *engine.Engine, o *options, out *log.Logger) error {
	a, err := e.Dial(ctx, o.dial, engine.DialOptions{})
	if err != nil {
		return err
	}
	c := a.ChannelConn(o.channel).(*channel)
	for sent, received := 0, 0; received < o.count; {
		if sent < o.count && sent-received < o.window {
			if sent == o.count-1 && o.pause > 0 {
				if err := pause(ctx, a, o.pause); err != nil {
					return err
				}
			}
			if err := a.Send(ctx, o.channel, o.frameType, o.payload(sent)); err != nil {
				return fmt.Errorf("frame %d: %w", sent, err)
			}
			sent++
			if err := c.renew(ctx, sent); err != nil {
				return err
			}
			continue
		}
		echo, err := next(ctx, a, c.echoes, o.timeout)
		if err != nil {
			return fmt.Errorf("waiting for frame %d: %w", received, err)
		}
		if !bytes.Equal(echo, o.payload(received)) {
			return fmt.Errorf("frame %d came back as %d other octets", received, len(echo))
		}
		received++
	}
	out.Printf("%d frames of %d octets came back as they were sent", o.count, len(o.payload(0)))
	a.Close(0, "") // CLOSE; a peer that never answers it is waited for a second
	<-a.Done()
	return nil
}

// next waits for an echo.
func next(ctx context.Context, a *engine.Association, echoes <-chan []byte, d time.Duration) ([]byte, error) {
	select {
	case echo := <-echoes:
		return echo, nil
	case <-a.Done():
		select {
		case echo := <-echoes: // the peer sent it and left
			return echo, nil
		default:
			return nil, a.Err()
		}
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(d):
		return nil, fmt.Errorf("no echo in %v", d)
	}
}

// pause is silence, unless the association ends in it.
func pause(ctx context.Context, a *engine.Association, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-a.Done():
		return a.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// payload is what frame n carries.
func (o *options) payload(n int) []byte {
	if o.size < 0 {
		return []byte(o.message)
	}
	p := make([]byte, o.size)
	for i := range p {
		p[i] = byte(n + i + i>>8) // differs between frames, and between parts of one
	}
	return p
}
