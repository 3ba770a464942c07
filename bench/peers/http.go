package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"io"
	"log"
	"net/http"
	"time"

	"github.com/trestle-npamp/trestle/bench"
)

// httpServer answers a POST with its body, and streams Server-Sent Events. It
// serves HTTP/1.1 and HTTP/2 alike: the client decides.
type httpServer struct {
	o       bench.Options
	handled bench.Counter
	hub     hub
}

func (s *httpServer) echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.handled.Add(0, 1)
	_, _ = w.Write(body)
}

func (s *httpServer) publish(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	n, err := s.hub.publish(r.Context(), body)
	if err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	s.handled.Add(0, n)
	w.WriteHeader(http.StatusNoContent)
}

// The octets of an event are no text, which Server-Sent Events must be: what
// travels is the time in hex and as many letters as it takes to be as long.
const stampLen = 8

// line is an event on its way.
type line struct{ b []byte }

func newLine(size int) line {
	b := append([]byte("data: "), bytes.Repeat([]byte("x"), max(size, 2*stampLen))...)
	return line{append(b, "\n\n"...)}
}

func (l line) of(event []byte) []byte {
	hex.Encode(l.b[len("data: "):], event[:stampLen])
	return l.b
}

func (s *httpServer) stream(w http.ResponseWriter, r *http.Request) {
	to, l := newSSE(w), newLine(s.o.Size)
	f := bench.NewFeed(&s.o)
	for e := f.Next(); e != nil; e = f.Next() {
		if to.send(l.of(e)) != nil {
			return
		}
		s.handled.Add(0, 1)
	}
}

func (s *httpServer) subscribe(w http.ResponseWriter, r *http.Request) {
	gone := r.Context().Done()
	sub := s.hub.join(gone)
	defer s.hub.leave(sub)
	to, l := newSSE(w), newLine(s.o.Size)
	if to.send(l.of(make([]byte, stampLen))) != nil { // it stands
		return
	}
	for {
		select {
		case e := <-sub.events:
			if to.send(l.of(e)) != nil {
				return
			}
		case <-gone:
			return
		}
	}
}

// sse sends each event at once.
type sse struct {
	w     io.Writer
	flush func() error
}

func newSSE(w http.ResponseWriter) sse {
	w.Header().Set("Content-Type", "text/event-stream")
	return sse{w, http.NewResponseController(w).Flush}
}

func (s sse) send(line []byte) error {
	if _, err := s.w.Write(line); err != nil {
		return err
	}
	return s.flush()
}

