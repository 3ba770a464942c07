package acmp

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/trestle-npamp/trestle/carriage/jsonrpc"
)

// The messages of ACMP's layer 1, with white space, escapes and numbers that a
// re-serialization would change.
const (
	invokeParams = `{ "task_id": "task_a7c923f1","capability":"sentiment-analysis", "input":{"type":"text","data":"Revenue grew 12% YoY. \u003c\u00e9/é\/"},"max_price_cu":0.0050,"escrow_id":"esc_a3f9c2" }`
	invoke       = `{"jsonrpc":"2.0","method":"acmp/invoke","id":"req_8f3a1b","params":` + invokeParams + `}`
	cancelBody   = `{"task_id":"task_a7c923f1","reason":"no longer needed"}`
	cancelling   = `{"jsonrpc":"2.0","method":"acmp/cancel","params":` + cancelBody + `}`
	chunkBody    = `{"task_id":"task_a7c923f1","seq":3,"chunk":{"type":"json","data":{"a":1.10}},"final":false}`
	chunk        = `{"jsonrpc":"2.0","method":"acmp/streamChunk","params":` + chunkBody + `}`
	beatBody     = `{"task_id":"task_a7c923f1","progress":0.450,"detail":"batch 9"}`
	beat         = `{"jsonrpc":"2.0","method":"acmp/heartbeat","params":` + beatBody + `}`
	resultBody   = `{"task_id":"task_a7c923f1","output":{"type":"json","data":{"x":1E+2}},"tokens_used":487,"cost_cu":0.0030}`
	result       = `{"jsonrpc":"2.0","id":"req_8f3a1b","result":` + resultBody + `}`
	errorBody    = `{"code":-33001,"message":"Budget exceeded","data":{"task_id":"task_a7c923f1","min_price_cu":0.0080}}`
	failure      = `{"jsonrpc":"2.0","id":"req_8f3a1b","error":` + errorBody + `}`
	input        = `{"jsonrpc":"2.0","method":"acmp/inputChunk","params":{"task_id":"t","seq":0,"chunk":{},"final":true}}`
)

func parse(t testing.TB, s string) *Message {
	t.Helper()
	m, err := Parse([]byte(s))
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return &m
}

// Every message type of layer 1, and its own form again.
func TestEveryMessageIsReadAndWritten(t *testing.T) {
	for s, want := range map[string]struct {
		kind     Kind
		id, body string
		state    State
	}{
		invoke:     {Invoke, `"req_8f3a1b"`, invokeParams, Submitted},
		cancelling: {Cancel, "", cancelBody, Working},
		chunk:      {StreamChunk, "", chunkBody, Working},
		beat:       {Heartbeat, "", beatBody, Working},
		result:     {Result, `"req_8f3a1b"`, resultBody, Completed},
		failure:    {Error, `"req_8f3a1b"`, errorBody, Rejected},
		input:      {InputChunk, "", `{"task_id":"t","seq":0,"chunk":{},"final":true}`, Working},
	} {
		m := parse(t, s)
		if m.Kind != want.kind || string(m.ID) != want.id || string(m.Body) != want.body || m.State() != want.state {
			t.Errorf("%s:\n%+v", s, m)
		}
		if got := string(m.Append(nil)); got != s {
			t.Errorf("%s\nbecame\n%s", s, got)
		}
		if m.Kind != InputChunk && string(m.TaskID) != `"task_a7c923f1"` {
			t.Errorf("%s: task %s", s, m.TaskID)
		}
	}
}

