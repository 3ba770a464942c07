package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/klauspost/cpuid/v2"
	"github.com/urfave/cli/v3"

	"github.com/trestle-npamp/trestle/bench"
	"github.com/trestle-npamp/trestle/crypto/record"
)

// build says what this binary was made from.
type build struct {
	Version  string // module version, "(devel)" for a build from a work tree
	Revision string // of the version control system, "" if the build left it out
	Modified bool   // the work tree held more than the revision
}

func readBuild() build {
	b := build{Version: "(devel)"}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "say what this binary is and what its processor offers",
		Description: `Prints one line each for the version, the Go toolchain, the processor, its features
that matter to the record layer, and the AEAD suites in the order in which they are
offered to a peer on this machine, and the AES-GCM that serves here (the environment
variable TRESTLE_AESGCM overrides it: avx512, avx2 or std), with those that would have
been preferred but failed their self-test.

   trestle version`,
		Action: func(_ context.Context, cmd *cli.Command) error {
			b := readBuild()
			version := b.Version
			if b.Revision != "" {
				version += " " + b.Revision
				if b.Modified {
					version += " (modified)"
				}
			}
			var suites []string
			for _, s := range record.PreferredSuites() {
				suites = append(suites, s.String())
			}
			out := cmd.Root().Writer
			for _, line := range [][2]string{
				{"trestle", version},
				{"go", runtime.Version() + " " + runtime.GOOS + "/" + runtime.GOARCH},
				{"cpu", cpuid.CPU.BrandName},
				{"features", features(&cpuid.CPU)},
				{"suites", strings.Join(suites, ", ")},
				{"aes-gcm", bench.AESGCM()},
			} {
				if _, err := fmt.Fprintf(out, "%-9s %s\n", line[0], line[1]); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

// features names what the processor has of the things that AES-GCM,
// ChaCha20-Poly1305 and the hashes run faster on.
func features(cpu *cpuid.CPUInfo) string {
	var have []string
	for _, f := range []cpuid.FeatureID{
		cpuid.AESNI, cpuid.CLMUL, cpuid.VAES, cpuid.VPCLMULQDQ, cpuid.AVX2, cpuid.AVX512F, cpuid.AVX512VL, cpuid.GFNI, cpuid.SHA, cpuid.BMI2, cpuid.ADX,
		cpuid.AESARM, cpuid.PMULL, cpuid.ASIMD, cpuid.SHA1, cpuid.SHA2, cpuid.SHA512, cpuid.SHA3, cpuid.SVE,
	} {
		if cpu.Supports(f) {
			have = append(have, f.String())
		}
	}
	if len(have) == 0 {
		return "none known"
	}
	return strings.Join(have, " ")
}
