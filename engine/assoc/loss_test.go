package assoc_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/engine/assoc"
	"github.com/trestle-npamp/trestle/engine/conn"
	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/nptest"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/sched"
)

// endings is a channel that counts how often it is told of the end.
type endings struct {
	counting
	ends int
}

func (e *endings) Attach(*assoc.Association) assoc.ChannelConn { return e }
func (e *endings) HandleClose(err error) {
	e.ends++
	e.counting.HandleClose(err)
}

// The connection breaks after each step of a seeded load: every channel is told
// once, everything that was held is given back, everyone who waits is released,
// and nothing runs afterwards.
func TestConnectionLostAtEveryPoint(t *testing.T) {
	seeds, steps := 6, 60
	if testing.Short() {
		seeds = 2
	}
	cable := errors.New("cable")
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			for until := range steps {
				rnd := rand.New(rand.NewPCG(seed, 6))
				budget := buf.NewBudget(1 << 30)
				o := nptest.Options{Seed: seed, Latency: time.Duration(rnd.IntN(3)) * 10 * time.Millisecond, Chunk: []int{0, 100}[rnd.IntN(2)]}
				var sides [2]*loadSide
				var chans [2][]*endings
				for i, ao := range []*assoc.Options{&o.Client, &o.Server} {
					s := &loadSide{counters: new(conn.Counters)}
					for _, ch := range loadChannels {
						e := &endings{counting: counting{t: t, ch: ch}}
						chans[i] = append(chans[i], e)
						ao.Handlers = append(ao.Handlers, e)
					}
					ao.Budget, ao.Conn.Budget, ao.Conn.Counters = budget, budget, s.counters
					ao.Conn.HighWater = 2 << 10
					ao.Conn.Bounds = profiles.Bounds{Frames: 8}
					ao.Conn.Ratchet = profiles.Bounds{Frames: 30}
					ao.OutboundLimit = 16 << 10
					sides[i] = s
				}
				p := nptest.NewPair(t, o)
				sides[0].End, sides[1].End = p.Client, p.Server
				// Someone waits for a tier-2 step from the beginning.
				waiting := make(chan error, 1)
				go func() { waiting <- p.Client.Rekem(t.Context()) }()
				p.RunUntil(func() bool { return p.Client.Rekems() == 1 || len(waiting) == 1 })
				for range until {
					s := sides[rnd.IntN(2)]
					switch k := rnd.IntN(10); {
					case k < 6:
						_ = s.send(rnd.IntN(2), rnd.IntN(900)) // Immune waits for HELLO
					case k == 6:
						s.Do(func() { // perhaps only when it ends
							if err := s.Machine().Ratchet(); !errors.Is(err, assoc.ErrClosed) {
								command(t, err)
							}
						})
					case k == 7:
						s.Block(rnd.IntN(2) == 0)
					default:
						p.Run(time.Duration(rnd.IntN(30)) * time.Millisecond)
					}
				}
				p.Cut([]error{nil, cable}[until%2])
				p.Settle()
				for i, s := range sides {
					for _, e := range chans[i] {
						if e.ends != 1 || !errors.Is(e.err, assoc.ErrClosed) {
							t.Fatalf("after %d steps: %v was told %d times, %v", until, e.ch, e.ends, e.err)
						}
					}
					select {
					case <-s.Done():
					default:
						t.Fatalf("after %d steps side %d is not done", until, i)
					}
					if err := s.send(0, 1); !errors.Is(err, assoc.ErrClosed) {
						t.Fatalf("sending after the end: %v", err)
					}
					if s.Post(&sched.Node{Owner: neverRun{t}}) {
						t.Fatal("a task was taken after the end")
					}
				}
				if err := <-waiting; err != nil && !errors.Is(err, assoc.ErrClosed) && !errors.Is(err, assoc.ErrRekemCrossed) {
					t.Fatalf("who waited was told %v", err)
				}
				if n := budget.Used(); n != 0 {
					t.Fatalf("after %d steps %d octets are held", until, n)
				}
			}
		})
	}
}

// neverRun is a task that nobody may run.
type neverRun struct{ t *testing.T }

func (n neverRun) RunTask() { n.t.Error("a task that was refused ran") }
