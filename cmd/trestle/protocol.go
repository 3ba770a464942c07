package main

import (
	"strconv"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/trestle-npamp/trestle/mapping/agntcy"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// protocolFlags say what is carried besides or instead of A2A, and under which
// numbers, which relay, agents and callers must agree on.
func protocolFlags(usage string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "protocol", Value: "a2a", Usage: usage},
		&cli.StringFlag{Name: "protocol-id", Usage: "carry acp or slim under the experimental id `N`, 0x10 to 0x7F; relay and agents must have the same"},
		&cli.StringFlag{Name: "opaque-type", Usage: "declare media types that N-PAMP has no number for by the TLV and content type `TLV:CONTENT`, as in 0x40:0x70; relay and agents must have the same"},
	}
}

// protocol is what protocolFlags ask for; nil for A2A alone, and nil for no tags.
func protocol(cmd *cli.Command) (*agntcy.Mapping, *bridge.Tags, error) {
	name, id := cmd.String("protocol"), cmd.String("protocol-id")
	var surface agntcy.Surface
	switch name {
	case "a2a":
		if id != "" || cmd.String("opaque-type") != "" {
			return nil, nil, usagef("--protocol-id and --opaque-type are for --protocol acp and slim")
		}
		return nil, nil, nil
	case "acp":
		surface = agntcy.ACP
	case "slim":
		surface = agntcy.SLIM
	default:
		return nil, nil, usagef("--protocol: %q is none of a2a, acp and slim", name)
	}
	if id == "" {
		return nil, nil, usagef("--protocol %s needs --protocol-id: there is no id of its own for it", name)
	}
	n, err := strconv.ParseUint(id, 0, 8)
	if err != nil {
		return nil, nil, usagef("--protocol-id: %q is no number of 0x10 to 0x7F", id)
	}
	m, err := agntcy.New(agntcy.Config{ID: bridge.ProtocolID(n), Surface: surface})
	if err != nil {
		return nil, nil, usagef("--protocol-id: %w", err)
	}
	tags, err := opaqueType(cmd.String("opaque-type"))
	return m, tags, err
}

func opaqueType(s string) (*bridge.Tags, error) {
	if s == "" {
		return nil, nil
	}
	tlv, content, _ := strings.Cut(s, ":")
	t, err := strconv.ParseUint(tlv, 0, 16)
	c, err2 := strconv.ParseUint(content, 0, 8)
	if err != nil || err2 != nil || t == 0 || c == 0 {
		return nil, usagef("--opaque-type: %q is not of the form TLV:CONTENT, as in 0x40:0x70", s)
	}
	tags := &bridge.Tags{OpaqueContentType: wire.TLVType(t), OpaqueContent: bridge.ContentType(c)}
	if err := tags.Validate(); err != nil {
		return nil, usagef("--opaque-type: %w", err)
	}
	return tags, nil
}
