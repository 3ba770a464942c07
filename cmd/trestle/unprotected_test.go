//go:build trestle_unprotected

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/bench"
)

// A build that seals nothing measures, and does nothing that is worth sealing.
func TestUnprotectedBuildsOnlyMeasure(t *testing.T) {
	for _, args := range []string{
		"serve", "serve --http 127.0.0.1:0", "agent --name a --to 127.0.0.1:1 --upstream http://127.0.0.1:1",
		"call --to 127.0.0.1:1 --agent a", "keygen --out k", "conform",
	} {
		r := trestle(t, "{}", strings.Fields(args)...)
		if r.code != exitUsage || r.out != "" || !strings.Contains(r.err, errUnprotected.Error()) {
			t.Errorf("%s: code %d, stdout %q, stderr %q", args, r.code, r.out, r.err)
		}
	}
}

func TestUnprotectedBuildsSaySo(t *testing.T) {
	if r := trestle(t, "", "version"); r.code != exitOK || !strings.Contains(r.out, "aes-gcm   none") {
		t.Errorf("version: code %d: %s%s", r.code, r.out, r.err)
	}
	t.Setenv(asProgram, "1") // for the server that it starts
	for _, transport := range bench.Transports {
		args := []string{"bench", "unary", "--transport", transport, "--conns", "1", "--duration", "50ms", "--warmup", "0"}
		r := trestle(t, "", args...)
		if r.code != exitOK || !strings.Contains(r.out, "AES-GCM none") || !strings.Contains(r.out, "protection  NONE") {
			t.Errorf("%s: code %d: %s%s", transport, r.code, r.out, r.err)
		}
		r = trestle(t, "", append(args, "--json", "-")...)
		var report bench.Report
		if err := json.Unmarshal([]byte(r.out), &report); err != nil || report.Requests == 0 || !strings.HasPrefix(report.Machine.AESGCM, "none") {
			t.Errorf("%s: %v: %s", transport, err, r.out)
		}
	}
}