func TestWhatIsNoMessage(t *testing.T) {
	for s, want := range map[string]error{
		`{"jsonrpc":"2.0","id":1,"method":"acmp/negotiate","params":{"task_id":"t"}}`:            ErrMethod,
		`{"jsonrpc":"2.0","id":1,"method":"acmp/Invoke","params":{"task_id":"t"}}`:               ErrMethod,
		`{"jsonrpc":"2.0","method":"acmp/invoke","params":{"task_id":"t"}}`:                      ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"method":"acmp/cancel","params":{"task_id":"t"}}`:               ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"method":"acmp/invoke"}`:                                        ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"method":"acmp/invoke","params":["t"]}`:                         ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"method":"acmp/invoke","params":{}}`:                            ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"method":"acmp/invoke","params":{"task_id":7}}`:                 ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"method":"acmp/invoke","params":{"task_id":"a","task_id":"b"}}`: ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"method":"acmp/invoke","params":{"task_id":"a"},"params":{}}`:   ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"result":"done"}`:                                               ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"result":{"tokens_used":1}}`:                                    ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"error":{"message":"x"}}`:                                       ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"error":{"code":1.5}}`:                                          ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"error":{"code":1,"data":{"task_id":[]}}}`:                      ErrMalformed,
		`{"jsonrpc":"1.0","id":1,"result":{}}`:                                                   jsonrpc.ErrVersion,
		`[]`:                                                                                     jsonrpc.ErrBatch,
	} {
		if m, err := Parse([]byte(s)); !errors.Is(err, want) || m.Kind != 0 {
			t.Errorf("%s: %+v, %v, want %v", s, m, err, want)
		}
	}
	for _, s := range []string{`{"jsonrpc":"2.0","id":1,"error":{"code":-33099,"message":""}}`, `{"jsonrpc":"2.0","id":1,"error":{"code":-33099,"data":"?"}}`} {
		if m := parse(t, s); m.TaskID != nil || m.Code != CodeInternal || m.State() != Failed {
			t.Errorf("%s: %+v", s, m)
		}
	}
}

// The state table of the comparison: each error in the state that it puts its task
// in.
func TestStatesOfErrors(t *testing.T) {
	for code, want := range map[int]State{
		-33001: Rejected, -33002: Rejected, -33003: Failed, -33004: Canceled, -33005: Rejected, -33006: Rejected, -33007: Rejected,
		-33099: Failed, -32603: Failed, 0: Failed,
	} {
		m := Fail([]byte("1"), []byte(`"t"`), code, "<why> \xff")
		back := parse(t, string(m.Append(nil)))
		if m.State() != want || back.State() != want || back.Code != code || string(back.TaskID) != `"t"` {
			t.Errorf("%d: %v, %+v", code, m.State(), back)
		}
	}
	if m := Fail([]byte("1"), nil, -33002, "no"); parse(t, string(m.Append(nil))).TaskID != nil {
		t.Error("a task id from nowhere")
	}
	for s, names := range map[State][2]string{
		Submitted: {"submitted", "TASK_STATE_SUBMITTED"}, Working: {"working", "TASK_STATE_WORKING"}, Completed: {"completed", "TASK_STATE_COMPLETED"},
		Failed: {"failed", "TASK_STATE_FAILED"}, Canceled: {"canceled", "TASK_STATE_CANCELED"}, Rejected: {"rejected", "TASK_STATE_REJECTED"},
		0: {"working", "TASK_STATE_WORKING"}, 99: {"working", "TASK_STATE_WORKING"},
	} {
		if s.Name(false) != names[0] || s.Name(true) != names[1] {
			t.Errorf("%d: %s, %s", s, s.Name(false), s.Name(true))
		}
	}
}

// forms are all the A2A messages that an ACMP message can travel in.
func forms(t testing.TB, m *Message, o *Options) (list []string) {
	t.Helper()
	add := func(b []byte, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(b) {
			t.Fatalf("not JSON: %s", b)
		}
		list = append(list, string(b))
	}
	id := []byte(`"a2a"`)
	if m.ID != nil {
		id = m.ID
	}
	switch m.Kind {
	case Invoke:
		add(AppendRequest(nil, nil, m, false, o))
		add(AppendRequest(nil, nil, m, true, o))
	case Cancel:
		add(AppendRequest(nil, id, m, false, o))
	case Result, Error:
		add(AppendReply(nil, id, m, o))
		add(AppendEvent(nil, id, m, o))
	default:
		add(AppendEvent(nil, id, m, o))
	}
	return list
}

var optionsOf = []*Options{{}, {V1: true}, {MessageID: "m \"1\"", ContextID: "c/é"}, {V1: true, ErrorsComplete: true, ContextID: "c"}}

// ACMP's JSON is unchanged inside the data part, in both versions of A2A.
func TestMessagesCrossUnchanged(t *testing.T) {
	for _, s := range []string{invoke, cancelling, chunk, beat, result, failure} {
		m := parse(t, s)
		for _, o := range optionsOf {
			for _, a2a := range forms(t, m, o) {
				if !strings.Contains(a2a, string(m.Body)) {
					t.Errorf("%s\nis not in\n%s", m.Body, a2a)
				}
				back, err := ParseA2A([]byte(" " + a2a + "\n"))
				if err != nil {
					t.Errorf("%s: %v", a2a, err)
					continue
				}
				if got := string(back.Append(nil)); got != s || back.Kind != m.Kind || !bytes.Equal(back.TaskID, m.TaskID) {
					t.Errorf("%s\ncame back as\n%s", s, got)
				}
			}
		}
	}
}

