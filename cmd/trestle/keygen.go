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
		Description: `Writes a fresh private key as PKCS#8 PEM to a file that only its owner can read, and prints
the public key in hex, which is what peers pin or put on their allow-list. Its handle, a
short name that serves as well, is printed with --handle instead. A file that exists
already is left alone. With --show nothing is written.

The profile standard wants ed25519, sovereign ml-dsa-87; high takes both.

   trestle keygen --out relay.pem
   trestle serve --identity relay.pem
   trestle call --to 127.0.0.1:7447 --pin "$(trestle keygen --show relay.pem)" --agent echo <request.json`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "out", Aliases: []string{"o"}, Usage: "write a fresh key to `FILE`", TakesFile: true},
			&cli.StringFlag{Name: "show", Usage: "print the public key of the identity in `FILE`", TakesFile: true},
			&cli.StringFlag{Name: "algorithm", Value: "ed25519", Usage: "make a key of `ALGORITHM`: ed25519 or ml-dsa-87"},
			&cli.BoolFlag{Name: "handle", Usage: "print the key's handle instead of the key"},
		},
		Action: func(_ context.Context, cmd *cli.Command) error {
			out, show := cmd.String("out"), cmd.String("show")
			switch {
			case out == "" && show == "":
				return usagef("keygen wants --out FILE, to make a key, or --show FILE, to print one's public key; see %q", cmd.FullName()+" --help")
			case out != "" && show != "":
				return usagef("--out and --show exclude each other")
			}
			scheme, ok := algorithms[cmd.String("algorithm")]
			if !ok {
				return usagef("--algorithm: %q is neither ed25519 nor ml-dsa-87", cmd.String("algorithm"))
			}
			key, err := keygen(scheme, out, show)
			if err != nil {
				return err
			}
			defer key.Wipe()
			text := key.Public().String()
			if cmd.Bool("handle") {
				text = key.Public().Handle()
			}
			_, err = fmt.Fprintln(cmd.Root().Writer, text)
			return err
		},
	}
}

var algorithms = map[string]profiles.Scheme{
	"ed25519":   profiles.Ed25519,
	"ml-dsa-87": profiles.MLDSA87,
}

// keygen makes a key and saves it to out, or loads the one in show.
func keygen(scheme profiles.Scheme, out, show string) (*identity.Key, error) {
	if show != "" {
		return identity.LoadFile(show)
	}
	key, err := identity.Generate(scheme, rand.Reader)
	if err != nil {
		return nil, err
	}
	if err := identity.SaveFile(out, key); err != nil {
		key.Wipe()
		return nil, err
	}
	return key, nil
}
