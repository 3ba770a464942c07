package a2a

import (
	"errors"
	"testing"

	"github.com/trestle-npamp/trestle/wire/bridge"
)

// MAP-A2A 5: a stricter policy may take tasks/cancel for destructive; what is stricter
// is so under either version's name, and nothing becomes less than it is.
func TestMapA2A5_StricterPolicy(t *testing.T) {
	m, err := NewMapping(Strict)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range table {
		for _, name := range []string{row.v03, row.v1} {
			if name == "" {
				continue
			}
			want := row.effect
			if row.v03 == MethodCancelTask {
				want = bridge.Destructive
			}
			if e, known := m.Effect([]byte(name)); !known || e != want {
				t.Errorf("%s: %v %v", name, e, known)
			}
			if e, _ := Effect(name); e != row.effect {
				t.Errorf("%s: the table has changed: %v", name, e)
			}
		}
	}
	if _, known := m.Effect([]byte("tasks/frobnicate")); known {
		t.Error("an unknown method is known")
	}
	m, err = NewMapping(Options{Stricter: map[string]bridge.Effect{"SendMessage": bridge.Destructive, "message/send": bridge.NonIdempotentWrite}})
	if e, _ := m.Effect([]byte("message/send")); err != nil || e != bridge.Destructive {
		t.Errorf("%v %v", e, err)
	}
	for name, o := range map[string]Options{
		"lower":          {Stricter: map[string]bridge.Effect{"tasks/cancel": bridge.IdempotentWrite}},
		"lower, v1.0":    {Stricter: map[string]bridge.Effect{"DeleteTaskPushNotificationConfig": bridge.ReadOnly}},
		"no operation":   {Stricter: map[string]bridge.Effect{"tasks/frobnicate": bridge.Destructive}},
		"no effect":      {Stricter: map[string]bridge.Effect{"tasks/cancel": 4}},
		"nothing to off": {NotCarried: []string{"tasks/frobnicate"}},
	} {
		if _, err := NewMapping(o); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var none *Mapping
	if e, known := none.Effect([]byte("tasks/cancel")); !known || e != bridge.NonIdempotentWrite || !none.Carries([]byte("x")) {
		t.Errorf("%v %v", e, known)
	}
	method := []byte("tasks/pushNotificationConfig/delete")
	if n := testing.AllocsPerRun(100, func() { m.Effect(method); m.Carries(method) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// MAP-A2A 6: the task that a stream is about, for resuming it.
func TestMapA2A6_TaskOfAnEvent(t *testing.T) {
	for event, want := range map[string]string{
		result(`{"kind":"task","id":"t1","status":{"state":"working"}}`):                                  `"t1" v0.3`,
		result(`{"taskId":"t1","kind":"status-update","id":"no","final":false}`):                          `"t1" v0.3`,
		result(`{"kind":"artifact-update","taskId":"t\u0031","artifact":{"taskId":"no"}}`):                `"t\u0031" v0.3`,
		result(`{"kind":"message","role":"agent","taskId":"t1"}`):                                         `"t1" v0.3`,
		result(`{"kind":"message","role":"agent"}`):                                                       `none`,
		result(`{"task":{"id":"t1","status":{"id":"no"}}}`):                                               `"t1" v1`,
		result(`{"statusUpdate":{"taskId":"t1","id":"no"}}`):                                              `"t1" v1`,
		result(`{"artifactUpdate":{"artifact":{},"taskId":"t1"}}`):                                        `"t1" v1`,
		result(`{"message":{"taskId":"t1"}}`):                                                             `"t1" v1`,
		result(`{"task":{"id":7}}`):                                                                       `none`,
		result(`{}`):                                                                                      `none`,
		result(`[]`):                                                                                      `none`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"x","data":{"kind":"task","id":"t1"}}}`: `none`,
		`{"jsonrpc":"2.0","id":1,"result":{"kind":"task","id":"t1"}`:                                      `none`,
		`data: {"jsonrpc":"2.0","id":1,"result":{"kind":"task","id":"t1"}}`:                               `none`,
		"{ \"jsonrpc\" : \"2.0\",\n\"id\":1, \"result\" : {\"kind\" :\"task\" , \"id\"\t: \"t1\" } }":     `"t1" v0.3`,
		result(`{"kind":"status-update","taskId":"a\"}{","status":{"state":"working"}}`):                  `"a\"}{" v0.3`,
	} {
		task, v1 := TaskOf([]byte(event))
		got := "none"
		if task != nil {
			got = string(task) + " v0.3"
			if v1 {
				got = string(task) + " v1"
			}
		}
		if got != want {
			t.Errorf("%s: %s, want %s", event, got, want)
		}
	}
	if got := string(AppendResubscribe(nil, []byte(`"7"`), []byte(`"t\"1"`), false)); got != `{"jsonrpc":"2.0","id":"7","method":"tasks/resubscribe","params":{"id":"t\"1"}}` {
		t.Error(got)
	}
	if got := string(AppendResubscribe(nil, []byte(`7`), []byte(`"t"`), true)); got != `{"jsonrpc":"2.0","id":7,"method":"SubscribeToTask","params":{"id":"t"}}` {
		t.Error(got)
	}
}