// Each form as A2A writes it.
func TestFormsOfA2A(t *testing.T) {
	const (
		part03 = `{"kind":"data","data":{"acmp_method":"acmp/cancel","params":` + cancelBody + `},"mediaType":"application/acmp+json"}`
		part10 = `{"data":{"acmp_method":"acmp/cancel","params":` + cancelBody + `},"mediaType":"application/acmp+json"}`
	)
	check := func(name string, got []byte, err error, want string) {
		t.Helper()
		if err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, want)
		}
	}
	m := parse(t, cancelling)
	got, err := AppendRequest(nil, []byte("7"), m, false, &Options{})
	check("request, v0.3.0", got, err, `{"jsonrpc":"2.0","id":7,"method":"message/send","params":{"message":{"kind":"message","messageId":"task_a7c923f1/cancel","role":"user","taskId":"task_a7c923f1","parts":[`+part03+`]}}}`)
	got, err = AppendRequest(nil, []byte("7"), m, false, &Options{V1: true, MessageID: "m", ContextID: "c"})
	check("request, v1.0", got, err, `{"jsonrpc":"2.0","id":7,"method":"SendMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","taskId":"task_a7c923f1","contextId":"c","parts":[`+part10+`]}}}`)
	for v1, want := range map[bool]string{false: `"method":"message/stream"`, true: `"method":"SendStreamingMessage"`} {
		got, err := AppendRequest(nil, nil, parse(t, invoke), true, &Options{V1: v1})
		if err != nil || !strings.Contains(string(got), want) || !strings.HasPrefix(string(got), `{"jsonrpc":"2.0","id":"req_8f3a1b",`) {
			t.Errorf("%s, %v", got, err)
		}
	}

	m = parse(t, result)
	const message03 = `{"kind":"message","messageId":"task_a7c923f1/result","role":"agent","taskId":"task_a7c923f1","parts":[{"kind":"data","data":{"acmp_result":` + resultBody + `},"mediaType":"application/acmp+json"}]}`
	const message10 = `{"messageId":"task_a7c923f1/result","role":"ROLE_AGENT","taskId":"task_a7c923f1","parts":[{"data":{"acmp_result":` + resultBody + `},"mediaType":"application/acmp+json"}]}`
	got, err = AppendReply(nil, m.ID, m, &Options{})
	check("reply, v0.3.0", got, err, `{"jsonrpc":"2.0","id":"req_8f3a1b","result":{"kind":"task","id":"task_a7c923f1","contextId":"task_a7c923f1","status":{"state":"completed","message":`+message03+`}}}`)
	got, err = AppendReply(nil, m.ID, m, &Options{V1: true})
	check("reply, v1.0", got, err, `{"jsonrpc":"2.0","id":"req_8f3a1b","result":{"task":{"id":"task_a7c923f1","contextId":"task_a7c923f1","status":{"state":"TASK_STATE_COMPLETED","message":`+message10+`}}}}`)
	got, err = AppendEvent(nil, m.ID, m, &Options{})
	check("last event, v0.3.0", got, err, `{"jsonrpc":"2.0","id":"req_8f3a1b","result":{"kind":"status-update","taskId":"task_a7c923f1","contextId":"task_a7c923f1","status":{"state":"completed","message":`+message03+`},"final":true}}`)
	got, err = AppendEvent(nil, m.ID, m, &Options{V1: true})
	check("last event, v1.0", got, err, `{"jsonrpc":"2.0","id":"req_8f3a1b","result":{"statusUpdate":{"taskId":"task_a7c923f1","contextId":"task_a7c923f1","status":{"state":"TASK_STATE_COMPLETED","message":`+message10+`}}}}`)

	m = parse(t, beat)
	got, err = AppendEvent(nil, []byte("1"), m, &Options{})
	check("heartbeat", got, err, `{"jsonrpc":"2.0","id":1,"result":{"kind":"status-update","taskId":"task_a7c923f1","contextId":"task_a7c923f1","status":{"state":"working","message":{"kind":"message","messageId":"task_a7c923f1/heartbeat","role":"agent","taskId":"task_a7c923f1","parts":[{"kind":"data","data":{"acmp_method":"acmp/heartbeat","params":`+beatBody+`},"mediaType":"application/acmp+json"}]}},"final":false}}`)

	m = parse(t, chunk)
	got, err = AppendEvent(nil, []byte("1"), m, &Options{})
	check("chunk, v0.3.0", got, err, `{"jsonrpc":"2.0","id":1,"result":{"kind":"artifact-update","taskId":"task_a7c923f1","contextId":"task_a7c923f1","artifact":{"artifactId":"acmp","parts":[{"kind":"data","data":{"acmp_method":"acmp/streamChunk","params":`+chunkBody+`},"mediaType":"application/acmp+json"}]},"append":true,"lastChunk":false}}`)
	got, err = AppendEvent(nil, []byte("1"), m, &Options{V1: true})
	check("chunk, v1.0", got, err, `{"jsonrpc":"2.0","id":1,"result":{"artifactUpdate":{"taskId":"task_a7c923f1","contextId":"task_a7c923f1","artifact":{"artifactId":"acmp","parts":[{"data":{"acmp_method":"acmp/streamChunk","params":`+chunkBody+`},"mediaType":"application/acmp+json"}]},"append":true,"lastChunk":false}}}`)
	first := parse(t, `{"jsonrpc":"2.0","method":"acmp/streamChunk","params":{"task_id":"t","seq":0,"final":true}}`)
	if got, err := AppendEvent(nil, []byte("1"), first, &Options{}); err != nil || !strings.Contains(string(got), `"append":false,"lastChunk":true`) {
		t.Errorf("%s, %v", got, err)
	}

	m = parse(t, failure)
	for o, want := range map[*Options]string{{}: `"state":"rejected"`, {ErrorsComplete: true}: `"state":"completed"`, {V1: true}: `"state":"TASK_STATE_REJECTED"`} {
		for _, s := range forms(t, m, o) {
			if !strings.Contains(s, want) {
				t.Errorf("%s, want %s", s, want)
			}
		}
	}
	if got := string(AppendTask(nil, []byte("1"), []byte(`"t"`), Canceled, &Options{})); got != `{"jsonrpc":"2.0","id":1,"result":{"kind":"task","id":"t","contextId":"t","status":{"state":"canceled"}}}` {
		t.Error(got)
	}
	if got := string(AppendTask(nil, []byte("1"), []byte(`"t"`), Working, &Options{V1: true})); got != `{"jsonrpc":"2.0","id":1,"result":{"task":{"id":"t","contextId":"t","status":{"state":"TASK_STATE_WORKING"}}}}` {
		t.Error(got)
	}
}

