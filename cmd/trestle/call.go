package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/urfave/cli/v3"

	"github.com/trestle-npamp/trestle/carriage"
	"github.com/trestle-npamp/trestle/carriage/document"
	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/mapping/a2a"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

func callCommand() *cli.Command {
	return &cli.Command{
		Name:  "call",
		Usage: "send one A2A message to an agent and print its reply, or its stream",
		Description: `Reads one A2A message, a JSON-RPC request or notification, from standard input, sends it
to an agent through its relay, and writes the reply to standard output exactly as the agent
sent it: no octet more or less. A notification has no reply.

   echo '{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"t1"}}' |
     trestle call --to 127.0.0.1:7447 --agent echo
   trestle call --to relay.example:7447 --pin "$KEY" --agent mine <request.json
   trestle call --to 127.0.0.1:7447 --agent echo --method agent/getCard </dev/null

The last one asks for the agent's card, which has no JSON-RPC request of its own: with
--method, standard input may be empty.

An operation that is answered by a stream needs --frames. Each event is then written as
soon as it comes, as its length in decimal, a newline, its octets and a newline:

   echo '{"jsonrpc":"2.0","id":1,"method":"message/stream","params":{"message":{"kind":"message","messageId":"m1","role":"user","parts":[{"kind":"text","text":"hello"}]}}}' |
     trestle call --to 127.0.0.1:7447 --agent echo --frames

With --frames any reply is written so. A stream has no timeout unless one is given.

The safety label says what the operation may do: read_only, idempotent_write,
non_idempotent_write or destructive. It is what A2A's mapping knows of the method, and
destructive for a method it does not know, unless --label says otherwise.

Exit codes:
   0  the agent's response is on standard output (or the notification was sent), or all
      of its stream
   1  something failed at this end: a file or standard input could not be read, or the
      reply not be written
   2  the command line or the message was wrong; nothing was sent
   3  the agent's own error is on standard output, in a stream as the last event
   4  there is no answer of the agent, or its stream broke off: the transport error's
      code and name are on standard error. "Outcome unknown" means that the request
      had left.`,
		Flags: append(dialFlags(),
			&cli.StringFlag{Name: "agent", Required: true, Usage: "the agent to reach, `NAME`"},
			&cli.StringFlag{Name: "label", Usage: "label the request with `EFFECT`, or with none for \"none\""},
			&cli.StringFlag{Name: "method", Usage: "the operation `NAME`, needed only when standard input is empty"},
			documentFlag(),
			&cli.BoolFlag{Name: "frames", Usage: "take a stream, and write each of its events with its length"},
			&cli.DurationFlag{Name: "timeout", Value: 10 * time.Minute, Usage: "give up after `D`; 0 is never, and the default with --frames"},
			&cli.StringFlag{Name: "log-level", Value: "error", Usage: "lowest `LEVEL` that is logged: debug, info, warn or error"},
		),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			c, err := newCaller(cmd)
			if err != nil {
				return err
			}
			message, err := io.ReadAll(io.LimitReader(cmd.Root().Reader, wire.MaxFrameLen+1))
			if err != nil {
				return fmt.Errorf("reading standard input: %w", err)
			}
			if err := c.take(message); err != nil {
				return &exitError{exitUsage, err}
			}
			ctx, stop := untilSignal(ctx)
			defer stop()
			return c.run(ctx, cmd.Root().Writer)
		},
	}
}

// caller is one run of the command.
type caller struct {
	to, agent string
	peer      identity.Verifier
	engine    engine.Config
	timeout   time.Duration
	frames    bool
	tags      *bridge.Tags
	log       *slog.Logger

	call   carriage.Call
	notify bool
}

