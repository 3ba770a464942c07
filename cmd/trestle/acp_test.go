package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// The ACP agent and client of these tests are made from what OpenAPI 0.2.3 of the
// Agent Connect Protocol says of stateless runs, and from nothing else:
//
//	POST   /runs               RunCreateStateless -> 200 RunStateless
//	POST   /runs/stream        RunCreateStateless -> 200 text/event-stream of RunOutputStream
//	GET    /runs/{id}          200 RunStateless
//	GET    /runs/{id}/wait     200 RunWaitResponseStateless, once there is an output
//	GET    /runs/{id}/stream   200 text/event-stream of RunOutputStream
//	POST   /runs/{id}          resumes an interrupted run -> 200 RunStateless
//	POST   /runs/{id}/cancel   204
//	DELETE /runs/{id}          204
//
// A failure is 404, 409 or 422 with a JSON string. An event of a stream has an id,
// the type agent_event, and a JSON object whose type is values, interrupt or error.

type acpRun struct {
	ID       string          `json:"run_id"`
	Agent    string          `json:"agent_id"`
	Created  string          `json:"created_at"`
	Updated  string          `json:"updated_at"`
	Status   string          `json:"status"`
	Creation json.RawMessage `json:"creation"`
}

type acpOutput struct {
	Type      string          `json:"type"`
	Values    json.RawMessage `json:"values,omitempty"`
	Interrupt json.RawMessage `json:"interrupt,omitempty"`
}

type acpWaited struct {
	Run    acpRun    `json:"run"`
	Output acpOutput `json:"output"`
}

type acpUpdate struct {
	Type   string          `json:"type"`
	ID     string          `json:"run_id"`
	Status string          `json:"status"`
	Values json.RawMessage `json:"values,omitempty"`
}

// acpAgent asks a question in each run and repeats the answer.
type acpAgent struct {
	t    *testing.T
	mu   sync.Mutex
	runs map[string]*acpState
	n    int
	// said is what it answered last, octet for octet, and asked how it was asked.
	said, asked string
	headers     []http.Header
}

type acpState struct {
	acpRun
	output  acpOutput
	changed chan struct{} // closed when the status changes
	events  []string
}

func (a *acpAgent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		a.t.Error(err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = r.Method + " " + r.RequestURI + " " + r.Header.Get("Content-Type") + " " + string(body)
	a.headers = append(a.headers, r.Header.Clone())
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/acp/"), "/")
	if parts[0] != "runs" {
		a.say(w, 404, "no such resource")
		return
	}
	op := r.Method
	if len(parts) == 3 {
		op += " " + parts[2]
	}
	if len(parts) == 1 || len(parts) == 2 && parts[1] == "stream" {
		var create struct {
			Agent string `json:"agent_id"`
		}
		if json.Unmarshal(body, &create) != nil || r.Method != "POST" {
			a.say(w, 422, "not a RunCreateStateless")
			return
		}
		run := a.create(create.Agent, body)
		if len(parts) == 1 {
			a.say(w, 200, run.acpRun)
		} else {
			a.stream(w, r, run)
		}
		return
	}
	run := a.runs[parts[1]]
	if run == nil {
		a.say(w, 404, "no such run: "+parts[1])
		return
	}
	switch op {
	case "GET":
		a.say(w, 200, run.acpRun)
	case "GET wait":
		for run.output.Type == "" {
			a.await(run)
		}
		a.say(w, 200, acpWaited{run.acpRun, run.output})
	case "GET stream":
		a.stream(w, r, run)
	case "POST":
		if run.Status != "interrupted" {
			a.say(w, 409, "the run is not interrupted")
			return
		}
		run.output = acpOutput{}
		a.change(run, "pending", "values", string(body))
		a.say(w, 200, run.acpRun)
	case "POST cancel":
		a.change(run, "error", "error", "")
		w.WriteHeader(204)
	case "DELETE":
		delete(a.runs, run.ID)
		w.WriteHeader(204)
	default:
		a.say(w, 422, "no such operation")
	}
}

func (a *acpAgent) create(agent string, creation []byte) *acpState {
	a.n++
	at := time.Unix(0, 0).UTC().Format(time.RFC3339)
	run := &acpState{acpRun: acpRun{
		ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", a.n), Agent: agent, Created: at, Updated: at, Status: "pending", Creation: creation,
	}, changed: make(chan struct{})}
	a.runs[run.ID] = run
	return run
}

// change moves a run on. The caller holds mu.
func (a *acpAgent) change(run *acpState, status, typ, values string) {
	run.Status = status
	octets, err := json.Marshal(acpUpdate{typ, run.ID, status, []byte(values)})
	if err != nil {
		a.t.Error(err)
	}
	run.events = append(run.events, string(octets))
	close(run.changed)
	run.changed = make(chan struct{})
}

// step is the agent's own work on a run.
func (a *acpAgent) step(id, status, typ, values string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	run := a.runs[id]
	switch {
	case status == "interrupted":
		run.output = acpOutput{Type: "interrupt", Interrupt: []byte(values)}
	case status == "success":
		run.output = acpOutput{Type: "result", Values: []byte(values)}
	}
	a.change(run, status, typ, values)
}

// await waits for a change. The caller holds mu.
func (a *acpAgent) await(run *acpState) {
	changed := run.changed
	a.mu.Unlock()
	<-changed
	a.mu.Lock()
}

// stream tells of a run's changes from its beginning until it is over.
func (a *acpAgent) stream(w http.ResponseWriter, r *http.Request, run *acpState) {
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	a.said = ""
	for n := 0; ; n++ {
		for n == len(run.events) {
			a.await(run)
		}
		text := fmt.Sprintf(": comment\r\nevent: agent_event\r\nid: %s/%d\r\ndata: %s\r\n\r\n", run.ID, n, run.events[n])
		a.said += text
		if _, err := io.WriteString(w, text); err != nil || http.NewResponseController(w).Flush() != nil || r.Context().Err() != nil {
			return
		}
		if n+1 == len(run.events) && (run.Status == "success" || run.Status == "error") {
			return
		}
	}
}

// say answers in one piece, in JSON as few encoders write it.
func (a *acpAgent) say(w http.ResponseWriter, status int, v any) {
	octets, err := json.MarshalIndent(v, " ", "\t")
	if err != nil {
		a.t.Error(err)
	}
	a.said = string(octets) + "\r\n"
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("X-Of-The-Agent", "stays there")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, a.said)
}

