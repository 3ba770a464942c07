package relay

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// logged is a log that can be read while it is written.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) with(text string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, text) {
			lines = append(lines, line)
		}
	}
	return lines
}

// However many names a message announces, it is logged as one line, and so is
// their leaving; both show the key and its handle.
func TestComingsAndGoingsAreLogged(t *testing.T) {
	var log logged
	r := startRelay(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	c := dial(t, r, "")
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("a%d", i))
	}
	c.announceMany(names...)
	key := c.engine.Identity()
	shown := fmt.Sprintf(`agent="a0 a1 a2 a3 a4 a5 a6 a7" more=2 peer=%s handle=%s from=`, key, key.Handle())
	if got := log.with("agent connected"); len(got) != 1 || !strings.Contains(got[0], shown) {
		t.Errorf("%q, want one with %s", got, shown)
	}
	announce(t, c.disco, c.assoc, "0", "a0", 2) // nothing new
	if got := log.with("agent connected"); len(got) != 1 {
		t.Errorf("%q", got)
	}
	c.assoc.Close(0, "")
	eventually(t, "that they left is logged", func() bool { return len(log.with("agent left")) == 1 })
	if got := log.with("agent left"); !strings.Contains(got[0], shown) {
		t.Errorf("%q, want %s", got, shown)
	}
	r.arrivals.mu.Lock()
	defer r.arrivals.mu.Unlock()
	if n := len(r.arrivals.fresh); n != 0 {
		t.Errorf("%d associations wait to be logged", n)
	}
}

// A peer can't fill the log, and what was omitted is counted.
func TestLinesAreBounded(t *testing.T) {
	var l lines
	now := time.Unix(1000, 0)
	for i := range maxLines {
		if omitted, ok := l.take(now); omitted != 0 || !ok {
			t.Fatalf("line %d: %d %v", i, omitted, ok)
		}
	}
	for range 5 {
		if _, ok := l.take(now.Add(999 * time.Millisecond)); ok {
			t.Fatal("one too many")
		}
	}
	if omitted, ok := l.take(now.Add(time.Second)); omitted != 5 || !ok {
		t.Errorf("%d %v", omitted, ok)
	}
	if omitted, ok := l.take(now.Add(time.Second)); omitted != 0 || !ok {
		t.Errorf("%d %v", omitted, ok)
	}
}

// A shutdown that has begun takes no new agents, while it lets requests end.
func TestNoAgentsAreTakenDuringAShutdown(t *testing.T) {
	r := startRelay(t, Config{})
	inside, release := make(chan struct{}), make(chan struct{})
	startHTTP(t, r, "a", http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		id := idOf(t, read(t, req))
		close(inside)
		<-release
		respond(w, 200, `{"jsonrpc":"2.0","id":`+id+`,"result":"done"}`)
	}))
	c := dial(t, r, "")
	announce(t, c.disco, c.assoc, "1", "before", 1)
	var wg sync.WaitGroup
	wg.Go(func() { post(t, r, "a", sendText("1", "hi")).want(t, 200, "done") })
	<-inside
	wg.Go(func() {
		if err := r.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "it drains", r.forward.drain.Load)
	announce(t, c.disco, c.assoc, "2", "late", 1)
	announce(t, c.disco, c.assoc, "1", "late-as-well", 2) // no other name for an old one
	if names := r.Agents(); len(names) != 2 || slices.Contains(names, "late") || !slices.Contains(names, "before") {
		t.Errorf("agents %q", names)
	}
	if s := r.Stats().Discovery; s.Refused != 2 {
		t.Errorf("%d refused", s.Refused)
	}
	close(release)
	wg.Wait()
}
