package agntcy_test

import (
	"testing"

	"github.com/trestle-npamp/trestle/mapping/agntcy"
)

func TestStatusOfAnAnswer(t *testing.T) {
	for _, c := range []struct {
		method string
		failed bool
		status int
		ok     bool
	}{
		{"", false, 200, true}, {"", true, 500, true},
		{"200", false, 200, true}, {"204", false, 204, true}, {"299", false, 299, true},
		{"404", true, 404, true}, {"599", true, 599, true},
		{"404", false, 404, false}, {"200", true, 200, false},
		{"100", false, 100, false}, {"302", false, 302, false}, {"302", true, 302, false}, {"600", true, 600, false},
		{"20", false, 0, false}, {"2000", false, 0, false}, {"2x0", false, 0, false}, {"+20", false, 0, false}, {"GET /runs/1", false, 0, false},
	} {
		if status, ok := agntcy.ParseStatus([]byte(c.method), c.failed); ok != c.ok || ok && status != c.status {
			t.Errorf("%q, failed %v: %d, %v", c.method, c.failed, status, ok)
		}
	}
}

func FuzzParseStatus(f *testing.F) {
	f.Add([]byte("200"), false)
	f.Add([]byte(""), true)
	f.Add([]byte("1e2"), true)
	f.Fuzz(func(t *testing.T, method []byte, failed bool) {
		status, ok := agntcy.ParseStatus(method, failed)
		if !ok {
			return
		}
		if agntcy.Failed(status) != failed || len(method) != 0 && agntcy.Status(status) != string(method) {
			t.Fatalf("%q, %v: %d", method, failed, status)
		}
	})
}
