package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
	"github.com/trestle-npamp/trestle/wire/control"
)

// Flags that several commands have.

func identityFlag(usage string) cli.Flag {
	return &cli.StringFlag{Name: "identity", Usage: usage, TakesFile: true}
}

// transportFlags say what carries associations and how strong they are; both
// ends must agree.
func transportFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "transport", Value: engine.TransportTLS.String(), Usage: "`TRANSPORT` under the associations: tls, or tcp for raw TCP"},
		&cli.BoolFlag{Name: "allow-raw-remote", Usage: "permit raw TCP beyond this machine; what is said stays secret, but not on which channels and when"},
		&cli.StringFlag{Name: "profile", Value: "standard", Usage: "security `PROFILE`: standard, high or sovereign; nothing below it is accepted"},
	}
}

// transport puts what transportFlags ask for into cfg.
func transport(cmd *cli.Command, cfg *engine.Config) error {
	name := cmd.String("transport")
	for _, t := range []engine.Transport{engine.TransportTLS, engine.TransportTCP} {
		if t.String() == name {
			cfg.Transport, cfg.AllowRawRemote = t, cmd.Bool("allow-raw-remote")
			return profile(cmd, cfg)
		}
	}
	return usagef("--transport: %q is neither tls nor tcp", name)
}

// profile puts the one that --profile names into cfg.
func profile(cmd *cli.Command, cfg *engine.Config) error {
	name := cmd.String("profile")
	for _, p := range profiles.All() {
		if strings.EqualFold(p.Name, name) {
			cfg.Profiles = []*profiles.Profile{p}
			return nil
		}
	}
	return usagef("--profile: %q is none of standard, high and sovereign", name)
}

// andAbove lets a server that accepts a profile accept the stronger ones too,
// strongest first, as far as its identity can serve them.
func andAbove(cfg *engine.Config) {
	least := cfg.Profiles[0]
	scheme := profiles.CommonScheme(least) // of a fresh identity
	if cfg.Identity != nil {
		scheme = cfg.Identity.Public().Scheme()
	}
	var accepted []*profiles.Profile
	for _, p := range profiles.All() {
		if p.Code >= least.Code && p.AcceptsScheme(scheme) {
			accepted = append([]*profiles.Profile{p}, accepted...)
		}
	}
	if len(accepted) > 0 { // otherwise the engine says what does not fit
		cfg.Profiles = accepted
	}
}

// dialFlags say which relay to dial, and who we are to it.
func dialFlags() []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "to", Required: true, Usage: "dial the relay at `HOST:PORT`"},
		&cli.StringFlag{Name: "pin", Usage: "accept only the relay with this public `KEY`, in hex or as its handle; without it any on this machine is accepted and none elsewhere"},
		&cli.StringFlag{Name: "known-peers", Usage: "trust on first use: accept the relay by the key that --to has in `FILE`, and write down there the key of a new one", TakesFile: true},
		identityFlag("identify with the key in `FILE` (see keygen); a fresh one without it"),
	}, transportFlags()...)
}

// documentFlag is the number that has none assigned yet.
func documentFlag() cli.Flag {
	return &cli.StringFlag{Name: "document-binding", Usage: "carry cards as document sets, with their signatures as proofs, under the TLV `TYPE`, such as 0x40; all who take part must agree on it, and without it cards cross as plain octets"}
}

// documentTags adds what documentFlag says to the other numbers, nil for none.
func documentTags(cmd *cli.Command, others *bridge.Tags) (*bridge.Tags, error) {
	text := cmd.String("document-binding")
	if text == "" {
		return others, nil
	}
	n, err := strconv.ParseUint(text, 0, 16)
	tags := new(bridge.Tags)
	if others != nil {
		*tags = *others
	}
	tags.DocumentBinding = wire.TLVType(n)
	if err != nil || n == 0 || tags.Validate() != nil {
		return nil, usagef("--document-binding: %q is no TLV type from 0x12 to 0xff that is free to use", text)
	}
	return tags, nil
}

// loadIdentity reads the key that --identity names; nil without one, for which
// an engine makes its own.
func loadIdentity(cmd *cli.Command) (identity.PrivateKey, error) {
	file := cmd.String("identity")
	if file == "" {
		return nil, nil
	}
	key, err := identity.LoadFile(file)
	if err != nil {
		return nil, err // a nil *Key must not become a PrivateKey
	}
	return key, nil
}

// pinned gives the verifier that --pin or --known-peers asks for, nil without
// them.
func pinned(cmd *cli.Command) (identity.Verifier, error) {
	text, file := cmd.String("pin"), cmd.String("known-peers")
	switch {
	case text != "" && file != "":
		return nil, usagef("--pin and --known-peers exclude each other")
	case text != "":
		ref, err := identity.ParseRef(text)
		if err != nil {
			return nil, usagef("--pin: %w", err)
		}
		return identity.PinRef(ref), nil
	case file != "":
		known, err := identity.OpenKnownPeers(file)
		if err != nil {
			return nil, err
		}
		return known.Verifier(cmd.String("to")), nil
	}
	return nil, nil
}

// address reads a flag that has the form HOST:PORT.
func address(cmd *cli.Command, flag string) (string, error) {
	addr := cmd.String(flag)
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return "", usagef("--%s: %w", flag, err)
	}
	return addr, nil
}

// agentName reads a flag that names an agent.
func agentName(cmd *cli.Command, flag string) (string, error) {
	name := cmd.String(flag)
	if !control.ValidAgentName(name) {
		return "", usagef("--%s: %q is no agent name: 1 to 64 of a-z, 0-9, '.', '_' and '-'", flag, name)
	}
	return name, nil
}

// printLine writes one line to standard output.
func printLine(cmd *cli.Command, format string, args ...any) error {
	_, err := fmt.Fprintf(cmd.Root().Writer, format+"\n", args...)
	return err
}
