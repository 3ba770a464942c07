package conformance

import "testing"

// CC-OPAQUE 11, one test a clause.

func TestCCOPAQUE11_1_BridgeAppliesInFull(t *testing.T)        { proves(t, "CC-OPAQUE 11(1)") }
func TestCCOPAQUE11_2_PayloadsCrossOctetForOctet(t *testing.T) { proves(t, "CC-OPAQUE 11(2)") }
func TestCCOPAQUE11_3_ContentTypesAreDeclared(t *testing.T)    { proves(t, "CC-OPAQUE 11(3)") }
func TestCCOPAQUE11_4_FrameTypesAndCorrelation(t *testing.T)   { proves(t, "CC-OPAQUE 11(4)") }
func TestCCOPAQUE11_5_AgreedProtocolIDs(t *testing.T)          { proves(t, "CC-OPAQUE 11(5)") }
func TestCCOPAQUE11_6_ChunksAreOnePayload(t *testing.T)        { proves(t, "CC-OPAQUE 11(6)") }
func TestCCOPAQUE11_7_ErrorsOfTheBridgeAlone(t *testing.T)     { proves(t, "CC-OPAQUE 11(7)") }

// CC-OPAQUE 11(8), 9: carriage adds no authentication, signature or discovery to a
// payload: there is nothing around it but what it is routed by.
func TestCCOPAQUE11_8_NothingIsAddedToPayloads(t *testing.T) {
	sendsNothingElse(t, func(c Carries) bool { return c.Class == "opaque" }, 10)
}
