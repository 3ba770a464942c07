package conformance

import "testing"

// NPAMP-REG 11, one test a clause.

func TestREG11_1_ProtocolIDIsOneOctetInItsRanges(t *testing.T) { proves(t, "REG 11(1)") }
func TestREG11_2_EachIDHasItsClass(t *testing.T)               { proves(t, "REG 11(2)") }
func TestREG11_3_NullIsMalformed(t *testing.T)                 { proves(t, "REG 11(3)") }
func TestREG11_4_ExperimentalIDsOnlyByAgreement(t *testing.T)  { proves(t, "REG 11(4)") }
func TestREG11_5_PrivateIDsStayInTheirDomain(t *testing.T)     { proves(t, "REG 11(5)") }
func TestREG11_6_WhatIsNotCarriedIsUnsupported(t *testing.T)   { proves(t, "REG 11(6)") }
func TestREG11_7_NothingElseSelectsTheProtocol(t *testing.T)   { proves(t, "REG 11(7)") }