// acpClient knows a server's URL.
type acpClient struct {
	t     *testing.T
	url   string
	agent *acpAgent // for what it said
}

func (c *acpClient) open(verb, path, body string) *http.Response {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	c.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, verb, c.url+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	r.Header.Set("Authorization", "Bearer of the caller")
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// do performs an operation that is answered in one piece, and holds both sides to
// the other's octets.
func (c *acpClient) do(verb, path, body string, status int, into any) {
	c.t.Helper()
	resp := c.open(verb, path, body)
	octets, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		c.t.Fatalf("%s %s: %d %s, %v, want %d", verb, path, resp.StatusCode, octets, err, status)
	}
	c.agent.mu.Lock()
	defer c.agent.mu.Unlock()
	contentType := ""
	if body != "" {
		contentType = "application/json"
	}
	if want := verb + " /acp" + path + " " + contentType + " " + body; c.agent.asked != want {
		c.t.Errorf("asked as %q, want %q", c.agent.asked, want)
	}
	if status == 204 {
		if len(octets) != 0 || resp.Header.Get("Content-Type") != "" {
			c.t.Errorf("%s %s: %q, %v", verb, path, octets, resp.Header)
		}
		return
	}
	if string(octets) != c.agent.said || resp.Header.Get("X-Of-The-Agent") != "" || !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		c.t.Errorf("%s %s: %q, want %q; %v", verb, path, octets, c.agent.said, resp.Header)
	}
	if err := json.Unmarshal(octets, into); err != nil {
		c.t.Fatalf("%s %s: %v", verb, path, err)
	}
}

// acpEvents reads a stream of RunOutputStream.
type acpEvents struct {
	t    *testing.T
	resp *http.Response
	in   *bufio.Reader
	raw  bytes.Buffer
	ids  map[string]bool
}

func (c *acpClient) stream(verb, path, body string) *acpEvents {
	c.t.Helper()
	resp := c.open(verb, path, body)
	if ct := resp.Header.Get("Content-Type"); resp.StatusCode != 200 || !strings.HasPrefix(ct, "text/event-stream") {
		c.t.Fatalf("%s %s: %d, %s", verb, path, resp.StatusCode, ct)
	}
	e := &acpEvents{t: c.t, resp: resp, ids: make(map[string]bool)}
	e.in = bufio.NewReader(io.TeeReader(resp.Body, &e.raw))
	return e
}

