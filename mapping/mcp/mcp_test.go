package mcp

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/wire/bridge"
)

// MAP-MCP 4 and 6.1, written out once more.
const table = `
initialize                              c-> read_only
ping                                    c<> read_only
tools/list                              c-> read_only
tools/call                              c-> ?
resources/list                          c-> read_only
resources/templates/list                c-> read_only
resources/read                          c-> read_only
resources/subscribe                     c-> idempotent_write
resources/unsubscribe                   c-> idempotent_write
prompts/list                            c-> read_only
prompts/get                             c-> read_only
completion/complete                     c-> read_only
logging/setLevel                        c-> idempotent_write
tasks/get                               c<> read_only
tasks/result                            c<> read_only
tasks/list                              c<> read_only
tasks/cancel                            c<> idempotent_write
sampling/createMessage                  c<- non_idempotent_write
roots/list                              c<- read_only
elicitation/create                      c<- non_idempotent_write
notifications/initialized               c-> notify
notifications/cancelled                 c<> notify
notifications/progress                  c<> notify
notifications/message                   c<- notify
notifications/resources/updated         c<- notify
notifications/resources/list_changed    c<- notify
notifications/tools/list_changed        c<- notify
notifications/prompts/list_changed      c<- notify
notifications/roots/list_changed        c-> notify
notifications/elicitation/complete      c<- notify
notifications/tasks/status              c<> notify
`

func TestMapMCP4And6_1_EveryOperation(t *testing.T) {
	directions := map[string]Direction{"c->": ClientToServer, "c<-": ServerToClient, "c<>": Either}
	n := 0
	for line := range strings.Lines(strings.TrimSpace(table)) {
		f := strings.Fields(line)
		n++
		op, known := Lookup(f[0])
		if !known || op.Direction != directions[f[1]] || op.Notification != (f[2] == "notify") || op.Variable != (f[2] == "?") {
			t.Errorf("%s: %+v %v", f[0], op, known)
		}
		effect, known := Effect([]byte(f[0]))
		switch f[2] {
		case "?":
			if known || op.Effect != bridge.Destructive {
				t.Errorf("%s: %v %v, %+v", f[0], effect, known, op)
			}
		case "notify":
			if !known || effect != bridge.IdempotentWrite {
				t.Errorf("%s: %v %v", f[0], effect, known)
			}
		default:
			if !known || effect.String() != f[2] {
				t.Errorf("%s: %v %v", f[0], effect, known)
			}
		}
	}
	if n != len(operations) {
		t.Errorf("the table has %d operations, want %d", len(operations), n)
	}
}

func TestUnknownMethodsAreNotKnown(t *testing.T) {
	for _, name := range []string{"", "Tools/list", "tools/list ", "tools", "notifications", "tools/frobnicate"} {
		if op, known := Lookup(name); known || op != (Operation{}) {
			t.Errorf("%q: %+v", name, op)
		}
		if e, known := Effect(name); known || e != 0 {
			t.Errorf("%q: %v", name, e)
		}
	}
}

// MAP-MCP 6.2: every combination of the three hints, read as MCP writes them.
func TestMapMCP6_2_EffectOfATool(t *testing.T) {
	for hints, want := range map[string]string{
		`{}`:                       "destructive",
		`{"readOnlyHint":true}`:    "read_only",
		`{"readOnlyHint":false}`:   "destructive",
		`{"destructiveHint":true}`: "destructive",
		`{"destructiveHint":false,"idempotentHint":true}`:                                            "destructive",
		`{"idempotentHint":true}`:                                                                    "destructive",
		`{"readOnlyHint":true,"destructiveHint":true}`:                                               "read_only",
		`{"readOnlyHint":true,"destructiveHint":false}`:                                              "read_only",
		`{"readOnlyHint":false,"destructiveHint":true}`:                                              "destructive",
		`{"readOnlyHint":false,"destructiveHint":false}`:                                             "non_idempotent_write",
		`{"readOnlyHint":false,"destructiveHint":true,"idempotentHint":true}`:                        "destructive",
		`{"readOnlyHint":false,"destructiveHint":false,"idempotentHint":true}`:                       "idempotent_write",
		`{"readOnlyHint":false,"destructiveHint":false,"idempotentHint":false}`:                      "non_idempotent_write",
		`{"readOnlyHint":false,"idempotentHint":true}`:                                               "destructive",
		`{"readOnlyHint":false,"destructiveHint":false,"idempotentHint":true,"openWorldHint":true}`:  "idempotent_write",
		`{"readOnlyHint":null,"destructiveHint":false,"idempotentHint":true,"title":"a nice tool"}`:  "destructive",
		`{"readOnlyHint":false,"destructiveHint":null,"idempotentHint":null}`:                        "destructive",
		`{"readOnlyHint":false,"destructiveHint":false,"idempotentHint":null,"openWorldHint":false}`: "non_idempotent_write",
	} {
		var a Annotations
		if err := json.Unmarshal([]byte(hints), &a); err != nil {
			t.Fatal(err)
		}
		if got := a.Effect().String(); got != want {
			t.Errorf("%s: %s, want %s", hints, got, want)
		}
	}
}

func TestMapMCP6_2_ScopeIsTheToolsName(t *testing.T) {
	yes := true
	if l := ToolLabel("search", Annotations{ReadOnly: &yes}); l.Effect != bridge.ReadOnly || string(l.Scope) != "search" {
		t.Errorf("%+v", l)
	}
	if l := ToolLabel(strings.Repeat("n", 255), Annotations{}); l.Effect != bridge.Destructive || len(l.Scope) != 255 {
		t.Errorf("%+v", l)
	}
	if l := ToolLabel(strings.Repeat("n", 256), Annotations{}); l.Scope != nil {
		t.Errorf("%+v", l)
	}
}

func TestLookupAllocatesNothing(t *testing.T) {
	method := []byte("notifications/resources/list_changed")
	if n := testing.AllocsPerRun(100, func() { Effect(method) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
