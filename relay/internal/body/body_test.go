package body

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"github.com/trestle-npamp/trestle/internal/buf"
)

func octets(n int) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(uint64(n), 1))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func TestReadReturnsTheOctetsThatArrived(t *testing.T) {
	budget := buf.NewBudget(64 << 20)
	for _, n := range []int{0, 1, 255, 256, 4095, 4096, 4097, 100_000, 1 << 20, 3 << 20} {
		for name, announced := range map[string]int64{"announced": int64(n), "not announced": -1, "announced wrongly": 7} {
			want := octets(n)
			for kind, r := range map[string]io.Reader{
				"whole":               bytes.NewReader(want),
				"data with the error": iotest.DataErrReader(bytes.NewReader(want)),
				"halves":              iotest.HalfReader(bytes.NewReader(want)),
			} {
				b, err := Read(r, announced, 4<<20, budget)
				if err != nil {
					t.Fatalf("%d octets, %s, %s: %v", n, name, kind, err)
				}
				if !bytes.Equal(b.Bytes(), want) {
					t.Errorf("%d octets, %s, %s: other octets came out", n, name, kind)
				}
				b.Release()
				b.Release()
			}
		}
	}
	if used := budget.Used(); used != 0 {
		t.Errorf("%d octets of the budget were not given back", used)
	}
}

func TestBodyOverTheLimitIsRefused(t *testing.T) {
	budget := buf.NewBudget(64 << 20)
	if b, err := Read(bytes.NewReader(octets(1000)), -1, 1000, budget); err != nil || len(b.Bytes()) != 1000 {
		t.Fatalf("a body just within the limit: %v", err)
	} else {
		b.Release()
	}
	read := 0
	for name, r := range map[string]io.Reader{"plain": bytes.NewReader(octets(1001)), "slow": iotest.OneByteReader(bytes.NewReader(octets(1001)))} {
		if _, err := Read(r, -1, 1000, budget); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v, want ErrTooLarge", name, err)
		}
	}
	if _, err := Read(readerFunc(func([]byte) (int, error) { read++; return 0, io.EOF }), 1001, 1000, budget); !errors.Is(err, ErrTooLarge) || read != 0 {
		t.Errorf("announced over the limit: %v after %d reads, want ErrTooLarge before any", err, read)
	}
	if used := budget.Used(); used != 0 {
		t.Errorf("%d octets of the budget were not given back", used)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// Nothing is allocated ahead of what arrived: an announced gigabyte costs what a
// first read costs.
func TestAnnouncedLengthMakesNoRoom(t *testing.T) {
	budget := buf.NewBudget(1 << 30)
	failed := errors.New("gone")
	var peak int64
	sent := 0
	_, err := Read(readerFunc(func(b []byte) (int, error) {
		peak = max(peak, budget.Used())
		if sent == 10_000 {
			return 0, failed
		}
		n := min(len(b), 10_000-sent)
		sent += n
		return n, nil
	}), 1<<30, 1<<30, budget)
	if !errors.Is(err, failed) {
		t.Fatal(err)
	}
	if peak > 64<<10 {
		t.Errorf("10,000 octets that arrived of an announced gigabyte took %d octets", peak)
	}
	if used := budget.Used(); used != 0 {
		t.Errorf("%d octets of the budget were not given back", used)
	}
}

func TestBodiesShareABudget(t *testing.T) {
	budget := buf.NewBudget(2 * buf.MinClass)
	a, err := Read(bytes.NewReader(octets(100)), 100, 1000, budget)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Read(bytes.NewReader(octets(100)), 100, 1000, budget)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Read(bytes.NewReader(octets(100)), 100, 1000, budget); !errors.Is(err, ErrBudget) {
		t.Fatalf("a third body: %v, want ErrBudget", err)
	}
	a.Release()
	c, err := Read(bytes.NewReader(octets(100)), 100, 1000, budget)
	if err != nil {
		t.Fatalf("after one was released: %v", err)
	}
	b.Release()
	c.Release()
	if used := budget.Used(); used != 0 {
		t.Errorf("%d octets of the budget were not given back", used)
	}
}

func TestEmptyBodies(t *testing.T) {
	var none *Body
	none.Release()
	if none.Bytes() != nil || (&Body{}).Bytes() != nil {
		t.Error("an empty body has octets")
	}
}

func TestCopyIsBoundedToo(t *testing.T) {
	budget := buf.NewBudget(buf.MinClass)
	b, err := Copy([]byte("card"), budget)
	if err != nil || string(b.Bytes()) != "card" {
		t.Fatalf("%q, %v", b.Bytes(), err)
	}
	if _, err := Copy([]byte("card"), budget); !errors.Is(err, ErrBudget) {
		t.Errorf("%v, want ErrBudget", err)
	}
	b.Release()
	b.Release()
	if used := budget.Used(); used != 0 {
		t.Errorf("%d octets of the budget were not given back", used)
	}
}

// What is appended bit by bit takes at most four times its size, however long it
// gets, and is whole.
func TestAppendGrowsByWhatCame(t *testing.T) {
	for _, n := range []int{0, 1, 256, 257, 100_000, 1 << 20, 5 << 20} {
		budget := buf.NewBudget(64 << 20)
		want, b := octets(n), New(budget)
		for at := 0; at < n; at += 4000 {
			if err := b.Append(want[at:min(n, at+4000)], 6<<20); err != nil {
				t.Fatal(err)
			}
			if held, most := budget.Used(), min(max(buf.MinClass, 4*len(b.Bytes())), 6<<20); held > int64(most) {
				t.Fatalf("%d octets take %d", len(b.Bytes()), held)
			}
		}
		if !bytes.Equal(b.Bytes(), want) {
			t.Errorf("%d octets: other octets came out", n)
		}
		b.Release()
		if used := budget.Used(); used != 0 {
			t.Errorf("%d octets of the budget were not given back", used)
		}
	}
	b := New(buf.NewBudget(buf.MinClass))
	if err := b.Append(octets(200), 1000); err != nil {
		t.Fatal(err)
	}
	if err := b.Append(octets(200), 1000); !errors.Is(err, ErrBudget) || !bytes.Equal(b.Bytes(), octets(200)) {
		t.Errorf("over the budget: %v, with %d octets", err, len(b.Bytes()))
	}
	if err := b.Append(octets(200), 399); !errors.Is(err, ErrTooLarge) || !bytes.Equal(b.Bytes(), octets(200)) {
		t.Errorf("over the limit: %v, with %d octets", err, len(b.Bytes()))
	}
	b.Release()
}
