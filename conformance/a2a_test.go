package conformance

import (
	"slices"
	"testing"

	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// MAP-A2A 14, one test a clause.

func TestA2A14_1_UnderItsOwnIDAsJSON(t *testing.T)            { proves(t, "A2A 14(1)") }
func TestA2A14_2_UnaryMethodsAndErrors(t *testing.T)          { proves(t, "A2A 14(2)") }
func TestA2A14_3_LabelsAndFailSafe(t *testing.T)              { proves(t, "A2A 14(3)") }
func TestA2A14_4_StreamsWithoutServerSentEvents(t *testing.T) { proves(t, "A2A 14(4)") }
func TestA2A14_5_ResubscribeIsResumption(t *testing.T)        { proves(t, "A2A 14(5)") }
func TestA2A14_6_CardsAreDocuments(t *testing.T)              { proves(t, "A2A 14(6)") }
func TestA2A14_7_PushNotificationConfiguration(t *testing.T)  { proves(t, "A2A 14(7)") }
func TestA2A14_8_OnlyItsChannels(t *testing.T)                { proves(t, "A2A 14(8)") }

// MAP-A2A 10: what A2A's frames are made of, sent and received, is enumerated there;
// the number for document bindings is configured and has no default (D7).
func TestA2A14_9_NoCodePointsOfItsOwn(t *testing.T) {
	frames := 0
	for _, s := range load(t) {
		if s.Not[Machines] != "" || len(s.Carries) != 1 || s.Carries[0].Mapping != "A2A" || s.Side == Advertiser {
			continue
		}
		b := &codePoints{Backend: newMachines(t, s), t: t, s: s}
		if err := s.Run(b); err != nil {
			t.Error(err)
		}
		frames += b.frames
	}
	if frames < 50 {
		t.Errorf("%d frames", frames)
	}
}

// codePoints looks at what the side under test sends.
type codePoints struct {
	Backend
	t      *testing.T
	s      *Script
	frames int
}

func (b *codePoints) Receive(peer string) (Received, bool, error) {
	f, ok, err := b.Backend.Receive(peer)
	if !ok {
		return f, ok, err
	}
	b.frames++
	if f.Channel != max(wire.ChannelBridge, b.s.Documents) || f.Type < bridge.TypeRequest || f.Type > bridge.TypeStreamEnd {
		b.t.Errorf("%s: a frame of type 0x%04x on channel %v", b.s.Name, uint16(f.Type), f.Channel)
	}
	allowed := []wire.TLVType{0x0010, 0x0011, 0x0013}
	if n := b.s.Tags.DocumentBinding; n != 0 {
		allowed = append(allowed, n)
	}
	// JSON and transport errors don't begin with a zero octet, so TLVs are what does.
	rest := f.Payload
	for len(rest) > 0 && rest[0] == 0 {
		tlv, n, err := wire.ConsumeTLV(rest)
		if err != nil {
			break // the octets of a proof
		}
		if !slices.Contains(allowed, tlv.Type) {
			b.t.Errorf("%s: a TLV of type 0x%04x", b.s.Name, uint16(tlv.Type))
		}
		rest = rest[n:]
	}
	return f, ok, err
}
