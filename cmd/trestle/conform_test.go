package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/internal/vectors"
)

// ask sends the adapter one request, framed as a driver would.
func ask(t *testing.T, op, in string) conformAnswer {
	t.Helper()
	request, err := json.Marshal(map[string]any{"op": op, "in": json.RawMessage(in)})
	if err != nil {
		t.Fatal(err)
	}
	answers := converse(t, frameLE(request))
	if len(answers) != 1 {
		t.Fatalf("%d answers to one request", len(answers))
	}
	return answers[0]
}

func frameLE(b []byte) string {
	return string(binary.LittleEndian.AppendUint32(nil, uint32(len(b)))) + string(b)
}

// converse runs the command on a whole input and splits what it answered.
func converse(t *testing.T, input string) []conformAnswer {
	t.Helper()
	r := trestle(t, input, "conform")
	if r.code != exitOK {
		t.Fatalf("code %d: %s", r.code, r.err)
	}
	var answers []conformAnswer
	for out := []byte(r.out); len(out) > 0; {
		if len(out) < 4 || len(out)-4 < int(binary.LittleEndian.Uint32(out)) {
			t.Fatalf("cut answer %q", out)
		}
		n := int(binary.LittleEndian.Uint32(out))
		var a conformAnswer
		if err := json.Unmarshal(out[4:4+n], &a); err != nil {
			t.Fatalf("%q: %v", out[4:4+n], err)
		}
		answers = append(answers, a)
		out = out[4+n:]
	}
	return answers
}

func TestConformAnswersEveryRequestInOrder(t *testing.T) {
	input := frameLE([]byte(`{"op":"tlv.encode","in":{"type":2,"value":""}}`)) +
		frameLE([]byte(`{"op":"memory.body.decode","in":{}}`)) +
		frameLE([]byte(`{"op":"no.such.thing","in":{}}`)) +
		frameLE([]byte(`{`)) +
		frameLE(nil) +
		frameLE([]byte(`{"op":"tlv.encode","in":{"type":"x"}}`)) +
		frameLE([]byte(`{"op":"tlv.encode","in":{"type":3,"value":"ff"}}`))
	answers := converse(t, input)
	if len(answers) != 7 {
		t.Fatalf("%d answers to 7 requests: %+v", len(answers), answers)
	}
	for i, want := range []string{"out", "skipped", "error", "error", "error", "error", "out"} {
		a := answers[i]
		got := map[bool]string{a.Out != nil: "out", a.Error != "": "error", a.Skipped != "": "skipped"}[true]
		if got != want {
			t.Errorf("answer %d is %+v, want %s", i, a, want)
		}
	}
}

func TestConformStopsAtABrokenFrame(t *testing.T) {
	for name, input := range map[string]string{
		"cut length":  "\x01\x00",
		"cut request": "\x05\x00\x00\x00{}",
		"huge length": "\xff\xff\xff\xff",
	} {
		if r := trestle(t, input, "conform"); r.code != exitFailure || r.out != "" || !strings.Contains(r.err, "conform: ") {
			t.Errorf("%s: code %d, stdout %q, stderr %q", name, r.code, r.out, r.err)
		}
	}
}

const (
	testKey = `"000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"`
	testIV  = `"a0a1a2a3a4a5a6a7a8a9aaab"`
)