func newCaller(cmd *cli.Command) (*caller, error) {
	c := &caller{timeout: cmd.Duration("timeout"), frames: cmd.Bool("frames")}
	if c.frames && !cmd.IsSet("timeout") {
		c.timeout = 0
	}
	c.call = carriage.Call{Protocol: bridge.ProtocolA2A, Method: cmd.String("method")}
	var err error
	if c.to, err = address(cmd, "to"); err != nil {
		return nil, err
	}
	if c.agent, err = agentName(cmd, "agent"); err != nil {
		return nil, err
	}
	if c.peer, err = pinned(cmd); err != nil {
		return nil, err
	}
	if c.log, err = logger(cmd); err != nil {
		return nil, err
	}
	switch name := cmd.String("label"); name {
	case "":
	case "none":
		c.call.NoLabel = true
	default:
		effect, err := bridge.ParseEffect(name)
		if err != nil {
			return nil, usagef("--label: %q is not one of read_only, idempotent_write, non_idempotent_write, destructive, none", name)
		}
		c.call.Label = &bridge.Label{Effect: effect}
	}
	if err := transport(cmd, &c.engine); err != nil {
		return nil, err
	}
	if c.tags, err = documentTags(cmd, nil); err != nil {
		return nil, err
	}
	if c.timeout < 0 {
		return nil, usagef("--timeout: %v is negative", c.timeout)
	}
	c.engine.Identity, err = loadIdentity(cmd)
	return c, err
}

// take checks the message before anything is dialled.
func (c *caller) take(message []byte) error {
	if len(message) == 0 {
		if !a2a.IsDocument(c.call.Method) {
			return errors.New("standard input is empty; only an operation that asks for a card may have no message")
		}
		return nil
	}
	if len(message) > wire.MaxFrameLen {
		return fmt.Errorf("the message has more than %d octets, which no peer accepts", wire.MaxFrameLen)
	}
	var m jsonrpc.Message
	if err := jsonrpc.Scan(message, &m); err != nil {
		return fmt.Errorf("standard input is no JSON-RPC message: %w", err)
	}
	switch m.Kind {
	case jsonrpc.KindRequest:
	case jsonrpc.KindNotification:
		c.notify = true
	default:
		return errors.New("standard input is a JSON-RPC reply, not a request or a notification")
	}
	if c.call.Method != "" && !m.EqualMethod([]byte(c.call.Method)) {
		return errors.New("--method: the message names another one")
	}
	c.call.Foreign = message
	if method := m.AppendMethod(nil); !c.notify && !c.frames && a2a.IsStream(method) {
		return fmt.Errorf("%s is answered by a stream, which takes --frames", method)
	}
	return nil
}

// endTime is how long ending an association may take after the result is known.
const endTime = 2 * time.Second

// run makes the association, sends the message and writes the reply.
func (c *caller) run(ctx context.Context, stdout io.Writer) error {
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	b := carriage.New(carriage.Config{Protocols: []carriage.Protocol{a2a.Protocol(nil)}, Tags: c.tags, Logger: c.log})
	cfg := c.engine
	cfg.Channels, cfg.Protocols = []engine.ChannelHandler{b}, b.Protocols()
	cfg.Loops, cfg.Logger = 1, c.log
	cfg.Limits.MaxFrame = wire.MaxFrameLen // whatever the agent says fits
	e, err := engine.New(cfg)
	if err != nil {
		return err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		_ = e.Shutdown(end) // the result stands
	}()
	a, err := e.Dial(ctx, c.to, engine.DialOptions{Peer: c.peer, Agent: c.agent})
	if err != nil {
		return transportError(err, false)
	}
	if err := awaitRoom(ctx, a, len(c.call.Foreign)); err != nil {
		return transportError(err, false)
	}
	if c.notify {
		if err := b.Notify(ctx, a, &c.call); err != nil {
			return transportError(err, false)
		}
		// The end of an association waits for what is queued, and its CLOSE_ACK says
		// that the peer has read it: nothing else would tell that a notification
		// got lost.
		a.Close(0, "")
		<-a.Done()
		var end *engine.CloseError
		if !errors.As(a.Err(), &end) || !end.Acked {
			return transportError(a.Err(), true)
		}
		return nil
	}
	if c.tags != nil && len(c.call.Foreign) == 0 {
		return c.document(ctx, b, a, stdout)
	}
	if c.frames {
		return c.stream(ctx, b, a, stdout)
	}
	reply, err := b.Call(ctx, a, &c.call)
	if err != nil {
		return transportError(err, reply.Sent)
	}
	a.Close(0, "")
	if _, err := stdout.Write(reply.Foreign); err != nil {
		return fmt.Errorf("writing the reply: %w", err)
	}
	if reply.Kind == bridge.KindError {
		return &exitError{code: exitForeign}
	}
	return nil
}

