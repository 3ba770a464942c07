package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"time"

	"github.com/trestle-npamp/trestle/bench"
)

// peer is a server that is measured, with the client that loads it.
type peer struct {
	name string
	what string // in a few words
	// shapes are what its client can do; the first is what it does if asked for
	// another.
	shapes []string
	// not are the scenarios it has no part in.
	not []string
	// serve is the server, in a process of its own; see bench.Control.
	serve func(ctx context.Context, o bench.Options, in io.Reader, out io.Writer) error
	// reach makes the client.
	reach func(o bench.Options, hello bench.Hello) (bench.Target, error)
	// transport of N-PAMP, where that is spoken.
	transport string
	// serverGoroutines says that only its client is on event loops.
	serverGoroutines bool
	// tls of N-PAMP's transport, where it is not our own.
	tls string
	// floor says that the peer protects nothing: it shows what is there to be had.
	floor bool
	// asked says that the peer is only there when it is asked for by name. It is ours
	// in another shape.
	asked bool
}

// protocol tells whether the peer is one that we are compared with for what it
// offers.
func (p *peer) protocol() bool { return !p.floor && !p.asked }

var quiet = slog.New(slog.DiscardHandler)

var both = []string{bench.Callback, bench.Blocking}

// ours are the two that the others are compared with.
var ours = []*peer{
	{name: "trestle-tcp", what: "Trestle over raw TCP", shapes: both, serve: serveTrestle, reach: reachTrestle, transport: "tcp"},
	{name: "trestle-tls", what: "Trestle over TLS", shapes: both, serve: serveTrestle, reach: reachTrestle, transport: "tls"},
}

// others in the order in which they are shown.
var others = []*peer{
	{name: "grpc", what: "grpc-go over TLS", shapes: []string{bench.Blocking}, not: []string{bench.Notify}, serve: serveGRPC, reach: reachGRPC},
	{name: "http1", what: "net/http, HTTP/1.1 over TLS, a connection for each request in flight; SSE", shapes: []string{bench.Blocking}, not: []string{bench.Notify}, serve: serveHTTP, reach: reachHTTP1},
	{name: "http2", what: "net/http, HTTP/2 over TLS; SSE", shapes: []string{bench.Blocking}, not: []string{bench.Notify}, serve: serveHTTP, reach: reachHTTP2},
	{name: "nats", what: "NATS over TLS, server and responder in one process", shapes: both, serve: serveNATS, reach: reachNATS},
	{name: "blocking-tcp", what: "N-PAMP, a goroutine a connection, over raw TCP", shapes: both, serve: serveBlocking, reach: reachTrestle, transport: "tcp", serverGoroutines: true},
	{name: "buffered-tcp", what: "the same, which reads through a buffer", shapes: both, serve: serveBuffered, reach: reachTrestle, transport: "tcp", serverGoroutines: true},
	{name: "blocking-tls", what: "N-PAMP, a goroutine a connection, over TLS", shapes: both, serve: serveBlocking, reach: reachTrestle, transport: "tls", serverGoroutines: true},
	{name: "echo", what: "gnet echo over raw TCP: no protocol and no protection", shapes: both, not: []string{bench.Stream, bench.Fanout, bench.Notify, bench.Mixed}, serve: serveEcho, reach: reachEcho, transport: "tcp", floor: true},
	{name: "trestle-std", what: "Trestle over TLS, whose records crypto/tls makes", shapes: both, serve: serveTrestle, reach: reachTrestle, transport: "tls", tls: bench.StandardTLS, asked: true},
}

func all() []*peer { return append(append([]*peer(nil), ours...), others...) }

func find(name string) *peer {
	for _, p := range all() {
		if p.name == name {
			return p
		}
	}
	return nil
}

func serveTrestle(ctx context.Context, o bench.Options, in io.Reader, out io.Writer) error {
	return bench.Serve(ctx, o, quiet, in, out)
}

func reachTrestle(o bench.Options, hello bench.Hello) (bench.Target, error) {
	return bench.Engine(o, quiet, hello)
}

// certificate makes what a TLS server shows, and what its clients know it by.
func certificate() (cert tls.Certificate, key string, err error) {
	priv, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, "", err
	}
	now := time.Now()
	tmpl := &x509.Certificate{
		SerialNumber:          big.NewInt(now.UnixNano()),
		Subject:               pkix.Name{CommonName: "bench"},
		NotBefore:             now.Add(-time.Hour),
		NotAfter:              now.Add(24 * time.Hour),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &priv.PublicKey, priv)
	if err != nil {
		return cert, "", err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: priv}, base64.StdEncoding.EncodeToString(der), nil
}

// trust is the configuration of a client that knows the server's certificate.
func trust(key string) (*tls.Config, error) {
	der, err := base64.StdEncoding.DecodeString(key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS13}, nil
}

// listen takes a loopback port.
func listen() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }

var errReply = errors.New("peers: a reply is not the expected one")

// requests of N-PAMP's methods by other names, where a peer has no names of its own.
const (
	pathEcho      = "/bench.Bench/Echo"
	pathStream    = "/bench.Bench/Stream"
	pathSubscribe = "/bench.Bench/Subscribe"
	pathPublish   = "/bench.Bench/Publish"
)
