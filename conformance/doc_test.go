package conformance

import "testing"

// CC-DOC 12, one test a clause.

func TestCCDOC12_1_BridgeAppliesToEveryFrame(t *testing.T)          { proves(t, "CC-DOC 12(1)") }
func TestCCDOC12_2_DocumentsCrossOctetForOctet(t *testing.T)        { proves(t, "CC-DOC 12(2)") }
func TestCCDOC12_3_DigestsAreRecomputed(t *testing.T)               { proves(t, "CC-DOC 12(3)") }
func TestCCDOC12_4_EveryPartHasASoundBinding(t *testing.T)          { proves(t, "CC-DOC 12(4)") }
func TestCCDOC12_5_ProofsAreBoundToTheirDocument(t *testing.T)      { proves(t, "CC-DOC 12(5)") }
func TestCCDOC12_6_AlgorithmsAreCarriedNotPerformed(t *testing.T)   { proves(t, "CC-DOC 12(6)") }
func TestCCDOC12_7_SetsAreAssembledInAnyOrderAndWhole(t *testing.T) { proves(t, "CC-DOC 12(7)") }
func TestCCDOC12_8_FailuresHaveTheirCodes(t *testing.T)             { proves(t, "CC-DOC 12(8)") }
func TestCCDOC12_9_LabelsFailSafe(t *testing.T)                     { proves(t, "CC-DOC 12(9)") }
