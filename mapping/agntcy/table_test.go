package agntcy

import (
	"bytes"
	"net/url"
	"path"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/wire/bridge"
)

func mapping(t testing.TB, cfg Config) *Mapping {
	t.Helper()
	if cfg.ID == 0 {
		cfg.ID = 0x10
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// ACP's OpenAPI 0.2.3, written out once more with the effects of MAP-AGNTCY 7.
const acpTable = `
POST   /agents/search                              read_only            unary
GET    /agents/{agent_id}                          read_only            unary
GET    /agents/{agent_id}/descriptor               read_only            unary
POST   /threads                                    non_idempotent_write unary
POST   /threads/search                             read_only            unary
GET    /threads/{thread_id}/history                read_only            unary
POST   /threads/{thread_id}/copy                   non_idempotent_write unary
GET    /threads/{thread_id}                        read_only            unary
DELETE /threads/{thread_id}                        destructive          unary
PATCH  /threads/{thread_id}                        idempotent_write     unary
GET    /threads/{thread_id}/runs                   read_only            unary
POST   /threads/{thread_id}/runs                   non_idempotent_write unary
POST   /threads/{thread_id}/runs/stream            non_idempotent_write stream
POST   /threads/{thread_id}/runs/wait              non_idempotent_write unary
GET    /threads/{thread_id}/runs/{run_id}/wait     read_only            unary
GET    /threads/{thread_id}/runs/{run_id}          read_only            unary
POST   /threads/{thread_id}/runs/{run_id}          non_idempotent_write unary
DELETE /threads/{thread_id}/runs/{run_id}          destructive          unary
GET    /threads/{thread_id}/runs/{run_id}/stream   read_only            stream
POST   /threads/{thread_id}/runs/{run_id}/cancel   non_idempotent_write unary
POST   /runs                                       non_idempotent_write unary
POST   /runs/search                                read_only            unary
POST   /runs/stream                                non_idempotent_write stream
POST   /runs/wait                                  non_idempotent_write unary
GET    /runs/{run_id}/wait                         read_only            unary
GET    /runs/{run_id}                              read_only            unary
POST   /runs/{run_id}                              non_idempotent_write unary
DELETE /runs/{run_id}                              destructive          unary
GET    /runs/{run_id}/stream                       read_only            stream
POST   /runs/{run_id}/cancel                       non_idempotent_write unary
`

// MAP-AGNTCY 7, 9(2): every operation of the frozen specification, under whatever
// ids.
func TestMapAGNTCY7_EffectOfEveryACPOperation(t *testing.T) {
	m := mapping(t, Config{})
	rows := 0
	for line := range strings.Lines(strings.TrimSpace(acpTable)) {
		f := strings.Fields(line)
		rows++
		for _, id := range []string{"9f3c2a", "6f1b2f6e-7f0a-4a55-9a0b-0c5a1e1f2d3c", "%C3%A9", "a:b@c,d%3Be=f", "search!", "..x", "{run_id}"} {
			concrete := f[1]
			for _, name := range []string{"{agent_id}", "{thread_id}", "{run_id}"} {
				concrete = strings.ReplaceAll(concrete, name, id)
			}
			for _, query := range []string{"", "?limit=10&before=a/b?c", "?"} {
				method := f[0] + " " + concrete + query
				op, known := m.Lookup([]byte(method))
				if strings.Contains(id, "{") { // a template itself is no path
					if known && strings.Contains(concrete, "{") {
						t.Errorf("%s is known", method)
					}
					continue
				}
				want := map[string]Carriage{"unary": Unary, "stream": Stream}[f[3]]
				if !known || op.Effect.String() != f[2] || op.Carriage != want || op.Surface != ACP {
					t.Errorf("%s: %+v %v", method, op, known)
				}
			}
		}
	}
	if n := len(acpGet) + len(acpPost) + len(acpPatch) + len(acpDelete); rows != n || rows != 30 {
		t.Errorf("the table has %d operations, want %d", n, rows)
	}
}

// What is not an operation, or not plainly one, is not known: its label alone
// tells, and without one it is destructive.
func TestPathsThatAreNoOperations(t *testing.T) {
	m := mapping(t, Config{})
	for _, method := range []string{
		"", " ", "/", "GET", "GET ", "GET /", "POST  /runs", "POST /runs ", " POST /runs", "post /runs", "Post /runs", "PUT /runs", "HEAD /runs/1",
		"POST runs", "POST /runs/", "POST //runs", "POST /runs//search", "POST /Runs", "POST /runs/search/", "POST /runs/search/x",
		"GET /runs/.", "GET /runs/..", "GET /runs/1/../2", "POST /runs/../threads", "POST /agents/search/../../runs", "GET /runs/%2e%2e", "GET /runs/%2E",
		"GET /runs/a%2Fb", "GET /runs/a%2fb", "GET /runs/a%5Cb", "GET /runs/a%00b", "GET /runs/a%0Ab", "GET /runs/a%7Fb", "GET /runs/a%252e",
		"GET /runs/a\\b", "GET /runs/a b", "GET /runs/a\tb", "GET /runs/a\x00", "GET /runs/a#b", "GET /runs/a%", "GET /runs/a%4", "GET /runs/a%zz",
		"GET /runs/\xc3\xa9", "GET /runs/a\"b", "GET /runs/a<b", "GET /runs/a|b", "GET /runs/a^b", "GET /runs/1?a b", "GET /runs/1?a#b", "GET /runs/1?%zz",
		"GET http://host/runs/1", "GET *", "DELETE /agents/1", "PATCH /runs/1", "DELETE /runs", "GET /runs", "POST /threads/1", "GET /threads/1/runs/2/cancel",
	} {
		if op, known := m.Lookup([]byte(method)); known {
			t.Errorf("%q: %+v", method, op)
		}
		if effect, known := m.Effect([]byte(method)); known {
			t.Errorf("%q: %v", method, effect)
		}
	}
}

// What a server would read as another operation than we do is not carried at all: it
// must not be known as one with less effect, nor be unknown, so that the label of who
// sends it would tell what it may do, nor pass a policy's rules under another name.
func TestEscapedNamesAreNoNames(t *testing.T) {
	m := mapping(t, Config{Surface: ACP})
	for _, method := range []string{
		"POST /runs/se%61rch", "POST /threads/%73earch", "POST /agents/se%61rch", "POST /%72uns/search", "DELETE /thr%65ads/1", "DELETE /threads/1/run%73/2",
		"DELETE /threads;x/1", "DELETE /threads/1;x", "GET /runs/a%2Db", "GET /runs/a%5Fb", "GET /runs/a%7eb", "GET /runs/%30",
	} {
		if op, known := m.Lookup([]byte(method)); known || m.Protocol(nil).Supports([]byte(method)) {
			t.Errorf("%s: %+v %v", method, op, known)
		}
	}
	for _, method := range []string{"DELETE /threads/a%3Bb", "DELETE /threads/a%20%3A%40", "DELETE /threads/%C3%A9?%61=%2e;"} {
		if op, known := m.Lookup([]byte(method)); !known || op.Effect != bridge.Destructive || !m.Protocol(nil).Supports([]byte(method)) {
			t.Errorf("%s: %+v %v", method, op, known)
		}
	}
}

// MAP-AGNTCY 7: a stricter policy for cancels.
func TestMapAGNTCY7_CancelMayBeDestructive(t *testing.T) {
	m := mapping(t, Config{CancelIsDestructive: true})
	for method, want := range map[string]bridge.Effect{
		"POST /runs/1/cancel": bridge.Destructive, "POST /threads/1/runs/2/cancel": bridge.Destructive,
		"POST /runs/1": bridge.NonIdempotentWrite, "GET /runs/cancel": bridge.ReadOnly,
	} {
		if op, known := m.Lookup([]byte(method)); !known || op.Effect != want {
			t.Errorf("%s: %+v %v", method, op, known)
		}
		c, err := m.Request(method, nil)
		if err != nil || c.Label == nil || c.Label.Effect != want {
			t.Errorf("%s: %+v, %v", method, c, err)
		}
	}
}

// MAP-AGNTCY 7: SLIM's interactions.
func TestMapAGNTCY7_EffectOfSLIMInteractions(t *testing.T) {
	m := mapping(t, Config{ReadOnly: func(method []byte) bool { return bytes.HasSuffix(method, []byte("/Get")) }})
	for method, want := range map[string]Operation{
		"example_service.Test/ExampleUnaryUnary": {SLIM, bridge.NonIdempotentWrite, Any},
		"Test/Run":                               {SLIM, bridge.NonIdempotentWrite, Any},
		"a.b.C1/D_2":                             {SLIM, bridge.NonIdempotentWrite, Any},
		"store.Store/Get":                        {SLIM, bridge.NonIdempotentWrite, Any},
		"publish":                                {SLIM, bridge.NonIdempotentWrite, OneWay},
		"subscribe":                              {SLIM, bridge.IdempotentWrite, Any},
		"unsubscribe":                            {SLIM, bridge.IdempotentWrite, Unary},
		"join":                                   {SLIM, bridge.IdempotentWrite, Unary},
		"leave":                                  {SLIM, bridge.IdempotentWrite, Unary},
	} {
		if op, known := m.Lookup([]byte(method)); !known || op != want {
			t.Errorf("%s: %+v %v", method, op, known)
		}
		effect, known := m.Effect([]byte(method))
		if reads := strings.HasSuffix(method, "/Get"); known == reads || known && effect != want.Effect {
			t.Errorf("%s: %v %v", method, effect, known)
		}
	}
	for _, method := range []string{
		"/pkg.Service/Method", "pkg.Service/", "/Method", "pkg.Service.Method", "pkg..Service/Method", ".Service/Method", "pkg./Method",
		"pkg.Service/Method/More", "1pkg.Service/Method", "pkg.Service/2", "pkg.Service/Me thod", "pkg.Serv\xc3\xa9/Method", "Publish", "publish ",
	} {
		if op, known := m.Lookup([]byte(method)); known {
			t.Errorf("%q: %+v", method, op)
		}
	}
	if c, err := m.Request("store.Store/Get", nil); err != nil || c.Label.Effect != bridge.ReadOnly {
		t.Errorf("%+v, %v", c, err) // the sender knows
	}
	if c, err := m.Request("store.Store/Put", nil); err != nil || c.Label.Effect != bridge.NonIdempotentWrite {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestLookupAllocatesNothing(t *testing.T) {
	m := mapping(t, Config{})
	for _, method := range []string{"POST /threads/6f1b2f6e/runs/stream?x=1", "a.b.Service/Method", "tasks/pushNotificationConfig/delete", "no such thing"} {
		b := []byte(method)
		if n := testing.AllocsPerRun(100, func() {
			m.Effect(b)
			_ = m.check(b)
		}); n != 0 {
			t.Errorf("%s: %v allocations", method, n)
		}
	}
}

// Whatever a peer names its operation, what is known of it holds for whoever reads
// the path as the RFCs say.
func FuzzLookup(f *testing.F) {
	for line := range strings.Lines(strings.TrimSpace(acpTable)) {
		x := strings.Fields(line)
		f.Add([]byte(x[0] + " " + strings.NewReplacer("{agent_id}", "a", "{thread_id}", "t%41", "{run_id}", "r.1").Replace(x[1]) + "?q=1"))
	}
	for _, s := range []string{"a.b.C/D", "publish", "tools/call", "GET /runs/%2e", "DELETE /thr%65ads/1", "DELETE /threads;x/1", "POST /runs/..", "lf.a2a.v1.A2AService/SendMessage", "agntcy.dir.store.v1.StoreService/Push"} {
		f.Add([]byte(s))
	}
	m := mapping(f, Config{})
	f.Fuzz(func(t *testing.T, method []byte) {
		before := string(method)
		op, known := m.Lookup(method)
		effect, effective := m.Effect(method)
		if string(method) != before {
			t.Fatal("the method was changed")
		}
		if known != effective || known && (effect != op.Effect || effect > bridge.Destructive || op.Carriage == 0) || !known && op != (Operation{}) {
			t.Fatalf("%q: %+v %v, %v %v", method, op, known, effect, effective)
		}
		if known && m.check(method) != nil {
			t.Fatalf("%q is known and not carried: %v", method, m.check(method))
		}
		verb, p, query, ok := SplitACP(method)
		if !ok {
			if known && op.Surface == ACP {
				t.Fatalf("%q", method)
			}
			return
		}
		if op.Effect == bridge.ReadOnly && known && string(verb) != "GET" && !bytes.HasSuffix(p, []byte("/search")) {
			t.Fatalf("%q reads", method)
		}
		rebuilt := string(verb) + " " + string(p)
		if len(query) > 0 || bytes.HasSuffix(method, []byte("?")) {
			rebuilt += "?" + string(query)
		}
		if rebuilt != before {
			t.Fatalf("%q became %q", before, rebuilt)
		}
		// The path means the same to who cleans it, who unescapes it, and who does both.
		if path.Clean(string(p)) != string(p) {
			t.Fatalf("%q is not clean", p)
		}
		u, err := url.ParseRequestURI(string(p))
		if err != nil {
			t.Fatalf("%q: %v", p, err)
		}
		if path.Clean(u.Path) != u.Path || strings.Count(u.Path, "/") != strings.Count(string(p), "/") {
			t.Fatalf("%q unescapes to %q", p, u.Path)
		}
		if plain, again := m.Lookup([]byte(string(verb) + " " + u.Path)); again && plain != op {
			t.Fatalf("%q is %+v, and unescaped %+v", method, op, plain)
		}
		if withQuery, again := m.Lookup(append(append([]byte(string(verb)+" "), p...), "?x=y"...)); again != known || withQuery != op {
			t.Fatalf("%q: a query changes what it is", method)
		}
	})
}
