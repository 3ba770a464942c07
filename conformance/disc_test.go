package conformance

import "testing"

// DISC 11, one test a clause.

func TestDISC11_1_OnlyTheSevenTypes(t *testing.T)               { proves(t, "DISC 11(1)") }
func TestDISC11_2_DeterministicMapsAndTheirFaults(t *testing.T) { proves(t, "DISC 11(2)") }
func TestDISC11_3_Correlation(t *testing.T)                     { proves(t, "DISC 11(3)") }
func TestDISC11_4_RecordsAndRevisions(t *testing.T)             { proves(t, "DISC 11(4)") }
func TestDISC11_5_FaithfulResults(t *testing.T)                 { proves(t, "DISC 11(5)") }
func TestDISC11_6_Subscriptions(t *testing.T)                   { proves(t, "DISC 11(6)") }
func TestDISC11_7_AClaimIsNoPermission(t *testing.T)            { proves(t, "DISC 11(7)") }
func TestDISC11_8_NothingThatIsNotCarried(t *testing.T)         { proves(t, "DISC 11(8)") }