// inputChunk is declared unsupported: it can't be sent, the card says so, and one
// that comes all the same is recognised, to be refused.
func TestInputStreamingIsUnsupported(t *testing.T) {
	m := parse(t, input)
	if _, err := AppendRequest(nil, []byte("1"), m, false, &Options{}); err != ErrUnsupported {
		t.Errorf("%v", err)
	}
	got, err := ParseA2A([]byte(`{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"parts":[{"data":{"acmp_method":"acmp/inputChunk","params":{"task_id":"t"}},"mediaType":"application/acmp+json"}]}}}`))
	if err != nil || got.Kind != InputChunk {
		t.Errorf("%+v, %v", got, err)
	}
	for c, want := range map[Capability]string{
		{}: `{"uri":"https://a2agora.org/acmp/v0.1","description":"ACMP in data parts","required":false,"params":{"version":"0.1.0","role":"provider","accepts":["acmp/invoke","acmp/cancel"],"emits":[],"features":{"output_streaming":false,"input_streaming":false}}}`,
		{OutputStreaming: true, Heartbeat: 5 * time.Second, Required: true}: `{"uri":"https://a2agora.org/acmp/v0.1","description":"ACMP in data parts","required":true,"params":{"version":"0.1.0","role":"provider","accepts":["acmp/invoke","acmp/cancel"],"emits":["acmp/streamChunk","acmp/heartbeat"],"features":{"output_streaming":true,"input_streaming":false,"heartbeat_interval_ms":5000}}}`,
		{Heartbeat: time.Microsecond}:                                       `{"uri":"https://a2agora.org/acmp/v0.1","description":"ACMP in data parts","required":false,"params":{"version":"0.1.0","role":"provider","accepts":["acmp/invoke","acmp/cancel"],"emits":[],"features":{"output_streaming":false,"input_streaming":false}}}`,
		{Heartbeat: time.Second}:                                            `{"uri":"https://a2agora.org/acmp/v0.1","description":"ACMP in data parts","required":false,"params":{"version":"0.1.0","role":"provider","accepts":["acmp/invoke","acmp/cancel"],"emits":["acmp/heartbeat"],"features":{"output_streaming":false,"input_streaming":false,"heartbeat_interval_ms":1000}}}`,
	} {
		if got := string(c.AppendExtension(nil)); got != want || !json.Valid([]byte(got)) {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	}
}

func TestMessagesInTheWrongPlace(t *testing.T) {
	for _, s := range []string{chunk, beat, result, failure} {
		if _, err := AppendRequest(nil, []byte("1"), parse(t, s), false, &Options{}); err != ErrKind {
			t.Errorf("%s: %v", s, err)
		}
	}
	for _, s := range []string{invoke, cancelling, input} {
		if _, err := AppendEvent(nil, []byte("1"), parse(t, s), &Options{}); err != ErrKind {
			t.Errorf("%s: %v", s, err)
		}
	}
	for _, s := range []string{invoke, cancelling, chunk, beat} {
		if _, err := AppendReply(nil, []byte("1"), parse(t, s), &Options{}); err != ErrKind {
			t.Errorf("%s: %v", s, err)
		}
	}
	if _, err := AppendRequest(nil, []byte("1"), parse(t, cancelling), true, &Options{}); err != ErrKind {
		t.Errorf("a streamed cancel: %v", err)
	}
	if _, err := AppendRequest(nil, nil, parse(t, cancelling), false, &Options{}); err != ErrMalformed {
		t.Errorf("a request without an id: %v", err)
	}
	if _, err := AppendEvent(nil, []byte("1"), &Message{}, &Options{}); err != ErrKind {
		t.Errorf("nothing: %v", err)
	}
	noTask := Fail([]byte("1"), nil, -1, "")
	if _, err := AppendReply(nil, []byte("1"), &noTask, &Options{}); err != ErrTaskID {
		t.Errorf("%v", err)
	}
	if _, err := AppendEvent(nil, []byte("1"), &noTask, &Options{}); err != ErrTaskID {
		t.Errorf("%v", err)
	}
	if _, err := AppendRequest(nil, []byte("1"), &Message{Kind: Invoke}, false, &Options{}); err != ErrTaskID {
		t.Errorf("%v", err)
	}
	if Kind(99).Method() != "" || Result.Method() != "" {
		t.Error("methods of what has none")
	}
	// ... and where they are found.
	const part = `{"data":{"acmp_method":"acmp/heartbeat","params":{"task_id":"t"}},"mediaType":"application/acmp+json"}`
	const user = `{"data":{"acmp_method":"acmp/cancel","params":{"task_id":"t"}},"mediaType":"application/acmp+json"}`
	for s, want := range map[string]error{
		`{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"parts":[` + part + `]}}}`:                                                                                 ErrKind,
		`{"jsonrpc":"2.0","id":1,"result":{"kind":"message","parts":[` + user + `]}}`:                                                                                                    ErrKind,
		`{"jsonrpc":"2.0","id":1,"result":{"kind":"message","parts":[` + part + `,` + part + `]}}`:                                                                                       ErrSeveral,
		`{"jsonrpc":"2.0","id":1,"result":{"kind":"message","taskId":"other","parts":[` + part + `]}}`:                                                                                   ErrTaskID,
		`{"jsonrpc":"2.0","id":1,"result":{"kind":"message","taskId":5,"parts":[` + part + `]}}`:                                                                                         ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"result":{"kind":"message","parts":[]}}`:                                                                                                                ErrNone,
		`{"jsonrpc":"2.0","id":1,"result":{"kind":"message","parts":[{"kind":"text","text":"hi"}]}}`:                                                                                     ErrNone,
		`{"jsonrpc":"2.0","id":1,"result":{"kind":"message","parts":[{"data":{"acmp_result":{"task_id":"t"}}}]}}`:                                                                        ErrNone,
		`{"jsonrpc":"2.0","id":1,"result":{"kind":"message"}}`:                                                                                                                           ErrNone,
		`{"jsonrpc":"2.0","id":1,"result":null}`:                                                                                                                                         ErrNone,
		`{"jsonrpc":"2.0","method":"message/send","params":{"message":{"parts":[{"data":{"acmp_method":"acmp/invoke","params":{"task_id":"t"}},"mediaType":"application/acmp+json"}]}}}`: ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"id":"t"}}`:                                                                                                              ErrNone,
		`{"jsonrpc":"2.0","id":1,"error":{"code":-32001,"message":"no task"}}`:                                                                                                           ErrNone,
		`{"jsonrpc":"2.0","id":1,"result":{"parts":[{"mediaType":"application/acmp+json","data":{}}]}}`:                                                                                  ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"result":{"parts":[{"mediaType":"application/acmp+json"}]}}`:                                                                                            ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"result":{"parts":[{"mediaType":"application/acmp+json","data":{"acmp_method":"acmp/x","params":{}}}]}}`:                                                ErrMethod,
		`{"jsonrpc":"2.0","id":1,"result":{"parts":[{"mediaType":"application/acmp+json","data":{"acmp_result":{"task_id":"t"},"acmp_error":{}}}]}}`:                                     ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"result":{"parts":[{"mediaType":"application/acmp+json","data":{"acmp_error":{"code":1},"acmp_error":{"code":1}}}]}}`:                                   ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"result":{"parts":[{"mediaType":"application/acmp+json","mediaType":"x","data":{}}]}}`:                                                                  ErrMalformed,
		`{"jsonrpc":"2.0","id":1,"result":{"parts":[],"parts":[]}}`:                                                                                                                      ErrMalformed,
		`{"jsonrpc":"2.0","id":1`: jsonrpc.ErrTruncated,
	} {
		if m, err := ParseA2A([]byte(s)); !errors.Is(err, want) || m.Kind != 0 {
			t.Errorf("%s: %+v, %v, want %v", s, m, err, want)
		}
	}
}

