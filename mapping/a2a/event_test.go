package a2a

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
)

func result(r string) string { return `{"jsonrpc":"2.0","id":1,"result":` + r + `}` }

var eventCases = []struct {
	name, event string
	want        Event
}{
	{"v0.3 final status", result(`{"kind":"status-update","taskId":"t","contextId":"c","final":true,"status":{"state":"completed"}}`), Terminal},
	{"v0.3 final input-required", result(`{"final": true ,"kind":"status-update","status":{"state":"input-required"}}`), Terminal},
	{"v0.3 working", result(`{"kind":"status-update","final":false,"status":{"state":"working"}}`), Other},
	{"v0.3 completed without final", result(`{"kind":"status-update","final":false,"status":{"state":"completed"}}`), Other},
	{"v0.3 interrupted without final", result(`{"kind":"status-update","final":false,"status":{"state":"auth-required"}}`), Interrupted},
	{"v0.3 final that is no boolean", result(`{"kind":"status-update","final":"true","status":{"state":"working"}}`), Other},
	{"v0.3 task submitted", result(`{"kind":"task","id":"t","status":{"state":"submitted"}}`), Other},
	{"v0.3 task failed", result(`{"status":{"message":{"kind":"message"},"state":"failed"},"kind":"task"}`), Terminal},
	{"v0.3 task input-required", result(`{"kind":"task","status":{"state":"input-required"}}`), Interrupted},
	{"v0.3 message", result(`{"kind":"message","role":"agent","parts":[]}`), Terminal},
	{"v0.3 artifact", result(`{"kind":"artifact-update","artifact":{"status":{"state":"completed"}},"lastChunk":true}`), Other},
	{"v0.3 escaped kind", result(`{"k\u0069nd":"m\u0065ssage"}`), Terminal},
	{"v1.0 status", result(`{"statusUpdate":{"taskId":"t","status":{"state":"TASK_STATE_COMPLETED"}}}`), Terminal},
	{"v1.0 canceled", result(`{"statusUpdate":{"status":{"state":"TASK_STATE_CANCELED"}}}`), Terminal},
	{"v1.0 working", result(`{"statusUpdate":{"status":{"state":"TASK_STATE_WORKING"}}}`), Other},
	{"v1.0 input required", result(`{"statusUpdate":{"status":{"state":"TASK_STATE_INPUT_REQUIRED"}}}`), Interrupted},
	{"v1.0 task rejected", result(`{"task":{"id":"t","status":{"state":"TASK_STATE_REJECTED"}}}`), Terminal},
	{"v1.0 message", result(`{"message":{"role":"ROLE_AGENT","parts":[{"text":"hi"}]}}`), Terminal},
	{"v1.0 artifact", result(`{"artifactUpdate":{"lastChunk":true,"artifact":{"parts":[{"data":{"statusUpdate":{}}}]}}}`), Other},
	{"error object", `{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"no task"}}`, Terminal},
	{"decoys deep inside", result(`{"kind":"artifact-update","x":{"kind":"message","final":true},"y":[{"task":{"status":{"state":"TASK_STATE_FAILED"}}}]}`), Other},
	{"brackets in strings", result(`{"a":"}]\"{","kind":"task","b":["]"],"status":{"c":"}","state":"completed"}}`), Terminal},
	{"odd spaces", "{ \"jsonrpc\" : \"2.0\",\n\"id\":1,\t\"result\" : {\r\n \"kind\" : \"message\" } }", Terminal},
	{"empty object", result(`{}`), Other},
	{"null result", result(`null`), Other},
	{"array result", result(`[{"kind":"message"}]`), Other},
	{"request", `{"jsonrpc":"2.0","id":1,"method":"message"}`, Other},
	{"cut", result(`{"kind":"message"`)[:30], Other},
	{"nothing", "", Other},
}

func TestMAPA2A6_TerminalEvents(t *testing.T) {
	for _, c := range eventCases {
		if got := Classify([]byte(c.event)); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}

func TestClassifyAllocatesNothing(t *testing.T) {
	e := []byte(eventCases[0].event)
	if n := testing.AllocsPerRun(100, func() { Classify(e) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkClassify(b *testing.B) {
	e := []byte(result(`{"kind":"status-update","taskId":"t","contextId":"c","final":false,"status":{"state":"working","message":{"parts":[{"kind":"text","text":"` + strings.Repeat("x", 150) + `"}]}}}`))
	b.ReportAllocs()
	b.SetBytes(int64(len(e)))
	for b.Loop() {
		Classify(e)
	}
}

// byLibrary is what a general JSON library makes of the same rule. Where a name
// stands twice, the last one counts for both.
func byLibrary(event []byte) Event {
	var m map[string]json.RawMessage
	if json.Unmarshal(event, &m) != nil {
		return Other
	}
	if _, ok := m["error"]; ok {
		return Terminal
	}
	str := func(o map[string]json.RawMessage, k string) (string, bool) {
		v, ok := o[k]
		var s string
		if !ok || len(v) == 0 || v[0] != '"' || json.Unmarshal(v, &s) != nil {
			return "", false
		}
		return s, true
	}
	object := func(o map[string]json.RawMessage, k string) map[string]json.RawMessage {
		var r map[string]json.RawMessage
		_ = json.Unmarshal(o[k], &r)
		return r
	}
	state := func(o map[string]json.RawMessage) Event {
		switch s, _ := str(object(o, "status"), "state"); s {
		case "completed", "failed", "canceled", "rejected",
			"TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED":
			return Terminal
		case "input-required", "auth-required", "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_AUTH_REQUIRED":
			return Interrupted
		}
		return Other
	}
	r := object(m, "result")
	if _, ok := r["kind"]; ok {
		switch k, _ := str(r, "kind"); k {
		case "message":
			return Terminal
		case "task":
			return state(r)
		case "status-update":
			if string(r["final"]) == "true" {
				return Terminal
			}
			if state(r) == Interrupted {
				return Interrupted
			}
		}
		return Other
	}
	if object(r, "message") != nil {
		return Terminal
	}
	if _, ok := r["task"]; ok {
		return state(object(r, "task"))
	}
	return state(object(r, "statusUpdate"))
}

// FuzzClassify: nothing panics, and what jsonrpc accepts is classified as a
// general JSON library would.
func FuzzClassify(f *testing.F) {
	for _, c := range eventCases {
		f.Add([]byte(c.event))
	}
	f.Fuzz(func(t *testing.T, event []byte) {
		got := Classify(event)
		var m jsonrpc.Message
		if jsonrpc.Scan(event, &m) != nil || m.Kind != jsonrpc.KindResponse && m.Kind != jsonrpc.KindError {
			if got != Other { // whatever a lenient library makes of it
				t.Fatalf("%d for what is no response", got)
			}
			return
		}
		if want := byLibrary(event); got != want {
			t.Fatalf("%d, the library says %d", got, want)
		}
	})
}
