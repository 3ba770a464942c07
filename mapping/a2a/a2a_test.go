package a2a

import (
	"testing"

	"github.com/trestle-npamp/trestle/wire/bridge"
)

// MAP-A2A 4 and 5, written out once more: v0.3.0 name, v1.0 name, effect,
// carriage.
var table = []struct {
	v03, v1  string
	effect   bridge.Effect
	carriage Carriage
}{
	{"message/send", "SendMessage", bridge.NonIdempotentWrite, Unary},
	{"message/stream", "SendStreamingMessage", bridge.NonIdempotentWrite, Stream},
	{"tasks/get", "GetTask", bridge.ReadOnly, Unary},
	{"", "ListTasks", bridge.ReadOnly, Unary},
	{"tasks/cancel", "CancelTask", bridge.NonIdempotentWrite, Unary},
	{"tasks/resubscribe", "SubscribeToTask", bridge.ReadOnly, Stream},
	{"tasks/pushNotificationConfig/set", "CreateTaskPushNotificationConfig", bridge.IdempotentWrite, Unary},
	{"tasks/pushNotificationConfig/get", "GetTaskPushNotificationConfig", bridge.ReadOnly, Unary},
	{"tasks/pushNotificationConfig/list", "ListTaskPushNotificationConfigs", bridge.ReadOnly, Unary},
	{"tasks/pushNotificationConfig/delete", "DeleteTaskPushNotificationConfig", bridge.Destructive, Unary},
	{"agent/getAuthenticatedExtendedCard", "GetExtendedAgentCard", bridge.ReadOnly, Document},
	{"agent/getCard", "", bridge.ReadOnly, Document},
}

func TestMapA2A5_EffectAndCarriageOfEveryOperation(t *testing.T) {
	n := 0
	for _, row := range table {
		for i, name := range []string{row.v03, row.v1} {
			if name == "" {
				continue
			}
			n++
			op, known := Lookup(name)
			if !known || op.Effect != row.effect || op.Carriage != row.carriage || op.V1 != (i == 1) {
				t.Errorf("%s: %+v %v", name, op, known)
			}
			if e, known := Effect([]byte(name)); !known || e != row.effect {
				t.Errorf("%s: effect %v %v", name, e, known)
			}
			if IsStream(name) != (row.carriage == Stream) || IsDocument(name) != (row.carriage == Document) || IsV1(name) != (i == 1) {
				t.Errorf("%s: stream %v, document %v, v1 %v", name, IsStream(name), IsDocument(name), IsV1(name))
			}
		}
	}
	if n != len(operations) {
		t.Errorf("the table has %d operations, want %d", len(operations), n)
	}
}

func TestUnknownMethodsAreNotKnown(t *testing.T) {
	for _, name := range []string{"", "tasks/frobnicate", "Tasks/get", "message/send ", "sendMessage", "tasks/list"} {
		if op, known := Lookup(name); known || op != (Operation{}) {
			t.Errorf("%q: %+v", name, op)
		}
		if IsStream(name) || IsDocument(name) || IsV1(name) {
			t.Errorf("%q is something", name)
		}
	}
}

func TestLookupAllocatesNothing(t *testing.T) {
	method := []byte("tasks/pushNotificationConfig/delete")
	if n := testing.AllocsPerRun(100, func() { Effect(method) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