// What a peer may write otherwise: names as in the specification's examples, other
// parts beside it, any order, white space, escapes.
func TestOtherSpellingsAreRead(t *testing.T) {
	for _, s := range []string{
		`{"params":{"message":{"message_id":"msg_9c2f11","role":"user","task_id":"t","parts":[{"kind":"text","text":"}]\"{"},{"data":{"acmp_method":"acmp/cancel","params":{"task_id":"t"}},"media_type":"application/acmp+json"}]}},"method":"message/send","id":1,"jsonrpc":"2.0"}`,
		"\n{ \"jsonrpc\" : \"2.0\" , \"id\" : 1 , \"method\" : \"SendMessage\" , \"params\" : { \"message\" : { \"parts\" : [ [ ] , { } , 1.5e3 , null , { \"m\\u0065diaType\" : \"application\\/acmp+json\" , \"data\" : { \"params\" : {\"task_id\":\"t\"} , \"acmp_method\" : \"acmp\\u002fcancel\" } } , true ] } } }",
	} {
		m, err := ParseA2A([]byte(s))
		if err != nil || m.Kind != Cancel || string(m.Body) != `{"task_id":"t"}` || string(m.TaskID) != `"t"` || m.ID != nil {
			t.Errorf("%s: %+v, %v", s, m, err)
		}
	}
	// A2A v0.3.0 has no place for a media type in a data part.
	for s, want := range map[string]error{
		`{"kind":"data","data":{"acmp_result":{"task_id":"t"}}}`:                                                                         nil,
		`{"kind":"data","data":{"x":1}},{"kind":"data","data":7},{"kind":"data"},{"kind":"data","data":{"acmp_result":{"task_id":"t"}}}`: nil,
		`{"kind":"data","mediaType":"application/json","data":{"acmp_result":{"task_id":"t"}}}`:                                          ErrNone,
		`{"kind":"file","data":{"acmp_result":{"task_id":"t"}}}`:                                                                         ErrNone,
		`{"kind":"data","kind":"data","data":{"acmp_result":{"task_id":"t"}}}`:                                                           ErrMalformed,
		`{"kind":"data","data":{"acmp_result":{"task_id":"t"}},"data":{}}`:                                                               ErrMalformed,
		`{"kind":"data","data":{"acmp_result":{"task_id":"t"},"acmp_result":{}}}`:                                                        ErrMalformed,
	} {
		if m, err := ParseA2A([]byte(`{"jsonrpc":"2.0","id":1,"result":{"kind":"message","parts":[` + s + `]}}`)); !errors.Is(err, want) || (m.Kind == Result) != (want == nil) {
			t.Errorf("%s: %+v, %v, want %v", s, m, err, want)
		}
	}
	// The task id of an error without one is the A2A message's.
	m, err := ParseA2A([]byte(`{"jsonrpc":"2.0","id":1,"result":{"task":{"id":"t\u0031","status":{"state":"TASK_STATE_FAILED","message":{"parts":[{"data":{"acmp_error":{"code":-33099,"message":""}},"mediaType":"application/acmp+json"}]}}}}}`))
	if err != nil || string(m.TaskID) != `"t\u0031"` || m.Kind != Error || string(m.ID) != "1" {
		t.Errorf("%+v, %v", m, err)
	}
}

