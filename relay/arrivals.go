package relay

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/engine"
)

const (
	// maxLines is how many lines a second are logged about agents that come and go,
	// whoever they are: a peer decides how often it does.
	maxLines = 32
	// maxListed is how many names are in one line.
	maxListed = 8
)

// arrivals logs agents that come and go: a line for all that an association brought
// at once or takes along.
type arrivals struct {
	log *slog.Logger

	mu    sync.Mutex
	fresh map[*engine.Association][]string // not logged yet
	lines lines
}

// came is told on a's loop.
func (l *arrivals) came(a *engine.Association, name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fresh == nil {
		l.fresh = make(map[*engine.Association][]string)
	}
	first := l.fresh[a] == nil
	l.fresh[a] = append(l.fresh[a], name)
	// What is posted on the loop runs when the message has been handled.
	if first && !a.Do(func() { l.tell("agent connected", a, l.take(a)) }) {
		delete(l.fresh, a)
	}
}

func (l *arrivals) take(a *engine.Association) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	names := l.fresh[a]
	delete(l.fresh, a)
	return names
}

// left is told on a's loop which names were still its.
func (l *arrivals) left(a *engine.Association, names []string) {
	if fresh := l.take(a); fresh != nil {
		l.tell("agent connected", a, fresh)
	}
	l.tell("agent left", a, names)
}

func (l *arrivals) tell(what string, a *engine.Association, names []string) {
	if len(names) == 0 {
		return
	}
	l.mu.Lock()
	omitted, ok := l.lines.take(time.Now())
	l.mu.Unlock()
	if !ok {
		return
	}
	attrs := []any{slog.String("agent", strings.Join(names[:min(len(names), maxListed)], " "))}
	if n := len(names) - maxListed; n > 0 {
		attrs = append(attrs, slog.Int("more", n))
	}
	attrs = append(attrs, peer(a.PeerKey())...)
	attrs = append(attrs, slog.Any("from", a.RemoteAddr()))
	if omitted > 0 {
		attrs = append(attrs, slog.Int("omitted", omitted))
	}
	l.log.Info(what, attrs...)
}

// peer is a key as it is logged: as it is pinned, and its handle, which is what
// other programs show.
func peer(k identity.PublicKey) []any {
	return []any{slog.String("peer", k.String()), slog.String("handle", k.Handle())}
}

// lines bounds how many lines a second are logged.
type lines struct {
	since   time.Time // the second that is counted
	n       int
	omitted int
}

// take says whether there may be one more, and how many were omitted before it.
func (l *lines) take(now time.Time) (omitted int, ok bool) {
	if d := now.Sub(l.since); d < 0 || d >= time.Second {
		l.since, l.n = now, 0
	}
	if l.n >= maxLines {
		l.omitted++
		return 0, false
	}
	l.n++
	omitted, l.omitted = l.omitted, 0
	return omitted, true
}
