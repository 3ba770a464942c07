//go:build invariants

package sched

import (
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/wire"
)

// In builds with the tag "invariants" the misuses that would corrupt a structure
// panic where they happen.
func TestInvariantsCatchMisuse(t *testing.T) {
	for name, misuse := range map[string]func(){
		"slot released twice": func() {
			s := NewSlots[int](2, 0, 0)
			slot, _ := s.Reserve()
			s.Release(slot)
			s.Release(slot)
		},
		"free slot published": func() {
			s := NewSlots[int](2, 0, 0)
			slot, _ := s.Reserve()
			s.Release(slot)
			slot.Publish()
		},
		"frame put back twice": func() {
			f := GetFrame()
			PutFrame(f)
			PutFrame(f)
		},
		"queued frame put back": func() {
			var q Queue
			f := GetFrame()
			q.Push(f)
			PutFrame(f)
		},
		"frame queued twice": func() {
			var q Queue
			f := GetFrame()
			q.Push(f)
			q.Push(f)
		},
		"flow of another queue dropped": func() {
			var q, other Queue
			var fl Flow
			q.Push(makeFrame(wire.ChannelBridge, 0, &fl, 100))
			other.DropFlow(&fl)
		},
		"offer of a flow without source": func() {
			var q Queue
			var fl Flow
			q.Offer(&fl, wire.ChannelBridge, wire.FirstChannelType, 100)
		},
		"node without owner": func() { new(Inbox).Push(new(Node)) },
		"timer without owner": func() {
			NewWheel(1, 0).Start(new(Timer), 1)
		},
		"wheel advanced by an expirer": func() {
			w := NewWheel(1, 0)
			w.Start(&newAlarm(0, func(_ *alarm, now time.Duration) { w.Advance(now + 1) }).Timer, 1)
			w.Advance(2)
		},
		"consumed more than received": func() { new(Credit).Consume(1) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("passed unnoticed")
				}
			}()
			misuse()
		})
	}
}