func serveHTTP(ctx context.Context, o bench.Options, in io.Reader, out io.Writer) error {
	cert, key, err := certificate()
	if err != nil {
		return err
	}
	l, err := listen()
	if err != nil {
		return err
	}
	accepted := &countingListener{Listener: l}
	s := &httpServer{o: o}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("POST "+pathEcho, s.echo)
	mux.HandleFunc("POST "+pathPublish, s.publish)
	mux.HandleFunc("GET "+pathStream, s.stream)
	mux.HandleFunc("GET "+pathSubscribe, s.subscribe)
	h := &http.Server{
		Handler:   mux,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	served := make(chan error, 1)
	go func() { served <- h.ServeTLS(accepted, "", "") }()
	err = bench.Control(ctx, in, out, bench.Hello{Addr: l.Addr().String(), Key: key}, accepted.or(o, &s.handled))
	_ = h.Close()
	if e := <-served; !errors.Is(e, http.ErrServerClosed) {
		err = errors.Join(err, e)
	}
	return err
}

type httpTarget struct {
	o     bench.Options
	url   string
	tls   *tls.Config
	two   bool // HTTP/2
	sent  [2][]byte
	conns closers
}

func reachHTTP1(o bench.Options, hello bench.Hello) (bench.Target, error) {
	return reachHTTP(o, hello, false)
}

func reachHTTP2(o bench.Options, hello bench.Hello) (bench.Target, error) {
	return reachHTTP(o, hello, true)
}

func reachHTTP(o bench.Options, hello bench.Hello, two bool) (bench.Target, error) {
	cfg, err := trust(hello.Key)
	if err != nil {
		return nil, err
	}
	return &httpTarget{o: o, url: "https://" + hello.Addr, tls: cfg, two: two, sent: [2][]byte{o.Message(bench.Plain), o.Message(bench.Large)}}, nil
}

func (t *httpTarget) Dial(ctx context.Context) (bench.Conn, error) {
	// With HTTP/1.1 a connection has one request at a time, so there are as many.
	conns := 1
	if !t.two {
		conns = max(t.o.InFlight+t.o.LargeInFlight, t.o.Streams)
	}
	c := &httpConn{t: t, free: make(chan *http.Client, conns)}
	c.ctx, c.end = context.WithCancel(context.Background())
	t.conns.add(c)
	for range conns {
		tr := &http.Transport{
			TLSClientConfig:     t.tls.Clone(),
			MaxConnsPerHost:     1,
			MaxIdleConnsPerHost: 1,
			DisableCompression:  true,
			Protocols:           new(http.Protocols),
		}
		tr.Protocols.SetHTTP1(!t.two)
		tr.Protocols.SetHTTP2(t.two)
		client := &http.Client{Transport: tr}
		c.all = append(c.all, tr)
		c.free <- client
	}
	for range conns { // each is made now, and not when it is measured
		if _, err := c.do(ctx, http.MethodGet, "/", nil); err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

func (t *httpTarget) Close() error { return t.conns.close() }

type httpConn struct {
	t    *httpTarget
	all  []*http.Transport
	free chan *http.Client // first in, first out
	ctx  context.Context   // of its streams
	end  context.CancelFunc
}

func (c *httpConn) Close() error {
	c.t.conns.remove(c)
	c.end()
	for _, tr := range c.all {
		tr.CloseIdleConnections()
	}
	return nil
}

// send makes a request and gives its answer, on a connection that is given back by
// done.
func (c *httpConn) send(r *http.Request) (w *http.Response, done func(), err error) {
	client := <-c.free
	if c.t.two {
		c.free <- client // it takes any number at a time
	}
	done = func() {
		if w != nil {
			w.Body.Close()
		}
		if !c.t.two {
			c.free <- client
		}
	}
	w, err = client.Do(r)
	if err == nil && w.StatusCode != http.StatusOK && w.StatusCode != http.StatusNoContent {
		err = errors.New("peers: " + w.Status)
	}
	return w, done, err
}

// do makes a request and gives its answer's body.
func (c *httpConn) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.t.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	w, done, err := c.send(r)
	defer done()
	if err != nil {
		return nil, err
	}
	to := bytes.NewBuffer(make([]byte, 0, max(0, w.ContentLength)+bytes.MinRead))
	_, err = to.ReadFrom(w.Body)
	return to.Bytes(), err
}

func (c *httpConn) Call(ctx context.Context, m bench.Message) error {
	reply, err := c.do(ctx, http.MethodPost, pathEcho, c.t.sent[m])
	if err == nil && !bytes.Equal(reply, c.t.sent[m]) {
		err = errReply
	}
	return err
}

func (c *httpConn) Publish(ctx context.Context, event []byte) error {
	_, err := c.do(ctx, http.MethodPost, pathPublish, event)
	return err
}

// events reads Server-Sent Events until they end.
func (c *httpConn) events(path string, each func([]byte)) error {
	r, err := http.NewRequestWithContext(c.ctx, http.MethodGet, c.t.url+path, nil)
	if err != nil {
		return err
	}
	w, done, err := c.send(r)
	defer done()
	if err != nil {
		return err
	}
	event := make([]byte, c.t.o.Size)
	size := max(c.t.o.Size, 2*stampLen)
	from := bufio.NewReaderSize(w.Body, 64<<10)
	for {
		text, err := from.ReadSlice('\n')
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		data, ok := bytes.CutPrefix(text, []byte("data: "))
		if !ok {
			continue
		}
		if len(data) != size+1 {
			return errReply
		}
		if _, err := hex.Decode(event[:stampLen], data[:2*stampLen]); err != nil {
			return err
		}
		each(event)
	}
}

func (c *httpConn) Stream(_ context.Context, each func([]byte), done func(error)) error {
	go func() {
		n := 0
		err := c.events(pathStream, func(e []byte) { n++; each(e) })
		if err == nil {
			err = complete(&c.t.o, n)
		}
		done(err)
	}()
	return nil
}

func (c *httpConn) Subscribe(ctx context.Context, each func([]byte)) error {
	ready := make(chan error, 1)
	go func() {
		first := true
		err := c.events(pathSubscribe, func(e []byte) {
			if first {
				first = false
				ready <- nil
				return
			}
			each(e)
		})
		if first {
			ready <- errors.Join(errReply, err)
		}
	}()
	select {
	case err := <-ready:
		return err
	case <-time.After(shakeTime):
		return context.DeadlineExceeded
	}
}

// shakeTime bounds what has to be made before something can be measured.
const shakeTime = 10 * time.Second