// next waits for the next event; false is the end.
func (e *acpEvents) next() (u acpUpdate, ok bool) {
	e.t.Helper()
	fields := map[string]string{}
	for {
		line, err := e.in.ReadString('\n')
		if err == io.EOF && line == "" && len(fields) == 0 {
			return u, false
		}
		if err != nil {
			e.t.Fatalf("%q, %v", line, err)
		}
		line = strings.TrimRight(line, "\r\n")
		switch name, value, _ := strings.Cut(line, ":"); {
		case line == "" && len(fields) == 0:
		case line == "":
			if fields["event"] != "agent_event" || fields["id"] == "" || e.ids[fields["id"]] {
				e.t.Errorf("event %v", fields)
			}
			e.ids[fields["id"]] = true
			if err := json.Unmarshal([]byte(fields["data"]), &u); err != nil {
				e.t.Fatalf("%v: %v", fields, err)
			}
			return u, true
		case name != "":
			fields[name] = strings.TrimPrefix(value, " ")
		}
	}
}

func (e *acpEvents) want(typ, status, values string) {
	e.t.Helper()
	u, ok := e.next()
	if !ok || u.Type != typ || u.Status != status || string(u.Values) != values {
		e.t.Fatalf("%+v, %v, want %s %s %s", u, ok, typ, status, values)
	}
}

// An ACP client creates, waits for, resumes, streams, cancels and deletes runs of an
// ACP agent through a relay and an agent in processes of their own. What either of the
// two sends is what the other gets, octet for octet.
func TestACPClientThroughTwoProcesses(t *testing.T) {
	for name, flags := range map[string][]string{
		"events": {"--protocol", "acp", "--protocol-id", "0x10"},
		"whole":  {"--protocol", "acp", "--protocol-id", "0x7f", "--opaque-type", "0x40:0x70"},
	} {
		t.Run(name, func(t *testing.T) {
			agent := &acpAgent{t: t, runs: make(map[string]*acpState)}
			web := httptest.NewServer(agent)
			t.Cleanup(web.Close)
			p := serving(t, startProcess(t, ports(append(flags, "--no-demo", "--keep-alive", "50ms")...)...))
			a := startProcess(t, append([]string{"agent", "--name", "runner", "--to", p.npamp, "--pin", p.key, "--upstream", web.URL + "/acp/"}, flags...)...)
			a.line()
			c := &acpClient{t: t, url: "http://" + p.http + "/agents/runner", agent: agent}

			// create
			const creation = ` {"agent_id" : "a1","input":{"n":1.10, "h":"<b>\u003c"}, "config":{}}`
			var run acpRun
			c.do("POST", "/runs", creation, 200, &run)
			if run.Status != "pending" || run.Agent != "a1" {
				t.Fatalf("%+v", run)
			}
			// wait: for as long as the agent takes
			waited := make(chan acpWaited, 1)
			go func() {
				var w acpWaited
				c.do("GET", "/runs/"+run.ID+"/wait", "", 200, &w)
				waited <- w
			}()
			eventuallyAsked(t, agent, "/wait")
			agent.step(run.ID, "interrupted", "interrupt", `{"question":"which?"}`)
			if w := <-waited; w.Output.Type != "interrupt" || compact(w.Output.Interrupt) != `{"question":"which?"}` || w.Run.Status != "interrupted" {
				t.Fatalf("%+v", w)
			}
			// resume
			c.do("POST", "/runs/"+run.ID, `{"answer":"this"}`, 200, &run)
			if run.Status != "pending" {
				t.Fatalf("%+v", run)
			}
			var failure string
			c.do("POST", "/runs/"+run.ID, `{"answer":"that"}`, 409, &failure)
			// stream: what was, and what comes, when it comes
			s := c.stream("GET", "/runs/"+run.ID+"/stream?x=%C3%A9&y", "")
			s.want("interrupt", "interrupted", `{"question":"which?"}`)
			s.want("values", "pending", `{"answer":"this"}`)
			agent.step(run.ID, "success", "values", `{"n":123456789012345678901234567890}`)
			s.want("values", "success", `{"n":123456789012345678901234567890}`)
			if u, ok := s.next(); ok {
				t.Errorf("%+v behind the end", u)
			}
			agent.mu.Lock()
			if name == "whole" && s.raw.String() != agent.said {
				t.Errorf("%q, want %q", s.raw.String(), agent.said)
			}
			agent.mu.Unlock()
			var w acpWaited
			c.do("GET", "/runs/"+run.ID+"/wait", "", 200, &w)
			if w.Output.Type != "result" {
				t.Fatalf("%+v", w)
			}
			// cancel, with a stream under way
			s = c.stream("POST", "/runs/stream", `{"agent_id":"a2"}`)
			second := fmt.Sprintf("00000000-0000-4000-8000-%012d", 2)
			agent.step(second, "pending", "values", `{"half":true}`)
			s.want("values", "pending", `{"half":true}`)
			c.do("POST", "/runs/"+second+"/cancel", "", 204, nil)
			s.want("error", "error", "")
			if u, ok := s.next(); ok {
				t.Errorf("%+v behind the end", u)
			}
			// delete
			for _, id := range []string{run.ID, second} {
				c.do("GET", "/runs/"+id, "", 200, &run)
				c.do("DELETE", "/runs/"+id, "", 204, nil)
				c.do("GET", "/runs/"+id, "", 404, &failure)
				c.do("DELETE", "/runs/"+id, "", 404, &failure)
				c.do("GET", "/runs/"+id+"/stream", "", 404, &failure)
			}
			c.do("POST", "/runs", `[`, 422, &failure)
			c.do("PUT", "/runs/unknown/operation", `{}`, 404, &failure)

			agent.mu.Lock()
			defer agent.mu.Unlock()
			for _, h := range agent.headers {
				if h.Get("Authorization") != "" {
					t.Error("a credential of the caller crossed")
				}
			}
			a.stop()
			if code := a.wait(); code != exitOK {
				t.Errorf("agent: code %d: %s", code, a.errOut)
			}
			p.stop()
			if code := p.wait(); code != exitOK {
				t.Errorf("relay: code %d: %s", code, p.errOut)
			}
		})
	}
}

