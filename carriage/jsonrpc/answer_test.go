package jsonrpc

import "testing"

func TestAnswersAreWhatScanReads(t *testing.T) {
	for _, id := range []string{`1`, `"a\"b"`, `-1.5e3`, `null`} {
		m := scanned(t, string(AppendResult(nil, []byte(id), []byte(`{"a":[1]}`))))
		if m.Kind != KindResponse || string(m.ID) != id || string(m.Body) != `{"a":[1]}` {
			t.Errorf("result for id %s: %v, id %s, body %s", id, m.Kind, m.ID, m.Body)
		}
		m = scanned(t, string(AppendError(nil, []byte(id), -32602, "a \"b\"\n\xff")))
		want := `{"code":-32602,"message":"a \"b\"\n\ufffd"}`
		if m.Kind != KindError || string(m.ID) != id || string(m.Body) != want {
			t.Errorf("error for id %s: %v, id %s, body %s, want %s", id, m.Kind, m.ID, m.Body, want)
		}
	}
}

// Whoever could not read the id answers with null (JSON-RPC 2.0, 5).
func TestAnswerWithoutIDHasNull(t *testing.T) {
	if m := scanned(t, string(AppendError(nil, nil, 1, "x"))); m.IDKind != IDNull {
		t.Errorf("id kind %v", m.IDKind)
	}
}

func TestAnswersAreAppended(t *testing.T) {
	const want = `before {"jsonrpc":"2.0","id":7,"result":true}`
	if got := string(AppendResult([]byte("before "), []byte("7"), []byte("true"))); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
