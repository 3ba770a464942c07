package main

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/trestle-npamp/trestle/carriage/policy"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/relay"
	"github.com/trestle-npamp/trestle/relay/edge"
)

func serveCommand() *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "run a relay between agents and those who call them",
		Description: `Agents dial the relay and announce their names (see "trestle agent"). Callers reach them
over N-PAMP (see "trestle call") or over HTTP:

   POST /agents/NAME                               any A2A request or notification;
                                                   streams as Server-Sent Events
   GET  /agents/NAME/.well-known/agent-card.json   the agent's card
   any  /agents/NAME/PATH                          with --protocol acp: an operation of ACP,
                                                   answered as the agent does
   GET  /healthz                                   200 while the relay takes requests

Without flags it makes a fresh identity, serves this machine only, and brings an agent
named echo along, which answers with the text it was sent:

   trestle serve
   curl -s 127.0.0.1:7480/agents/echo -H 'Content-Type: application/json' \
     -d '{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"kind":"message","messageId":"m1","role":"user","parts":[{"kind":"text","text":"hello"}]}}}'

For others than this machine, give it an identity that they can pin and the keys of those
it lets in, one in hex a line. The HTTP side stays on this machine, behind whatever
authenticates its callers:

   trestle keygen --out relay.pem
   trestle serve --identity relay.pem --allow-peers peers.txt --no-demo \
     --listen 0.0.0.0:7447 --http 127.0.0.1:7480

AGNTCY's protocols are carried besides A2A, as octets that nobody looks into, under an id
that relay and agents agree on. With --protocol acp, what is asked of /agents/NAME/PATH is
asked of the agent at PATH, for GET, POST, PUT, PATCH and DELETE: path, query, body, status
and answer as they are. Of headers the Content-Type alone crosses. Bodies and answers are
JSON, and of a stream the data of its events crosses; with --opaque-type they may be of any
type, and a stream crosses whole. SLIM's calls come over N-PAMP alone.

   trestle serve --protocol acp --protocol-id 0x10

What callers may do is decided by --policy: the first rule that matches, else the default.
Every list in a rule is optional, effects are those of what an operation does at worst,
and * in methods and agents stands for anything. The method of an ACP operation is its verb,
path and query, so that "POST /runs" alone is not "POST /runs?x=1", and "POST /runs*" is both.
What is denied never reaches an agent.

   {"default": "deny", "reason": "not allowed here", "rules": [
     {"decision": "allow", "effects": ["read_only"]},
     {"decision": "allow", "agents": ["echo"], "methods": ["message/*"], "peers": ["KEY or HANDLE"]}]}

When it serves, it writes exactly one line to standard output,

   ready npamp=HOST:PORT http=HOST:PORT key=HEX

with the real ports and its public key; logs go to standard error. SIGTERM or SIGINT
drains it: /healthz fails at once, new requests are refused, those under way are answered,
and it exits with 0, after --drain at the latest. Streams may go on for half of that time
and are then cut, which their callers can tell from an end. A second signal ends it on the
spot.

Exit codes: 0 drained, 1 could not serve, 2 wrong usage.`,
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "listen", Value: relay.DefaultListen, Usage: "serve N-PAMP on `HOST:PORT`; port 0 picks one"},
			&cli.StringFlag{Name: "http", Value: relay.DefaultHTTP, Usage: "serve HTTP on `HOST:PORT`; port 0 picks one"},
			identityFlag("be the one with the key in `FILE` (see keygen); a fresh one without it"),
			&cli.StringFlag{Name: "allow-peers", Usage: "let in only the keys in `FILE`; without it everybody on this machine and nobody else", TakesFile: true},
			&cli.StringFlag{Name: "policy", Usage: "forward only what the rules in `FILE` (JSON) allow; without it everything", TakesFile: true},
			&cli.BoolFlag{Name: "no-demo", Usage: "bring no echo agent along"},
			&cli.StringFlag{Name: "tls-cert", Usage: "show the certificate in `FILE` (PEM) under the associations; a self-signed one without it, since peers go by the key", TakesFile: true},
			&cli.StringFlag{Name: "tls-key", Usage: "the certificate's private key is in `FILE` (PEM)", TakesFile: true},
			&cli.BoolFlag{Name: "allow-open-http", Usage: "permit HTTP beyond this machine, where there is no authentication"},
			&cli.DurationFlag{Name: "keep-alive", Value: edge.DefaultKeepAlive, Usage: "send a comment to the caller of a stream that is silent for `D`; 0 never does"},
			&cli.DurationFlag{Name: "timeout", Value: edge.DefaultTimeout, Usage: "give an agent `D` for its answer, but for streams"},
			&cli.IntFlag{Name: "loops", Usage: "run `N` event loops; 0 is one a processor"},
			documentFlag(),
			drainFlag(),
		}, append(append(protocolFlags("carry the `PROTOCOL` besides A2A: acp or slim"), transportFlags()...), logFlags("info")...)...),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			cfg, err := serveConfig(cmd)
			if err != nil {
				return err
			}
			ctx, stop := untilSignal(ctx)
			defer stop()
			return serve(ctx, cmd, cfg)
		},
	}
}

