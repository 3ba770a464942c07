package conformance

import "testing"

// CC-STREAM 13, one test a clause.

func TestCCSTREAM13_1_StreamsAreBridgeStreams(t *testing.T)            { proves(t, "CC-STREAM 13(1)") }
func TestCCSTREAM13_2_StreamControl(t *testing.T)                      { proves(t, "CC-STREAM 13(2)") }
func TestCCSTREAM13_3_EventIDsGrow(t *testing.T)                       { proves(t, "CC-STREAM 13(3)") }
func TestCCSTREAM13_4_ResumedOrRefused(t *testing.T)                   { proves(t, "CC-STREAM 13(4)") }
func TestCCSTREAM13_5_EventsUpToTheCursorAreDropped(t *testing.T)      { proves(t, "CC-STREAM 13(5)") }
func TestCCSTREAM13_6_CancelIsAcknowledgedOnce(t *testing.T)           { proves(t, "CC-STREAM 13(6)") }
func TestCCSTREAM13_7_FullDuplexIsTwoStreams(t *testing.T)             { proves(t, "CC-STREAM 13(7)") }
func TestCCSTREAM13_8_PeersWithoutStreamControlAreServed(t *testing.T) { proves(t, "CC-STREAM 13(8)") }
