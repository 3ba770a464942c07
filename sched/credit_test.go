package sched

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

func TestCreditZeroValueLimitsNothing(t *testing.T) {
	var c Credit
	if !c.Take(1<<40) || c.Available() != math.MaxUint64 || c.Sent() != 1<<40 {
		t.Fatal("sending was limited")
	}
	if c.Update(5) || !c.Take(1) {
		t.Fatal("an update limited a side that is not in force")
	}
	if err := c.Receive(1 << 40); err != nil {
		t.Fatal(err)
	}
	c.Consume(1 << 40)
	if _, due := c.Grant(); due {
		t.Fatal("a grant is due where nothing is limited")
	}
}

func TestCreditTakeIsAllOrNothing(t *testing.T) {
	var c Credit
	c.LimitSend(100)
	if !c.Take(60) || c.Take(41) || c.Take(-1) || c.Available() != 40 || c.Sent() != 60 {
		t.Fatalf("after 60 of 100: %d left, %d sent", c.Available(), c.Sent())
	}
	if !c.Take(40) || !c.Take(0) || c.Take(1) || c.Available() != 0 {
		t.Fatal("the last octets of the credit")
	}
}

func TestCreditCountsWhatWasSentBeforeTheLimit(t *testing.T) {
	var c Credit
	c.Take(70)
	c.LimitSend(100)
	if c.Available() != 30 {
		t.Fatalf("%d left, want 30", c.Available())
	}
	c.LimitSend(50) // less than was sent
	if c.Available() != 0 || c.Take(1) {
		t.Fatal("sent beyond a limit that was lowered")
	}
	c.FreeSend()
	if !c.Take(1000) {
		t.Fatal("still limited after FreeSend")
	}
}

func TestCreditUpdateNeverLowers(t *testing.T) {
	var c Credit
	c.LimitSend(100)
	for _, step := range []struct {
		abs  uint64
		grew bool
		left uint64
	}{{100, false, 100}, {99, false, 100}, {0, false, 100}, {150, true, 150}, {120, false, 150}, {math.MaxUint64, true, math.MaxUint64}} {
		if grew := c.Update(step.abs); grew != step.grew || c.Available() != step.left {
			t.Fatalf("Update(%d): grew %v, left %d", step.abs, grew, c.Available())
		}
	}
}

func TestCreditOverrunChangesNothing(t *testing.T) {
	var c Credit
	c.LimitReceive(100, 10)
	if err := c.Receive(100); err != nil {
		t.Fatal(err)
	}
	if err := c.Receive(1); !errors.Is(err, ErrOverrun) || c.Held() != 100 {
		t.Fatalf("error %v, held %d", err, c.Held())
	}
	if err := c.Receive(0); err != nil {
		t.Fatal("an empty payload overran")
	}
	c.Consume(100)
	if err := c.Receive(1); !errors.Is(err, ErrOverrun) {
		t.Fatal("room was made before it was granted")
	}
	abs, due := c.Grant()
	if !due || abs != 200 {
		t.Fatalf("Grant %d, %v", abs, due)
	}
	if err := c.Receive(100); err != nil {
		t.Fatal(err)
	}
}

func TestCreditGrantsSeldomWithAWideWindow(t *testing.T) {
	var c Credit
	const window, unit = 16 << 20, 4 << 20
	c.LimitReceive(window, unit)
	grants := 0
	for range 64 * 16 { // 64 MiB in units of 64 KiB
		if err := c.Receive(64 << 10); err != nil {
			t.Fatal(err)
		}
		c.Consume(64 << 10)
		if abs, due := c.Grant(); due {
			grants++
			if again, due := c.Grant(); due {
				t.Fatalf("granted %d, then %d at once", abs, again)
			}
		}
	}
	if grants > 8 {
		t.Fatalf("%d grants for four windows, want at most two a window", grants)
	}
}

func TestCreditFreeReceive(t *testing.T) {
	var c Credit
	c.LimitReceive(10, 10)
	c.FreeReceive()
	if err := c.Receive(11); err != nil {
		t.Fatal(err)
	}
}

// Two sides that keep to their credit: no overrun, never more held than the
// window, and while the receiver consumes, any unit up to the largest gets
// through in the end.
func TestCreditPairNeverOverrunsAndNeverStalls(t *testing.T) {
	script(t, 100, func(t *testing.T, r *rand.Rand) {
		window := 1 + r.Uint64N(1<<r.IntN(24))
		largest := 1 + r.Uint64N(window)
		var sender, receiver Credit
		sender.LimitSend(window)
		receiver.LimitReceive(window, largest)
		unit := 1 + r.IntN(int(largest))
		for range 2000 {
			if sender.Take(unit) {
				if err := receiver.Receive(unit); err != nil {
					t.Fatalf("window %d, largest %d: %v", window, largest, err)
				}
				unit = 1 + r.IntN(int(largest))
			} else if receiver.Held() == 0 {
				t.Fatalf("window %d, largest %d: a unit of %d waits and nothing will free it", window, largest, unit)
			}
			if receiver.Held() > window {
				t.Fatalf("held %d of a window of %d", receiver.Held(), window)
			}
			if r.IntN(3) > 0 {
				receiver.Consume(int(r.Uint64N(receiver.Held() + 1)))
			} else {
				receiver.Consume(int(receiver.Held()))
			}
			if abs, due := receiver.Grant(); due && !sender.Update(abs) {
				t.Fatalf("a grant of %d gave the sender nothing", abs)
			}
		}
	})
}

func TestCreditLargestUnitOverTheWindow(t *testing.T) {
	var c Credit
	c.LimitReceive(100, math.MaxUint64)
	if _, due := c.Grant(); due {
		t.Fatal("due before anything was consumed")
	}
	if err := c.Receive(1); err != nil {
		t.Fatal(err)
	}
	c.Consume(1)
	if abs, due := c.Grant(); !due || abs != 101 {
		t.Fatalf("Grant %d, %v", abs, due)
	}
}

// A unit that no limit was made for passes while enough is left, on both sides, and
// nothing more before it is consumed.
func TestCreditOverdraw(t *testing.T) {
	var send, receive Credit
	send.LimitSend(1000)
	send.OverdrawSend(500)
	receive.LimitReceive(1000, 0)
	receive.OverdrawReceive(500)
	pass := func(n int, want bool) {
		t.Helper()
		if send.Allows(n) != want || send.Take(n) != want {
			t.Fatalf("%d octets after %d: taken %v", n, send.Sent(), !want)
		}
		if got := receive.Receive(n) == nil; got != want {
			t.Fatalf("%d octets after %d: received %v", n, send.Sent(), got)
		}
	}
	pass(400, true)
	pass(700, true)
	pass(1, false)
	pass(0, true)
	receive.Consume(501)
	if abs, due := receive.Grant(); !due || !send.Update(abs) {
		t.Fatal("no grant for what was consumed")
	}
	pass(402, false)
	pass(401, true)
	receive.Consume(1000)
	if abs, due := receive.Grant(); !due || !send.Update(abs) {
		t.Fatal("no grant for what was consumed")
	}
	pass(1<<20, true)
}
