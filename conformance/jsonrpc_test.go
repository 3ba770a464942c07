package conformance

import "testing"

// CC-JSONRPC 10, one test a clause.

func TestCCJSONRPC10_1_ObjectsAreJSONAndNeverRewritten(t *testing.T) { proves(t, "CC-JSONRPC 10(1)") }
func TestCCJSONRPC10_2_RequestsWithAnID(t *testing.T)                { proves(t, "CC-JSONRPC 10(2)") }
func TestCCJSONRPC10_3_SuccessResponses(t *testing.T)                { proves(t, "CC-JSONRPC 10(3)") }
func TestCCJSONRPC10_4_ErrorResponses(t *testing.T)                  { proves(t, "CC-JSONRPC 10(4)") }
func TestCCJSONRPC10_5_DeliveryFailuresAreNoObjects(t *testing.T)    { proves(t, "CC-JSONRPC 10(5)") }
func TestCCJSONRPC10_6_Notifications(t *testing.T)                   { proves(t, "CC-JSONRPC 10(6)") }
func TestCCJSONRPC10_7_CorrelationAndIDs(t *testing.T)               { proves(t, "CC-JSONRPC 10(7)") }
func TestCCJSONRPC10_8_LabelsAreInherited(t *testing.T)              { proves(t, "CC-JSONRPC 10(8)") }