func serveConfig(cmd *cli.Command) (cfg relay.Config, err error) {
	if err := checkDrain(cmd); err != nil {
		return cfg, err
	}
	if n := cmd.Int("loops"); n < 0 {
		return cfg, usagef("--loops: %d is negative", n)
	}
	cfg = relay.Config{
		AllowOpenHTTP: cmd.Bool("allow-open-http"),
		Demo:          !cmd.Bool("no-demo"),
		Engine:        engine.Config{Loops: cmd.Int("loops")},
		StreamDrain:   streamDrain(cmd),
		ReplyTimeout:  cmd.Duration("timeout"),
	}
	if cfg.ReplyTimeout <= 0 {
		return cfg, usagef("--timeout: %v is not positive", cfg.ReplyTimeout)
	}
	cfg.Edge.Timeout = cfg.ReplyTimeout
	if cfg.AGNTCY, cfg.Tags, err = protocol(cmd); err != nil {
		return cfg, err
	}
	if cfg.Tags, err = documentTags(cmd, cfg.Tags); err != nil {
		return cfg, err
	}
	switch d := cmd.Duration("keep-alive"); {
	case d < 0:
		return cfg, usagef("--keep-alive: %v is negative", d)
	case d == 0:
		cfg.Edge.KeepAlive = -1
	default:
		cfg.Edge.KeepAlive = d
	}
	if err := transport(cmd, &cfg.Engine); err != nil {
		return cfg, err
	}
	if cfg.Engine.Certificate, err = loadCertificate(cmd); err != nil {
		return cfg, err
	}
	if cfg.Listen, err = address(cmd, "listen"); err != nil {
		return cfg, err
	}
	if cfg.HTTP, err = address(cmd, "http"); err != nil {
		return cfg, err
	}
	if cfg.Logger, err = logger(cmd); err != nil {
		return cfg, err
	}
	if file := cmd.String("allow-peers"); file != "" {
		set, err := identity.LoadSet(file)
		if err != nil {
			return cfg, err
		}
		cfg.Engine.Peers = identity.AllowList(set)
	}
	if file := cmd.String("policy"); file != "" {
		p, err := policy.Load(file, cfg.Logger)
		if err != nil {
			return cfg, err
		}
		cfg.Policy = byPolicy(p)
	}
	cfg.Engine.Identity, err = loadIdentity(cmd)
	andAbove(&cfg.Engine)
	return cfg, err
}

// byPolicy lets p decide on what a relay forwards.
func byPolicy(p *policy.Policy) func(*relay.Access) error {
	return func(a *relay.Access) error {
		return p.Decide(&policy.Access{
			Peer: a.Peer, Principal: a.Principal, Agent: a.Agent, Protocol: a.Protocol,
			Method: []byte(a.Method), Effect: a.Effect, Notification: a.Notification,
		})
	}
}

// loadCertificate reads what --tls-cert and --tls-key name; nil without them.
func loadCertificate(cmd *cli.Command) (*tls.Certificate, error) {
	cert, key := cmd.String("tls-cert"), cmd.String("tls-key")
	if (cert == "") != (key == "") {
		return nil, usagef("--tls-cert and --tls-key go together")
	}
	if cert == "" {
		return nil, nil
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	return &pair, nil
}

// serve runs a relay until ctx ends or it fails.
func serve(ctx context.Context, cmd *cli.Command, cfg relay.Config) error {
	r, err := relay.New(cfg)
	if err != nil {
		return err
	}
	if cfg.Engine.Identity == nil {
		cfg.Logger.Info("fresh identity: peers can't recognise this relay after a restart")
	}
	if err := r.Start(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // told to stop before it had begun
		}
		return err
	}
	if err := printLine(cmd, "ready npamp=%v http=%v key=%v", r.Addr(), r.HTTPAddr(), r.Key()); err != nil {
		return errors.Join(err, drain(ctx, cmd, cfg.Logger, r.Shutdown))
	}
	cfg.Logger.Info("serving", "key", r.Key(), "handle", r.Key().Handle())
	failed := make(chan error, 1)
	go func() { failed <- r.Wait() }()
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	return errors.Join(err, drain(ctx, cmd, cfg.Logger, r.Shutdown))
}

func drainFlag() cli.Flag {
	return &cli.DurationFlag{Name: "drain", Value: 10 * time.Second, Usage: "on a signal, give requests under way `D` to be answered"}
}

func checkDrain(cmd *cli.Command) error {
	if d := cmd.Duration("drain"); d < 0 {
		return usagef("--drain: %v is negative", d)
	}
	return nil
}

// streamDrain is how long streams may go on during a drain: some never end, and the
// rest of the time is for what follows their ends.
func streamDrain(cmd *cli.Command) time.Duration { return max(cmd.Duration("drain")/2, 1) }

// drain calls shutdown with the time that --drain allows. Running out of it is
// no error: what was left has been cut as announced, and everybody concerned
// told.
func drain(ctx context.Context, cmd *cli.Command, log *slog.Logger, shutdown func(context.Context) error) error {
	log.Info("draining", slog.Duration("at_most", cmd.Duration("drain")))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmd.Duration("drain"))
	defer cancel()
	err := shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		log.Warn("not everything was answered in time", slog.Any("error", err))
		return nil
	}
	if err == nil {
		log.Info("drained")
	}
	return err
}
