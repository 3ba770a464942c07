package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/trestle-npamp/trestle/bench"
)

// Subjects. Replies and events go to a subject of the client's.
const (
	subjectEcho   = "bench.echo"
	subjectStream = "bench.stream"
	subjectNotify = "bench.notify"
	subjectTopic  = "bench.topic"
	queue         = "bench"
)

// serveNATS is a NATS server with responders in its own process, which it reaches
// over memory: what they cost is part of what a request costs.
func serveNATS(ctx context.Context, o bench.Options, in io.Reader, out io.Writer) error {
	cert, key, err := certificate()
	if err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1,
		NoLog: true, NoSigs: true,
		MaxPayload: 1 << 26, MaxPending: 1 << 28, MaxConn: 1 << 17,
		TLSConfig:  &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13},
		TLSTimeout: shakeTime.Seconds(),
		// The responders are inside, where there is nobody to listen.
		AllowNonTLS: true,
	})
	if err != nil {
		return err
	}
	s.Start()
	defer func() { s.Shutdown(); s.WaitForShutdown() }()
	if !s.ReadyForConnections(shakeTime) {
		return errors.New("peers: NATS did not start")
	}
	r := &natsResponder{o: o}
	for range runtime.GOMAXPROCS(0) {
		nc, err := nats.Connect("", nats.InProcessServer(s))
		if err != nil {
			return err
		}
		defer nc.Close()
		for subject, serve := range map[string]nats.MsgHandler{subjectEcho: r.echo, subjectStream: r.stream, subjectNotify: r.notify} {
			sub, err := nc.QueueSubscribe(subject, queue, serve)
			if err != nil {
				return err
			}
			if err := sub.SetPendingLimits(-1, -1); err != nil {
				return err
			}
		}
		if err := nc.Flush(); err != nil {
			return err
		}
	}
	internal := uint64(runtime.GOMAXPROCS(0))
	handled := r.handled.Sum
	switch o.Scenario {
	case bench.Notify:
		handled = r.heard.Sum
	case bench.Handshake, bench.Idle:
		handled = func() uint64 {
			v, err := s.Varz(nil)
			if err != nil {
				return 0
			}
			return v.TotalConnections - internal
		}
	case bench.Fanout: // the server itself delivers
		handled = func() uint64 {
			v, err := s.Varz(nil)
			if err != nil {
				return 0
			}
			return uint64(v.OutMsgs)
		}
	}
	return bench.Control(ctx, in, out, bench.Hello{Addr: s.Addr().String(), Key: key}, handled)
}

type natsResponder struct {
	o       bench.Options
	handled bench.Counter
	heard   bench.Counter // what has no reply
}

func (r *natsResponder) echo(m *nats.Msg) {
	r.handled.Add(0, 1)
	_ = m.Respond(m.Data)
}

func (r *natsResponder) notify(*nats.Msg) { r.heard.Add(0, 1) }

func (r *natsResponder) stream(m *nats.Msg) {
	go func() {
		f := bench.NewFeed(&r.o)
		for e := f.Next(); e != nil; e = f.Next() {
			if m.Respond(e) != nil {
				return
			}
			r.handled.Add(0, 1)
		}
		_ = m.Respond(nil)
	}()
}

type natsTarget struct {
	o     bench.Options
	addr  string
	tls   *tls.Config
	sent  [2][]byte
	conns closers
}

func reachNATS(o bench.Options, hello bench.Hello) (bench.Target, error) {
	cfg, err := trust(hello.Key)
	if err != nil {
		return nil, err
	}
	return &natsTarget{o: o, addr: hello.Addr, tls: cfg, sent: [2][]byte{o.Message(bench.Plain), o.Message(bench.Large)}}, nil
}

// dialer is a context's, as NATS wants it.
type dialer struct{ ctx context.Context }

func (d dialer) Dial(network, addr string) (net.Conn, error) {
	var nd net.Dialer
	return nd.DialContext(d.ctx, network, addr)
}

func (t *natsTarget) Dial(ctx context.Context) (bench.Conn, error) {
	nc, err := nats.Connect("tls://"+t.addr, nats.Secure(t.tls.Clone()), nats.SetCustomDialer(dialer{ctx}), nats.Timeout(shakeTime), nats.NoReconnect())
	if err != nil {
		return nil, err
	}
	c := &natsConn{t: t, nc: nc, prefix: nats.NewInbox() + "."}
	t.conns.add(c)
	return c, nil
}

func (t *natsTarget) Close() error { return t.conns.close() }

type natsConn struct {
	t      *natsTarget
	nc     *nats.Conn
	prefix string

	mu     sync.Mutex
	sub    *nats.Subscription // to all subjects that begin with prefix
	places []func(*nats.Msg)
}

func (c *natsConn) Close() error {
	c.t.conns.remove(c)
	c.nc.Close()
	return nil
}

func (c *natsConn) Call(ctx context.Context, m bench.Message) error {
	reply, err := c.nc.RequestWithContext(ctx, subjectEcho, c.t.sent[m])
	if err == nil && !bytes.Equal(reply.Data, c.t.sent[m]) {
		err = errReply
	}
	return err
}

// place has serve called with what comes to a subject of its own. All places of a
// connection share a subscription.
func (c *natsConn) place(serve func(*nats.Msg)) (subject string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sub == nil {
		c.sub, err = c.nc.Subscribe(c.prefix+"*", func(m *nats.Msg) {
			i, err := strconv.Atoi(strings.TrimPrefix(m.Subject, c.prefix))
			if err != nil {
				return
			}
			c.mu.Lock()
			serve := c.places[i]
			c.mu.Unlock()
			serve(m)
		})
		if err == nil {
			err = c.sub.SetPendingLimits(-1, -1)
		}
		if err != nil {
			return "", err
		}
	}
	c.places = append(c.places, serve)
	return c.prefix + strconv.Itoa(len(c.places)-1), nil
}

func (c *natsConn) Place(m bench.Message, done func(error)) func() error {
	subject, err := c.place(func(r *nats.Msg) {
		if !bytes.Equal(r.Data, c.t.sent[m]) {
			done(errReply)
			return
		}
		done(nil)
	})
	request := &nats.Msg{Subject: subjectEcho, Reply: subject, Data: c.t.sent[m]}
	return func() error {
		if err != nil {
			return err
		}
		return c.nc.PublishMsg(request)
	}
}

func (c *natsConn) Notify(context.Context) error {
	return c.nc.Publish(subjectNotify, c.t.sent[bench.Plain])
}

func (c *natsConn) Stream(_ context.Context, each func([]byte), done func(error)) error {
	n := 0
	inbox := nats.NewInbox()
	sub, err := c.nc.Subscribe(inbox, func(m *nats.Msg) {
		if len(m.Data) > 0 {
			n++
			each(m.Data)
			return
		}
		err := errors.Join(m.Sub.Unsubscribe(), complete(&c.t.o, n))
		done(err)
	})
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err != nil {
		return err
	}
	return c.nc.PublishRequest(subjectStream, inbox, nil)
}

func (c *natsConn) Subscribe(ctx context.Context, each func([]byte)) error {
	sub, err := c.nc.Subscribe(subjectTopic, func(m *nats.Msg) { each(m.Data) })
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err != nil {
		return err
	}
	return c.nc.FlushTimeout(shakeTime)
}

// Publish waits until the server has taken the event, as the others do.
func (c *natsConn) Publish(ctx context.Context, event []byte) error {
	if err := c.nc.Publish(subjectTopic, event); err != nil {
		return err
	}
	return c.nc.FlushTimeout(shakeTime)
}
