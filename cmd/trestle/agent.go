package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/trestle-npamp/trestle/relay"
	"github.com/trestle-npamp/trestle/relay/upstream"
)

func agentCommand() *cli.Command {
	return &cli.Command{
		Name:  "agent",
		Usage: "bring an agent that speaks HTTP to a relay",
		Description: `Dials a relay, announces NAME there, and delivers each request for it to the HTTP agent at
URL, octet for octet both ways. It needs no open port and dials again when the relay is
lost, for ever.

   trestle agent --name mine --to 127.0.0.1:7447 --upstream http://127.0.0.1:9000/
   trestle agent --name mine --to relay.example:7447 --pin "$KEY" --identity mine.pem \
     --upstream http://127.0.0.1:9000/a2a

Each time the relay has been seen to hold the name it writes a line to standard output:

   ready agent=NAME peer=HEX

HEX is the relay's public key. The name belongs to our key while we are there; with
--identity it can be taken back after a restart even if the relay has not noticed that we
left.

With --protocol acp it brings an agent of AGNTCY's ACP: URL is where its paths begin, and the
relay is told the same protocol and id. With slim, a call or message of SLIM is POSTed to its
name below URL, as in URL/pkg.Service/Method, and answered by one message.

   trestle agent --protocol acp --protocol-id 0x10 --name runner --to 127.0.0.1:7447 \
     --upstream http://127.0.0.1:9000/

No redirect is followed, nothing compressed, and no request sent twice unless it is known
to be read-only. Headers of callers do not cross; what the agent wants to see of
credentials comes from --header-file.

SIGTERM or SIGINT drains it: new requests are refused and those under way answered; streams
may go on for half of --drain. A second signal ends it on the spot.

Exit codes: 0 drained, 1 could not run, 2 wrong usage.`,
		Flags: append(append([]cli.Flag{
			&cli.StringFlag{Name: "name", Required: true, Usage: "announce the agent as `NAME`"},
			&cli.StringFlag{Name: "upstream", Required: true, Usage: "deliver to the agent at `URL`, the JSON-RPC endpoint of one that speaks A2A"},
			&cli.StringFlag{Name: "card-url", Usage: "the agent's card is at `URL`; without it the well-known places are tried"},
			&cli.StringFlag{Name: "header-file", Usage: "send the fields in `FILE`, as in \"Authorization: Bearer ...\", one a line, with each request to the agent, and for a card at its host; only its owner may have access to it", TakesFile: true},
			&cli.DurationFlag{Name: "timeout", Value: relay.DefaultAgentTimeout, Usage: "give the agent `D` for an answer, but for streams"},
			&cli.DurationFlag{Name: "stream-idle", Usage: "give a stream up that says nothing for `D`; 0 never does"},
			documentFlag(),
			drainFlag(),
		}, append(protocolFlags("the agent speaks `PROTOCOL`: a2a, acp or slim"), dialFlags()...)...), logFlags("info")...),
		Action: func(ctx context.Context, cmd *cli.Command) error {
			cfg, err := agentConfig(cmd)
			if err != nil {
				return err
			}
			ctx, stop := untilSignal(ctx)
			defer stop()
			return runAgent(ctx, cmd, cfg)
		},
	}
}

func agentConfig(cmd *cli.Command) (cfg relay.AgentConfig, err error) {
	cfg = relay.AgentConfig{
		Timeout:     cmd.Duration("timeout"),
		StreamDrain: streamDrain(cmd),
		OnReady: func(s relay.Standing) {
			// Whoever reads it may have gone; the agent serves on.
			_ = printLine(cmd, "ready agent=%s peer=%v", s.Agent, s.Peer)
		},
	}
	if err := transport(cmd, &cfg.Engine); err != nil {
		return cfg, err
	}
	if err := checkDrain(cmd); err != nil {
		return cfg, err
	}
	if cfg.Timeout <= 0 {
		return cfg, usagef("--timeout: %v is not positive", cfg.Timeout)
	}
	if d := cmd.Duration("stream-idle"); d < 0 {
		return cfg, usagef("--stream-idle: %v is negative", d)
	}
	if cfg.AGNTCY, cfg.Tags, err = protocol(cmd); err != nil {
		return cfg, err
	}
	if cfg.Tags, err = documentTags(cmd, cfg.Tags); err != nil {
		return cfg, err
	}
	if cfg.Name, err = agentName(cmd, "name"); err != nil {
		return cfg, err
	}
	if cfg.Relay, err = address(cmd, "to"); err != nil {
		return cfg, err
	}
	if cfg.Peer, err = pinned(cmd); err != nil {
		return cfg, err
	}
	if cfg.Logger, err = logger(cmd); err != nil {
		return cfg, err
	}
	if cfg.Engine.Identity, err = loadIdentity(cmd); err != nil {
		return cfg, err
	}
	header, err := loadHeader(cmd.String("header-file"))
	if err != nil {
		return cfg, err
	}
	// The backend's deadline comes a moment before the agent's own, since it knows
	// whether anything was sent.
	client, err := upstream.New(upstream.Config{
		URL:     cmd.String("upstream"),
		CardURL: cmd.String("card-url"),
		Header:  header,
		Timeout: cfg.Timeout,
		Logger:  cfg.Logger,

		StreamIdle: cmd.Duration("stream-idle"),
	})
	if err != nil {
		return cfg, usagef("--upstream, --card-url or --header-file: %w", err)
	}
	cfg.Timeout += time.Second
	cfg.Backend, cfg.Operations = client, client
	return cfg, nil
}

const maxHeaderFile = 64 << 10

// loadHeader reads HTTP fields, one a line; none without a file. They are credentials
// as a rule, so that their file must be closed to others, like an identity's.
func loadHeader(file string) (http.Header, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("--header-file: %s has mode %04o, open to others than its owner", file, mode)
	}
	// A header ends with an empty line, and the file need not end its last one.
	text := io.MultiReader(io.LimitReader(f, maxHeaderFile), strings.NewReader("\r\n\r\n"))
	header, err := textproto.NewReader(bufio.NewReader(text)).ReadMIMEHeader()
	if err != nil {
		return nil, usagef("--header-file: %s: %w", file, err)
	}
	return http.Header(header), nil
}

// runAgent keeps an agent at its relay until ctx ends.
func runAgent(ctx context.Context, cmd *cli.Command, cfg relay.AgentConfig) error {
	a, err := relay.NewAgent(cfg)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	// Its own context ends only after the drain, which cuts what is left.
	go func() { ended <- a.Run(context.WithoutCancel(ctx)) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	return errors.Join(err, drain(ctx, cmd, cfg.Logger, a.Shutdown))
}
