package conformance

import "testing"

// MAP-AGNTCY 12, one test a clause.

func TestAGNTCY12_1_OnlyUnderTheAgreedID(t *testing.T)          { proves(t, "AGNTCY 12(1)") }
func TestAGNTCY12_2_PayloadsAreOpaqueAndDeclared(t *testing.T)  { proves(t, "AGNTCY 12(2)") }
func TestAGNTCY12_3_FrameTypesByInteraction(t *testing.T)       { proves(t, "AGNTCY 12(3)") }
func TestAGNTCY12_4_LabelsAndFailSafe(t *testing.T)             { proves(t, "AGNTCY 12(4)") }
func TestAGNTCY12_5_NoJSONRPCAndNoHostedProtocols(t *testing.T) { proves(t, "AGNTCY 12(5)") }
func TestAGNTCY12_6_RecordsAreNotCarriedHere(t *testing.T)      { proves(t, "AGNTCY 12(6)") }
func TestAGNTCY12_7_OneChannelAnExchange(t *testing.T)          { proves(t, "AGNTCY 12(7)") }
