package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/trestle-npamp/trestle/bench"
)

// grpcServer echoes, streams and fans out messages of one field of octets, as
// generated code would.
type grpcServer struct {
	o       bench.Options
	handled bench.Counter
	hub     hub
}

type octets = wrapperspb.BytesValue

// grpcUnary wraps a unary method, as generated code does.
func grpcUnary(name string, serve func(*grpcServer, context.Context, *octets) (*octets, error)) grpc.MethodDesc {
	return grpc.MethodDesc{MethodName: name, Handler: func(srv any, ctx context.Context, dec func(any) error, ic grpc.UnaryServerInterceptor) (any, error) {
		in := new(octets)
		if err := dec(in); err != nil {
			return nil, err
		}
		if ic == nil {
			return serve(srv.(*grpcServer), ctx, in)
		}
		info := &grpc.UnaryServerInfo{Server: srv, FullMethod: "/bench.Bench/" + name}
		return ic(ctx, in, info, func(ctx context.Context, in any) (any, error) {
			return serve(srv.(*grpcServer), ctx, in.(*octets))
		})
	}}
}

func grpcStream(name string, serve func(*grpcServer, *octets, grpc.ServerStream) error) grpc.StreamDesc {
	return grpc.StreamDesc{StreamName: name, ServerStreams: true, Handler: func(srv any, stream grpc.ServerStream) error {
		in := new(octets)
		if err := stream.RecvMsg(in); err != nil {
			return err
		}
		return serve(srv.(*grpcServer), in, stream)
	}}
}

var grpcService = grpc.ServiceDesc{
	ServiceName: "bench.Bench",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		grpcUnary("Echo", (*grpcServer).echo),
		grpcUnary("Publish", (*grpcServer).publish),
	},
	Streams: []grpc.StreamDesc{
		grpcStream("Stream", (*grpcServer).stream),
		grpcStream("Subscribe", (*grpcServer).subscribe),
	},
}

func (s *grpcServer) echo(_ context.Context, in *octets) (*octets, error) {
	s.handled.Add(0, 1)
	return &octets{Value: in.Value}, nil
}

func (s *grpcServer) publish(ctx context.Context, in *octets) (*octets, error) {
	n, err := s.hub.publish(ctx, in.Value)
	s.handled.Add(0, n)
	return new(octets), err
}

func (s *grpcServer) stream(_ *octets, to grpc.ServerStream) error {
	f := bench.NewFeed(&s.o)
	for e := f.Next(); e != nil; e = f.Next() {
		if err := to.SendMsg(&octets{Value: e}); err != nil {
			return err
		}
		s.handled.Add(0, 1)
	}
	return nil
}

func (s *grpcServer) subscribe(_ *octets, to grpc.ServerStream) error {
	gone := to.Context().Done()
	sub := s.hub.join(gone)
	defer s.hub.leave(sub)
	if err := to.SendMsg(new(octets)); err != nil { // it stands
		return err
	}
	for {
		select {
		case e := <-sub.events:
			if err := to.SendMsg(&octets{Value: e}); err != nil {
				return err
			}
		case <-gone:
			return nil
		}
	}
}

func serveGRPC(ctx context.Context, o bench.Options, in io.Reader, out io.Writer) error {
	cert, key, err := certificate()
	if err != nil {
		return err
	}
	l, err := listen()
	if err != nil {
		return err
	}
	accepted := &countingListener{Listener: l}
	s := &grpcServer{o: o}
	g := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13})),
		grpc.MaxRecvMsgSize(1<<26), grpc.MaxSendMsgSize(1<<26),
	)
	g.RegisterService(&grpcService, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(accepted) }()
	err = bench.Control(ctx, in, out, bench.Hello{Addr: l.Addr().String(), Key: key}, accepted.or(o, &s.handled))
	g.Stop()
	return errors.Join(err, <-served)
}

type grpcTarget struct {
	o     bench.Options
	addr  string
	tls   *tls.Config
	sent  [2][]byte
	conns closers
}

func reachGRPC(o bench.Options, hello bench.Hello) (bench.Target, error) {
	cfg, err := trust(hello.Key)
	if err != nil {
		return nil, err
	}
	return &grpcTarget{o: o, addr: hello.Addr, tls: cfg, sent: [2][]byte{o.Message(bench.Plain), o.Message(bench.Large)}}, nil
}

func (t *grpcTarget) Dial(ctx context.Context) (bench.Conn, error) {
	cc, err := grpc.NewClient("passthrough:///"+t.addr,
		grpc.WithTransportCredentials(credentials.NewTLS(t.tls)),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<26), grpc.MaxCallSendMsgSize(1<<26)))
	if err != nil {
		return nil, err
	}
	cc.Connect()
	for s := cc.GetState(); s != connectivity.Ready; s = cc.GetState() {
		if !cc.WaitForStateChange(ctx, s) {
			return nil, errors.Join(ctx.Err(), cc.Close())
		}
	}
	c := &grpcConn{t: t, cc: cc}
	t.conns.add(c)
	return c, nil
}

func (t *grpcTarget) Close() error { return t.conns.close() }

type grpcConn struct {
	t  *grpcTarget
	cc *grpc.ClientConn
}

func (c *grpcConn) Close() error {
	c.t.conns.remove(c)
	return c.cc.Close()
}

func (c *grpcConn) Call(ctx context.Context, m bench.Message) error {
	var reply octets
	if err := c.cc.Invoke(ctx, pathEcho, &octets{Value: c.t.sent[m]}, &reply); err != nil {
		return err
	}
	if !bytes.Equal(reply.Value, c.t.sent[m]) {
		return errReply
	}
	return nil
}

func (c *grpcConn) Publish(ctx context.Context, event []byte) error {
	return c.cc.Invoke(ctx, pathPublish, &octets{Value: event}, new(octets))
}

func (c *grpcConn) open(ctx context.Context, path string) (grpc.ClientStream, error) {
	s, err := c.cc.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, path)
	if err != nil {
		return nil, err
	}
	return s, errors.Join(s.SendMsg(new(octets)), s.CloseSend())
}

func (c *grpcConn) Stream(ctx context.Context, each func([]byte), done func(error)) error {
	s, err := c.open(ctx, pathStream)
	if err != nil {
		return err
	}
	go func() {
		n := 0
		for {
			var e octets
			err := s.RecvMsg(&e)
			if err == nil {
				n++
				each(e.Value)
				continue
			}
			if errors.Is(err, io.EOF) {
				err = complete(&c.t.o, n)
			}
			done(err)
			return
		}
	}()
	return nil
}

// complete says what is wrong with a stream of so many events.
func complete(o *bench.Options, events int) error {
	if events != o.Events {
		return fmt.Errorf("peers: a stream of %d events, want %d", events, o.Events)
	}
	return nil
}

func (c *grpcConn) Subscribe(ctx context.Context, each func([]byte)) error {
	s, err := c.open(ctx, pathSubscribe)
	if err != nil {
		return err
	}
	if err := s.RecvMsg(new(octets)); err != nil {
		return err
	}
	go func() {
		for {
			var e octets
			if s.RecvMsg(&e) != nil {
				return // the connection was closed
			}
			each(e.Value)
		}
	}()
	return nil
}