// A few answers of each operation: known values from the corpus and from RFC
// 5869 and RFC 8439, and what must be refused. error means any error.
func TestConformOperations(t *testing.T) {
	for _, tc := range []struct{ op, in, want string }{
		{"header.decode", `{"frame":"4e50414d20000100000000000000000000000000000d880c250000000000000000000000"}`,
			`{"magic":"NPAM","ver":2,"flags":0,"frameType":1,"channel":0,"seq":0,"payloadLength":0,"crc32c":"0d880c25","reservedZero":true}`},
		{"header.decode", `{"frame":"4e50414d20000100000000000000000000000000000d880c250100000000000000000000"}`, "error"},
		{"header.decode", `{"frame":"4e50414d"}`, "error"},
		{"header.encode", `{"magic":"NPAM","ver":2,"flags":0,"frameType":1,"channel":0,"seq":0,"payloadLength":0}`,
			`{"frame":"4e50414d20000100000000000000000000000000000d880c250000000000000000000000"}`},
		{"header.encode", `{"magic":"NPAX","ver":2}`, "error"},
		{"header.encode", `{"magic":"NPAM","ver":3}`, "error"},
		{"header.encode", `{"magic":"NPAM","ver":2,"flags":16}`, "error"},
		{"header.encode", `{"magic":"NPAM","ver":2,"channel":65536}`, "error"},
		{"header.encode", `{"magic":"NPAM","ver":2,"payloadLength":16777216}`, "error"},
		{"crc32c", `{"octets":"313233343536373839"}`, `{"crc32c":"e3069283"}`},
		{"tlv.decode", `{"tlv":"00150002abcd"}`, `{"type":21,"length":2,"value":"abcd"}`},
		{"tlv.decode", `{"tlv":"00150002abcdef"}`, "error"},
		{"tlv.decode", `{"tlv":"00150003abcd"}`, "error"},
		{"tlv.decode", `{"tlv":"80010000"}`, "error"},
		{"tlv.encode", `{"type":32769,"value":"abcd"}`, `{"tlv":"80010002abcd"}`},
		{"tlv.encode", `{"type":65536,"value":""}`, "error"},
		{"tlv.encode", `{"type":1,"value":"` + strings.Repeat("00", 1<<16) + `"}`, "error"},
		{"bridge.envelope.decode", `{"frameType":261,"payload":"0010001401060101040a0b0c0d0a746f6f6c732f63616c6c"}`,
			`{"protocol_id":1,"message_kind":6,"content_type":1,"flags":1,"final":true,"corr":"0a0b0c0d","method":"tools/call","safety":null,"foreign":""}`},
		{"bridge.envelope.decode", `{"frameType":1,"payload":"0010001401060101040a0b0c0d0a746f6f6c732f63616c6c"}`, "error"},
		{"bridge.envelope.decode", `{"frameType":65792,"payload":"0010001401010101040a0b0c0d0a746f6f6c732f63616c6c"}`, "error"},
		{"bridge.envelope.encode", `{"fields":{"frameType":256,"protocol_id":2,"message_kind":1,"content_type":1,"flags":0,"corr":"31","method":"m","safety":{"effect":3,"scope":"s"},"foreign":"7b7d"}}`,
			`{"payload":"00100008020101000131016d` + `00130003030173` + `7b7d"}`},
		{"bridge.envelope.encode", `{"fields":{"frameType":257,"protocol_id":2,"message_kind":1,"content_type":1,"flags":0,"corr":"31","method":"m"}}`, "error"},
		{"bridge.envelope.encode", `{"fields":{"frameType":256,"protocol_id":2,"message_kind":1,"content_type":1,"flags":0,"corr":"31","method":"m","safety":{"effect":4}}}`, "error"},
		{"bridge.envelope.encode", `{"fields":{"frameType":256,"protocol_id":258,"message_kind":1,"content_type":1,"corr":"31"}}`, "error"},
		{"bridge.correlate", `{"requestFrameType":256,"requestPayload":"00100008020101000131016d","replyFrameType":257,"replyPayload":"0010000702020100013100"}`, `{"match":true}`},
		{"bridge.correlate", `{"requestFrameType":256,"requestPayload":"00100008020101000131016d","replyFrameType":257,"replyPayload":"0010000702020100013200"}`, `{"match":false}`},
		{"bridge.correlate", `{"requestFrameType":256,"requestPayload":"00100008020101000131016d","replyFrameType":256,"replyPayload":"00100008020101000131016d"}`, `{"match":false}`},
		{"aead.seal", `{"suite":"ChaCha20-Poly1305","key":"1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0","nonce":"000000000102030405060708","aad":"f33388860000000000004e91","pt":"496e7465726e65742d4472616674732061726520647261667420646f63756d656e74732076616c696420666f722061206d6178696d756d206f6620736978206d6f6e74687320616e64206d617920626520757064617465642c207265706c616365642c206f72206f62736f6c65746564206279206f7468657220646f63756d656e747320617420616e792074696d652e20497420697320696e617070726f70726961746520746f2075736520496e7465726e65742d447261667473206173207265666572656e6365206d6174657269616c206f7220746f2063697465207468656d206f74686572207468616e206173202fe2809c776f726b20696e2070726f67726573732e2fe2809d"}`,
			`{"sealed":"64a0861575861af460f062c79be643bd5e805cfd345cf389f108670ac76c8cb24c6cfc18755d43eea09ee94e382d26b0bdb7b73c321b0100d4f03b7f355894cf332f830e710b97ce98c8a84abd0b948114ad176e008d33bd60f982b1ff37c8559797a06ef4f0ef61c186324e2b3506383606907b6a7c02b0f9f6157b53c867e4b9166c767b804d46a59b5216cde7a4e99040c5a40433225ee282a1b0a06c523eaf4534d7f83fa1155b0047718cbc546a0d072b04b3564eea1b422273f548271a0bb2316053fa76991955ebd63159434ecebb4e466dae5a1073a6727627097a1049e617d91d361094fa68f0ff77987130305beaba2eda04df997b714d6c6f2c29a6ad5cb4022b02709beead9d67890cbb22392336fea1851f38"}`},
		{"aead.seal", `{"suite":"AES-128-GCM","key":` + testKey + `,"nonce":` + testIV + `}`, "error"},
		{"aead.seal", `{"suite":"AES-256-GCM","key":"00","nonce":` + testIV + `}`, "error"},
		{"aead.open", `{"suite":"AES-256-GCM","key":` + testKey + `,"nonce":"00","sealed":"00"}`, "error"},
		{"aead.open", `{"suite":"AES-256-GCM","key":` + testKey + `,"nonce":` + testIV + `,"sealed":"0000"}`, "error"},
		{"frame.seal", `{"suite":"AES-256-GCM","ver":2,"flags":2,"frameType":1,"channel":0,"seq":0,"key":` + testKey + `,"iv":` + testIV + `,"pt":"50494e47"}`,
			`{"sealed":"b651326a46ec3ccaf8d17b24f4b4bd53511bd251"}`},
		{"frame.open", `{"suite":"AES-256-GCM","ver":2,"flags":2,"frameType":1,"channel":0,"seq":0,"key":` + testKey + `,"iv":` + testIV + `,"sealed":"b651326a46ec3ccaf8d17b24f4b4bd53511bd251"}`,
			`{"pt":"50494e47"}`},
		{"frame.open", `{"suite":"AES-256-GCM","ver":2,"flags":2,"frameType":1,"channel":0,"seq":1,"key":` + testKey + `,"iv":` + testIV + `,"sealed":"b651326a46ec3ccaf8d17b24f4b4bd53511bd251"}`, "error"},
		{"frame.open", `{"suite":"AES-256-GCM","ver":2,"flags":2,"key":` + testKey + `,"iv":` + testIV + `,"sealed":"00"}`, "error"},
		{"frame.seal", `{"suite":"AES-256-GCM","ver":1,"key":` + testKey + `,"iv":` + testIV + `}`, "error"},
		{"nonce.derive", `{"iv":"ffffffffffffffffffffffff","seq":"72623859790382856"}`, `{"nonce":"fffffffffefdfcfbfaf9f8f7"}`},
		{"nonce.derive", `{"iv":` + testIV + `,"seq":1}`, `{"nonce":"a0a1a2a3a4a5a6a7a8a9aaaa"}`},
		{"nonce.derive", `{"iv":"00","seq":"0"}`, "error"},
		{"nonce.derive", `{"iv":` + testIV + `,"seq":-1}`, "error"},
		{"hkdf.expand", `{"hash":"sha256","prk":"077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5","info":"f0f1f2f3f4f5f6f7f8f9","length":42}`,
			`{"okm":"3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"}`},
		{"hkdf.expand", `{"hash":"sha256","prk":"00","length":8161}`, "error"},
		{"hkdf.expand", `{"hash":"sha256","prk":"00","length":18446744073709551615}`, "error"},
		{"hkdf.expand", `{"hash":"md5","prk":"00","length":1}`, "error"},
		{"hkdf.expand_label", `{"hash":"sha256","secret":` + testKey + `,"label":"iv","context":"","length":12}`, `{"out":"0d9a0b276cd21e696c09c452"}`},
		{"hkdf.expand_label", `{"hash":"sha256","secret":` + testKey + `,"label":"iv","context":"","length":8161}`, "error"},
		{"hkdf.expand_label", `{"hash":"sha1","secret":"00","label":"iv","length":1}`, "error"},
		{"keys.derive_traffic", `{"profile":"Standard","master":` + testKey + `,"dir":0,"epoch":0,"suite":1,"channel":0}`,
			`{"key":"4e56739d78066f3f2bd0edf62fb652b3e90398d5c5b95f38287eb1d767e6dacc","iv":"0d45a2552d9ea33375b2d11c"}`},
		{"keys.derive_traffic", `{"profile":"Standard","master":` + testKey + `,"dir":2,"epoch":0,"suite":1,"channel":0}`, "error"},
		{"keys.derive_traffic", `{"profile":"Standard","master":` + testKey + `,"dir":0,"epoch":0,"suite":9,"channel":0}`, "error"},
		{"keys.derive_traffic", `{"profile":"High","master":` + testKey + `,"dir":0,"epoch":0,"suite":1,"channel":0}`, "error"},
		{"keys.derive_traffic", `{"profile":"Low","master":` + testKey + `}`, "error"},
		{"profile.check", `{"profile":"Standard","kem":"X25519MLKEM768"}`, `{"accepted":true}`},
		{"profile.check", `{"profile":"Sovereign","kem":"X25519MLKEM768"}`, "error"},
		{"profile.check", `{"profile":"Standard","kem":"X25519"}`, "error"},
		{"profile.check", `{"profile":"None","kem":"X25519MLKEM768"}`, "error"},
	} {
		got := ask(t, tc.op, tc.in)
		if tc.want == "error" {
			if got.Error == "" || got.Out != nil {
				t.Errorf("%s %.200s: %+v, want an error", tc.op, tc.in, got)
			}
			continue
		}
		var want any
		if err := json.Unmarshal([]byte(tc.want), &want); err != nil {
			t.Fatal(err)
		}
		if got.Error != "" || !sameJSON(want, got.Out) {
			t.Errorf("%s %.200s: %+v, want %s", tc.op, tc.in, got, tc.want)
		}
	}
}

