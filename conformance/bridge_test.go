package conformance

import "testing"

// BRIDGE 9, one test a clause.

func TestBRIDGE9_1_ForeignMessagesCrossOctetForOctet(t *testing.T)     { proves(t, "BRIDGE 9(1)") }
func TestBRIDGE9_2_EnvelopesAreEmittedAndParsed(t *testing.T)          { proves(t, "BRIDGE 9(2)") }
func TestBRIDGE9_3_RepliesEchoAndAreMatchedByCorrelation(t *testing.T) { proves(t, "BRIDGE 9(3)") }
func TestBRIDGE9_4_ErrorsArePreservedAndNeverSuccess(t *testing.T)     { proves(t, "BRIDGE 9(4)") }
func TestBRIDGE9_5_LabelsAreUnchangedAndFailSafe(t *testing.T)         { proves(t, "BRIDGE 9(5)") }
func TestBRIDGE9_6_NotificationsHaveNoReply(t *testing.T)              { proves(t, "BRIDGE 9(6)") }
