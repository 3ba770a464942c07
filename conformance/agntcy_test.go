package conformance

import (
	"bytes"
	"slices"
	"testing"

	"github.com/trestle-npamp/trestle/wire/bridge"
)

// MAP-AGNTCY 12, one test a clause.

func TestAGNTCY12_1_OnlyUnderTheAgreedID(t *testing.T)          { proves(t, "AGNTCY 12(1)") }
func TestAGNTCY12_2_PayloadsAreOpaqueAndDeclared(t *testing.T)  { proves(t, "AGNTCY 12(2)") }
func TestAGNTCY12_3_FrameTypesByInteraction(t *testing.T)       { proves(t, "AGNTCY 12(3)") }
func TestAGNTCY12_4_LabelsAndFailSafe(t *testing.T)             { proves(t, "AGNTCY 12(4)") }
func TestAGNTCY12_5_NoJSONRPCAndNoHostedProtocols(t *testing.T) { proves(t, "AGNTCY 12(5)") }
func TestAGNTCY12_6_RecordsAreNotCarriedHere(t *testing.T)      { proves(t, "AGNTCY 12(6)") }
func TestAGNTCY12_7_OneChannelAnExchange(t *testing.T)          { proves(t, "AGNTCY 12(7)") }

// MAP-AGNTCY 12(8), 10: nothing stands in for SLIM's or ACP's own security: what we
// send has the envelope, the label and the stream's control around the payload, and
// nothing else.
func TestAGNTCY12_8_NoSecurityIsMadeUp(t *testing.T) {
	sendsNothingElse(t, func(c Carries) bool { return c.Mapping == "AGNTCY" }, 10)
}

// sendsNothingElse plays the scripts with such a protocol, and holds what the side
// under test sends against the payloads that its application gave.
func sendsNothingElse(t *testing.T, of func(c Carries) bool, least int) {
	t.Helper()
	frames := 0
	for _, s := range load(t) {
		if s.Not[Machines] != "" || !slices.ContainsFunc(s.Carries, of) {
			continue
		}
		given := [][]byte{nil}
		for _, st := range s.Steps {
			if st.Who == "app" && st.Foreign != nil {
				given = append(given, st.Foreign)
			}
		}
		b := &sent{Backend: newMachines(t, s)}
		if err := s.Run(b); err != nil {
			t.Error(err)
		}
		for _, f := range b.frames {
			var m bridge.Message
			if err := bridge.Parse(&m, f.Type, f.Payload, &s.Tags); err != nil {
				t.Errorf("%s: %v", s.Name, err)
				continue
			}
			_, _, transport := bridge.ParseTransportError(m.Foreign)
			ours := m.Kind == bridge.KindError && transport
			if len(m.Metadata) > 0 || !ours && !slices.ContainsFunc(given, func(g []byte) bool { return bytes.Equal(g, m.Foreign) }) {
				t.Errorf("%s: more is sent than was given: %q", s.Name, f.Payload)
			}
			frames++
		}
	}
	if frames < least {
		t.Errorf("%d frames", frames)
	}
}

// sent keeps what the side under test sends.
type sent struct {
	Backend
	frames []Received
}

func (b *sent) Receive(peer string) (Received, bool, error) {
	f, ok, err := b.Backend.Receive(peer)
	if ok {
		b.frames = append(b.frames, f)
	}
	return f, ok, err
}
