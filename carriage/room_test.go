package carriage

import "testing"

func woken(w *roomWaiter) bool {
	select {
	case <-w.woken:
		return true
	default:
		return false
	}
}

// Of those who wait for room, those are woken who have some, in the order in which
// they came, and nobody else.
func TestRoomWakesWhoHasSomeInOrder(t *testing.T) {
	const n, octets, limit = 1000, 10, 55
	var l roomList
	all := make([]*roomWaiter, n)
	for i := range all {
		all[i] = &roomWaiter{octets: octets, woken: make(chan struct{})}
		l.enlist(all[i])
	}
	l.leave(all[1])
	l.leave(all[1]) // as AwaitRoom does again
	l.wake(50, limit)
	if woken(all[0]) {
		t.Error("woken without room")
	}
	l.wake(20, limit)
	for i, w := range all {
		// From 20 octets there is room for three more.
		if want := i == 0 || i == 2 || i == 3; woken(w) != want {
			t.Fatalf("waiter %d woken: %v, want %v", i, !want, want)
		}
	}
	all[4].octets = 10 * limit
	l.wake(octets, limit)
	if woken(all[4]) || woken(all[5]) {
		t.Error("who needs everything has room beside others, or lost its turn")
	}
	l.wake(0, limit)
	if !woken(all[4]) || woken(all[5]) {
		t.Error("a single request has no room of its own")
	}
	l.leave(all[n-1])
	for i := 5; i < n-1; i++ {
		l.wake(limit-octets, limit)
		if !woken(all[i]) || woken(all[i+1]) {
			t.Fatalf("not waiter %d alone", i)
		}
	}
	if l.waiting.Load() != 0 || l.first != nil || l.last != nil {
		t.Errorf("%d wait", l.waiting.Load())
	}
}