// document writes the document of a set, whose digest is right.
func (c *caller) document(ctx context.Context, b *carriage.Bridge, a *engine.Association, stdout io.Writer) error {
	r := document.NewReceiver(document.Config{MaxOctets: maxDocument, MaxProofs: document.MaxProofs, Timeout: -1, Verbatim: true})
	set, err := r.Fetch(ctx, b, a, &c.call)
	var foreign *carriage.ForeignError
	var octets []byte
	switch {
	case errors.As(err, &foreign):
		octets = foreign.Foreign
	case err != nil:
		return transportError(err, true)
	default:
		octets = set.Document
	}
	a.Close(0, "")
	if c.frames {
		octets = append(strconv.AppendInt(nil, int64(len(octets)), 10), "\n"+string(octets)+"\n"...)
	}
	if _, err := stdout.Write(octets); err != nil {
		return fmt.Errorf("writing the document: %w", err)
	}
	if foreign != nil {
		return &exitError{code: exitForeign}
	}
	return nil
}

// maxDocument is how many octets a document may have, with its proofs.
const maxDocument = 256 << 20

// stream writes each event of the reply as a frame.
func (c *caller) stream(ctx context.Context, b *carriage.Bridge, a *engine.Association, stdout io.Writer) error {
	s, err := b.Stream(ctx, a, &c.call, nil)
	if err != nil {
		return transportError(err, false)
	}
	defer s.Close()
	var frame []byte
	write := func(octets []byte) error {
		frame = strconv.AppendInt(frame[:0], int64(len(octets)), 10)
		frame = append(append(append(frame, '\n'), octets...), '\n')
		if _, err := stdout.Write(frame); err != nil {
			return fmt.Errorf("writing an event: %w", err)
		}
		return nil
	}
	failed := false // the agent's own error came last
	for e, err := range s.Events() {
		var foreign *carriage.ForeignError
		switch {
		case err == nil:
			var m jsonrpc.Message
			failed = jsonrpc.Scan(e.Foreign, &m) == nil && m.Kind == jsonrpc.KindError
		case errors.As(err, &foreign):
			failed, e.Foreign = true, foreign.Foreign
		default:
			return transportError(err, true)
		}
		if err := write(e.Foreign); err != nil {
			return err
		}
	}
	a.Close(0, "")
	if failed {
		return &exitError{code: exitForeign}
	}
	return nil
}

// awaitRoom waits for the peer's HELLO if the message is longer than what every
// peer accepts; only then does it matter here how much this one takes.
func awaitRoom(ctx context.Context, a *engine.Association, size int) error {
	const headroom = 1 << 10 // more than envelope and label take
	if size+headroom <= a.MaxSend() {
		return nil
	}
	_, err := a.WaitHello(ctx)
	return err
}

// transportError says why there is no answer of the agent, always as one of the
// transport errors: what happened before the relay could say anything is
// NotDelivered, as seen from here.
func transportError(err error, sent bool) error {
	var told *bridge.Error
	switch {
	case errors.As(err, &told):
	case errors.Is(err, carriage.ErrMalformed):
		told = &bridge.Error{Code: bridge.CodeEnvelopeMalformed, Text: err.Error()}
	case sent:
		told = &bridge.Error{Code: bridge.CodeNotDelivered, Text: "outcome unknown: " + err.Error()}
	default:
		told = &bridge.Error{Code: bridge.CodeNotDelivered, Text: err.Error()}
	}
	shown := &bridge.Error{Code: told.Code, Text: printable(told.Text)}
	return &exitError{exitTransport, fmt.Errorf("transport error %d %w", told.Code, shown)}
}

// printable is text that a peer chose, without what would move a terminal's cursor or
// pass for another line.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
}
