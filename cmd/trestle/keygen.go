package main

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/profiles"
)

func keygenCommand() *cli.Command {
	return &cli.Command{
		Name:  "keygen",
		Usage: "make an identity and print its public key",
		Description: `Writes a fresh Ed25519 private key as PKCS#8 PEM to a file that only its owner can read,
and prints the public key in hex, which is what peers pin or put on their allow-list.
A file that exists already is left alone. With --show nothing is written.

   trestle keygen --out relay.pem
   trestle serve --identity relay.pem
   trestle call --to 127.0.0.1:7447 --pin "$(trestle keygen --show relay.pem)" --agent echo <request.json`,
		MutuallyExclusiveFlags: []cli.MutuallyExclusiveFlags{{
			Required: true,
			Flags: [][]cli.Flag{
				{&cli.StringFlag{Name: "out", Aliases: []string{"o"}, Usage: "write a fresh key to `FILE`", TakesFile: true}},
				{&cli.StringFlag{Name: "show", Usage: "print the public key of the identity in `FILE`", TakesFile: true}},
			},
		}},
		Action: func(_ context.Context, cmd *cli.Command) error {
			key, err := keygen(cmd.String("out"), cmd.String("show"))
			if err != nil {
				return err
			}
			defer key.Wipe()
			_, err = fmt.Fprintln(cmd.Root().Writer, key.Public())
			return err
		},
	}
}

// keygen makes a key and saves it to out, or loads the one in show.
func keygen(out, show string) (*identity.Key, error) {
	if show != "" {
		return identity.LoadFile(show)
	}
	key, err := identity.Generate(profiles.Ed25519, rand.Reader)
	if err != nil {
		return nil, err
	}
	if err := identity.SaveFile(out, key); err != nil {
		key.Wipe()
		return nil, err
	}
	return key, nil
}
