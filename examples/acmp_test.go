package examples

import (
	"strings"
	"testing"
)

// ACMP through A2A through N-PAMP: what the buyer reads is what the provider wrote.
func TestACMP(t *testing.T) {
	addr := serve(t, "acmp")
	const task = `"task_id":"task_a7c923f1"`
	chunk := func(seq, word, final string) string {
		return `{"jsonrpc":"2.0","method":"acmp/streamChunk","params":{` + task + `,"seq":` + seq + `,"chunk":{"type":"text","data":"` + word + `"},"final":` + final + `}}`
	}
	for name, c := range map[string]struct {
		args []string
		want []string
	}{
		"in one piece": {[]string{"reverse", "one", "two"}, []string{
			`{"jsonrpc":"2.0","id":"req_1","result":{` + task + `,"output":{"type":"text","data":"two one"},"tokens_used":2,"cost_cu":0.001}}`,
		}},
		"as a stream": {[]string{"--stream", "reverse", "one two"}, []string{
			`{"jsonrpc":"2.0","method":"acmp/heartbeat","params":{` + task + `,"progress":0}}`,
			chunk("0", "two", "false"), chunk("1", "one", "true"),
			`{"jsonrpc":"2.0","id":"req_1","result":{` + task + `,"output_streamed":true,"tokens_used":2,"cost_cu":0.001}}`,
		}},
		"what is not on offer": {[]string{"--stream", "juggle"}, []string{
			`{"jsonrpc":"2.0","id":"req_1","error":{"code":-33002,"message":"reverse or think","data":{` + task + `}}}`,
		}},
		"a feature that is not": {[]string{"think"}, []string{
			`{"jsonrpc":"2.0","id":"req_1","error":{"code":-33007,"message":"thinking is only streamed","data":{` + task + `}}}`,
		}},
	} {
		if out, errOut, ok := call(t, "acmp", append([]string{"--to", addr}, c.args...)...); !ok || out != strings.Join(c.want, "\n")+"\n" {
			t.Errorf("%s: %v, printed\n%s%s\nwant\n%s", name, ok, out, errOut, strings.Join(c.want, "\n"))
		}
	}
	out, errOut, ok := call(t, "acmp", "--to", addr, "--stream", "--cancel", "think")
	const cancelled = `{"jsonrpc":"2.0","id":"req_1","error":{"code":-33004,"message":"cancelled","data":{` + task + `}}}` + "\n"
	if !ok || !strings.HasPrefix(out, `{"jsonrpc":"2.0","method":"acmp/heartbeat"`) || !strings.HasSuffix(out, cancelled) || strings.Count(out, "error") != 1 {
		t.Errorf("cancelled: %v, printed\n%s%s", ok, out, errOut)
	}
}