// sameJSON grades as the corpus describes: everything expected is there with
// the same value, whatever else is; strings regardless of case.
func sameJSON(want, got any) bool {
	switch want := want.(type) {
	case map[string]any:
		object, ok := got.(map[string]any)
		if !ok {
			return false
		}
		for k, v := range want {
			if g, ok := object[k]; !ok || !sameJSON(v, g) {
				return false
			}
		}
		return true
	case string:
		text, ok := got.(string)
		return ok && strings.EqualFold(want, text)
	}
	return want == got
}

func TestEveryOperationHasACase(t *testing.T) {
	source, err := os.ReadFile("conform_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for op := range conformOps {
		if !bytes.Contains(source, []byte(`{"`+op+`", `)) {
			t.Errorf("no case for %s", op)
		}
	}
}

// The public corpus, where TRESTLE_VECTORS says it is.
func TestConformPassesTheCorpus(t *testing.T) {
	var corpus struct {
		Groups []struct {
			Op    string `json:"op"`
			Tests []struct {
				ID       int             `json:"tcId"`
				In       json.RawMessage `json:"in"`
				Expected any             `json:"expected"`
				Result   string          `json:"result"`
			} `json:"tests"`
		} `json:"testGroups"`
	}
	if !vectors.Load(t, "conformance-corpus.json", &corpus) {
		return
	}
	passed := 0
	for _, g := range corpus.Groups {
		for _, c := range g.Tests {
			got := ask(t, g.Op, string(c.In))
			var ok bool
			switch {
			case got.Skipped != "":
				if !strings.HasSuffix(g.Op, ".body.decode") {
					t.Errorf("%s #%d was skipped", g.Op, c.ID)
				}
				continue
			case c.Result == "invalid":
				ok = got.Error != ""
			case c.Result == "acceptable":
				ok = true
			default:
				ok = got.Error == "" && (c.Expected == nil || sameJSON(c.Expected, got.Out))
			}
			if !ok {
				t.Errorf("%s #%d: %+v", g.Op, c.ID, got)
				continue
			}
			passed++
		}
	}
	if passed < 300 {
		t.Errorf("only %d passed", passed)
	}
}