// Whatever comes, what is found is a view of it, is JSON, and survives another trip.
func FuzzParseA2A(f *testing.F) {
	for _, s := range []string{invoke, cancelling, chunk, beat, result, failure} {
		for _, o := range optionsOf {
			for _, a2a := range forms(f, parse(f, s), o) {
				f.Add([]byte(a2a))
			}
		}
	}
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"result":{"parts":[{"mediaType":"application/acmp+json","data":{"acmp_result":{"task_id":"\"]}"}}}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := string(b)
		m, err := ParseA2A(b)
		if string(b) != before {
			t.Fatal("the message was changed")
		}
		if err != nil {
			if m.Kind != 0 {
				t.Fatal("a message and an error")
			}
			return
		}
		for _, view := range [][]byte{m.Body, m.TaskID, m.ID} {
			if len(view) > 0 && (!json.Valid(view) || !bytes.Contains(b, view) || cap(view) != len(view)) {
				t.Fatalf("%q is no value of %q", view, b)
			}
		}
		var body map[string]json.RawMessage
		if err := json.Unmarshal(m.Body, &body); err != nil {
			t.Fatalf("%q: %v", m.Body, err)
		}
		if m.Kind == InputChunk || m.TaskID == nil {
			return
		}
		for _, o := range optionsOf {
			for _, again := range forms(t, &m, o) {
				back, err := ParseA2A([]byte(again))
				if err != nil || back.Kind != m.Kind || !bytes.Equal(back.Body, m.Body) || !bytes.Equal(back.ID, m.ID) || back.Code != m.Code {
					t.Fatalf("%s: %+v, %v", again, back, err)
				}
			}
		}
		own, err := Parse(m.Append(nil))
		if err != nil || own.Kind != m.Kind || !bytes.Equal(own.Body, m.Body) {
			t.Fatalf("%s: %+v, %v", m.Append(nil), own, err)
		}
	})
}