// eventuallyAsked waits until the agent was asked for something.
func eventuallyAsked(t *testing.T, a *acpAgent, what string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		a.mu.Lock()
		asked := strings.Contains(a.asked, what)
		a.mu.Unlock()
		if asked {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not asked for %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

func compact(b []byte) string {
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		return err.Error()
	}
	return out.String()
}

func TestProtocolFlagsThatMakeNoSense(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		says string
	}{
		"unknown protocol":    {[]string{"--protocol", "smtp"}, "--protocol"},
		"no id":               {[]string{"--protocol", "acp"}, "--protocol-id"},
		"an id for A2A":       {[]string{"--protocol-id", "0x10"}, "--protocol-id"},
		"no number":           {[]string{"--protocol", "slim", "--protocol-id", "x"}, "--protocol-id"},
		"A2A's id":            {[]string{"--protocol", "acp", "--protocol-id", "2"}, "0x10 to 0x7F"},
		"a private id":        {[]string{"--protocol", "acp", "--protocol-id", "0x80"}, "0x10 to 0x7F"},
		"no such id":          {[]string{"--protocol", "acp", "--protocol-id", "0x110"}, "--protocol-id"},
		"half a type":         {[]string{"--protocol", "acp", "--protocol-id", "16", "--opaque-type", "0x40"}, "--opaque-type"},
		"a type that is used": {[]string{"--protocol", "acp", "--protocol-id", "16", "--opaque-type", "0x13:0x70"}, "--opaque-type"},
		"a content of JSON":   {[]string{"--protocol", "acp", "--protocol-id", "16", "--opaque-type", "0x40:1"}, "--opaque-type"},
		"a type for A2A":      {[]string{"--opaque-type", "0x40:0x70"}, "--opaque-type"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, command := range [][]string{ports(), {"agent", "--name", "a", "--to", "127.0.0.1:1", "--upstream", "http://127.0.0.1:1/"}} {
				if r := trestle(t, "", append(command, tc.args...)...); r.code != exitUsage || r.out != "" || !strings.Contains(r.err, tc.says) {
					t.Errorf("code %d, stdout %q, stderr %q", r.code, r.out, r.err)
				}
			}
		})
	}
	if r := trestle(t, "", ports("--timeout", "0s")...); r.code != exitUsage || !strings.Contains(r.err, "--timeout") {
		t.Errorf("%+v", r)
	}
}