// Whatever a driver sends, the answer is exactly one of result, error and skip,
// and fits JSON.
func FuzzConform(f *testing.F) {
	f.Add([]byte(`{"op":"tlv.encode","in":{"type":2,"value":"ff"}}`))
	f.Add([]byte(`{"op":"header.decode","in":{"frame":"4e50414d20000100000000000000000000000000000d880c250000000000000000000000"}}`))
	f.Add([]byte(`{"op":"header.encode","in":{"magic":"NPAM","ver":2,"flags":15,"seq":"18446744073709551615"}}`))
	f.Add([]byte(`{"op":"bridge.envelope.decode","in":{"frameType":256,"payload":"00100008020101000131016d"}}`))
	f.Add([]byte(`{"op":"bridge.envelope.encode","in":{"fields":{"frameType":256,"message_kind":1,"protocol_id":2,"content_type":1,"corr":"31","method":"m"}}}`))
	f.Add([]byte(`{"op":"frame.open","in":{"suite":"AES-256-GCM","ver":2,"iv":` + testIV + `,"key":` + testKey + `,"sealed":""}}`))
	f.Add([]byte(`{"op":"hkdf.expand","in":{"hash":"sha384","prk":"","length":65536}}`))
	f.Add([]byte(`{"op":"keys.derive_traffic","in":{"profile":"Standard","master":` + testKey + `,"suite":1}}`))
	f.Add([]byte(`{"op":"memory.body.decode"}`))
	f.Fuzz(func(t *testing.T, request []byte) {
		a := answerConform(request)
		set := 0
		for _, is := range []bool{a.Out != nil, a.Error != "", a.Skipped != ""} {
			if is {
				set++
			}
		}
		if set != 1 {
			t.Fatalf("%d answers in one: %+v", set, a)
		}
		if _, err := json.Marshal(a); err != nil {
			t.Fatal(err)
		}
	})
}