// ACMP's own messages: what is read is written again with the same octets in it.
func FuzzParse(f *testing.F) {
	for _, s := range []string{invoke, cancelling, chunk, beat, result, failure, input} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		again, err := Parse(m.Append(nil))
		if err != nil || again.Kind != m.Kind || !bytes.Equal(again.Body, m.Body) || !bytes.Equal(again.ID, m.ID) || !bytes.Equal(again.TaskID, m.TaskID) || again.Code != m.Code {
			t.Fatalf("%s: %+v, %v", m.Append(nil), again, err)
		}
		_ = m.State().Name(true)
	})
}

// The walker finds what the standard library does.
func FuzzMember(f *testing.F) {
	f.Add([]byte(`{"a":1,"b":[{"a":"]}\\\""},{}],"c":{"d":[]}, "\u0061b" : null}`))
	f.Add([]byte(`{ }`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var want map[string]json.RawMessage
		if len(b) > 9000 || !json.Valid(b) || json.Unmarshal(b, &want) != nil || want == nil {
			return
		}
		n := 0
		v := document(b)
		for i := 0; ; n++ {
			key, value, after, ok := next(v, i, true)
			if !ok {
				break
			}
			i = after
			var name string
			if err := json.Unmarshal(key, &name); err != nil {
				t.Fatalf("%q: key %q", b, key)
			}
			if !json.Valid(value) {
				t.Fatalf("%q: value %q", b, value)
			}
		}
		for name, value := range want {
			if !jsonrpc.EqualString(mustMarshal(name), []byte(name)) {
				continue // it has half a surrogate pair, or octets that are not UTF-8
			}
			got, err := member(v, name)
			if err == nil && got != nil && string(got) != string(value) {
				t.Fatalf("%q: %q is %q, want %q", b, name, got, value)
			}
		}
		if n < len(want) {
			t.Fatalf("%q: %d members, want %d", b, n, len(want))
		}
	})
}

func mustMarshal(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return b
}
