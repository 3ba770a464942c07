package engine

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/asm/aesgcm"
)

// E12: a kernel that failed its self-test is not used, and that is said once,
// when an engine starts.
func TestE12_FailedSelfTestIsLogged(t *testing.T) {
	start := func(result error) string {
		t.Helper()
		was := aesSelfTest
		defer func() { aesSelfTest = was }()
		aesSelfTest = func() error { return result }
		var log bytes.Buffer
		e, err := New(Config{Transport: TransportTCP, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.Shutdown(context.Background()); err != nil {
			t.Fatal(err)
		}
		return log.String()
	}
	const fault = "avx512; std is used"
	got := start(fmt.Errorf("%w: %s", aesgcm.ErrSelfTest, fault))
	if strings.Count(got, fault) != 1 || !strings.Contains(got, "level=WARN") {
		t.Errorf("the log is %q", got)
	}
	if got := start(nil); strings.Contains(got, "AES") {
		t.Errorf("the log is %q though nothing failed", got)
	}
}
