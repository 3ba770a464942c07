package card

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/carriage/document"
	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/profiles"
)

// A card as agents serve it: members that have their default value, numbers and
// escapes that are not canonical, members in no order, a line feed behind it.
const served = "{\r\n" +
	`  "version": "1.0.0", "name":"Ex\u002fample \u00e9 <&>", "description":"",` + "\n" +
	`  "capabilities" : {"streaming":false,"pushNotifications":false,"extensions":[{"uri":"u","required":false}]},` + "\n" +
	`  "x":1.0, "y":[ 1E30 , 4.50 ,2e-3, null, true ], "url":"https:\/\/agent.example.com/a2a", "skills":[]` + "\n}\n"

func key(t testing.TB, scheme profiles.Scheme, name string) *identity.Key {
	t.Helper()
	k, err := identity.FromSeed(scheme, sha256.Sum256([]byte(name)))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func signed(t testing.TB, card string, keys ...*identity.Key) []byte {
	t.Helper()
	out := []byte(card)
	for i, k := range keys {
		s, err := Sign(out, k, Header{KeyID: fmt.Sprintf("key-%d", i)})
		if err != nil {
			t.Fatal(err)
		}
		if out, err = Attach(out, s); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// What is signed is the card without its signatures in the form of RFC 8785. The
// expectations are those of A2A 8.4.1 and of RFC 8785, sections 3.2.2 and 3.2.3.
func TestA2A8_4_1_Payload(t *testing.T) {
	for in, want := range map[string]string{
		`{"name":"Example Agent","description":"","capabilities":{"streaming":false,"pushNotifications":false},"skills":[],"signatures":[{}]}`: `{"capabilities":{"pushNotifications":false,"streaming":false},"description":"","name":"Example Agent","skills":[]}`,

		`{
		  "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
		  "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
		  "literals": [null, true, false]
		}`: `{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\u000f\nA'B\"\\\\\"/"}`,

		`{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}`: `{"\r":"Carriage Return","1":"One","` + "\u0080" + `":"Control","ö":"Latin Small Letter O With Diaeresis","€":"Euro Sign","😀":"Emoji: Grinning Face","` + "\ufb33" + `":"Hebrew Letter Dalet With Dagesh"}`,

		"\xef\xbb\xbf {\"a\":\"<>&\\u2028\"} \n":      "{\"a\":\"<>&\u2028\"}",
		`{"signatur\u0065s":[],"a":{"signatures":1}}`: `{"a":{"signatures":1}}`,
		`{}`: `{}`,
	} {
		got, err := Payload([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("Payload(%s) is\n%s, %v; want\n%s", in, got, err, want)
		}
	}
}

// What two readers could read in two ways has no payload.
func TestWhatHasNoPayload(t *testing.T) {
	for name, in := range map[string]string{
		"empty":            "",
		"array":            "[]",
		"null":             "null",
		"text behind":      "{} {}",
		"member twice":     `{"a":1,"a":1}`,
		"escaped twice":    `{"a":1,"\u0061":2}`,
		"twice below":      `{"x":[{"a":1,"a":2}]}`,
		"signatures twice": `{"signatures":[],"signatures":[]}`,
		"half a surrogate": `{"a":"\ud83d"}`,
		"not UTF-8":        "{\"a\":\"\xff\"}",
		"not UTF-8, name":  "{\"\xff\":1}",
		"too large":        `{"a":1e400}`,
		"comment":          `{"a":1/**/}`,
		"deep":             `{"a":` + strings.Repeat("[", 1<<20),
	} {
		if got, err := Payload([]byte(in)); !errors.Is(err, ErrCard) {
			t.Errorf("%s: %s, %v", name, got, err)
		}
		if _, err := Sign([]byte(in), key(t, profiles.Ed25519, "a"), Header{}); !errors.Is(err, ErrCard) {
			t.Errorf("%s: signed, %v", name, err)
		}
	}
}

// The signing input and the signature are those of RFC 8037, appendix A.4.
func TestRFC8037_A4(t *testing.T) {
	seed, err := base64.RawURLEncoding.DecodeString("nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A")
	if err != nil {
		t.Fatal(err)
	}
	k, err := identity.FromSeed(profiles.Ed25519, [32]byte(seed))
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseSignature([]byte(`{"protected":"eyJhbGciOiJFZERTQSJ9","signature":"hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg"}`))
	if err != nil {
		t.Fatal(err)
	}
	in := input(s.protected, []byte("Example of Ed25519 signing"))
	if want := "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc"; string(in) != want {
		t.Errorf("input %s, want %s", in, want)
	}
	if s.Algorithm != AlgEdDSA || !k.Public().Verify(in, s.signature) {
		t.Error("the signature of RFC 8037 does not verify")
	}
}

// Signatures of both schemes verify over the octets as they were served, and over
// nothing else.
func TestL31_SignedCardsVerify(t *testing.T) {
	for _, scheme := range []profiles.Scheme{profiles.Ed25519, profiles.MLDSA87} {
		t.Run(fmt.Sprint(scheme), func(t *testing.T) {
			k, other := key(t, scheme, "signer"), key(t, scheme, "other")
			card := signed(t, served, k)
			all, err := Signatures(card)
			if err != nil || len(all) != 1 || all[0] == nil {
				t.Fatalf("signatures %v, %v", all, err)
			}
			s := all[0]
			if s.KeyID != "key-0" || s.Type != "JOSE" || !bytes.Contains(card, s.Octets) {
				t.Errorf("header %+v, octets %s", s.Header, s.Octets)
			}
			if err := Verify(card, s, k.Public()); err != nil {
				t.Errorf("a good signature: %v", err)
			}
			if err := Verify(card, s, other.Public()); err != ErrSignature {
				t.Errorf("another key: %v", err)
			}
			for name, change := range map[string][2]string{
				"default left out": {`"description":"",`, ``},
				"false left out":   {`"streaming":false,`, ``},
				"url rewritten":    {`agent.example.com`, `gateway.example.com`},
				"member added":     {`"skills":[]`, `"skills":[],"iconUrl":"x"`},
			} {
				changed := bytes.Replace(card, []byte(change[0]), []byte(change[1]), 1)
				if bytes.Equal(changed, card) {
					t.Fatalf("%s: nothing changed", name)
				}
				if err := Verify(changed, s, k.Public()); err != ErrSignature {
					t.Errorf("%s: %v", name, err)
				}
			}
			// What has the same canonical form has the same signature.
			for name, change := range map[string][2]string{
				"white space": {"\r\n", " "},
				"number":      {`1.0,`, `1,`},
				"escape":      {`\u002f`, `/`},
			} {
				changed := bytes.Replace(card, []byte(change[0]), []byte(change[1]), 1)
				if err := Verify(changed, s, k.Public()); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}

// Attach changes nothing but what it adds, also in a card that is signed already.
func TestAttachKeepsTheOctets(t *testing.T) {
	k := key(t, profiles.Ed25519, "a")
	for _, card := range []string{
		served, `{}`, `{ }`, "\xef\xbb\xbf{\"a\":1}", `{"signatures":[]}`, `{"signatures":[ ],"a":1}`,
		`{"a":1,"signatur\u0065s":[{"protected":"x"} ] , "b":{"signatures":[]}}` + "\n",
	} {
		s, err := Sign([]byte(card), k, Header{KeyID: "k"})
		if err != nil {
			t.Fatalf("%s: %v", card, err)
		}
		got, err := Attach([]byte(card), s)
		if err != nil {
			t.Fatalf("%s: %v", card, err)
		}
		all, err := Signatures(got)
		if err != nil || len(all) == 0 || all[len(all)-1] == nil || Verify(got, all[len(all)-1], k.Public()) != nil {
			t.Errorf("%s: %s does not verify: %v", card, got, err)
		}
		at := bytes.Index(got, s)
		if !strings.HasPrefix(card, strings.TrimSuffix(strings.TrimSuffix(string(got[:at]), `"signatures":[`), ",")) ||
			!strings.HasSuffix(card, strings.TrimPrefix(string(got[at+len(s):]), "]")) {
			t.Errorf("%s became %s", card, got)
		}
	}
	for _, card := range []string{`{"signatures":null}`, `{"signatures":{}}`, `{"signatures":"x"}`, `[]`} {
		if out, err := Attach([]byte(card), []byte("{}")); !errors.Is(err, ErrCard) {
			t.Errorf("%s became %s, %v", card, out, err)
		}
		if all, err := Signatures([]byte(card)); !errors.Is(err, ErrCard) {
			t.Errorf("%s has signatures %v, %v", card, all, err)
		}
	}
}

// A signature is never taken under another algorithm than the key's.
func TestAlgorithmsAreTheKeys(t *testing.T) {
	ed, ml := key(t, profiles.Ed25519, "a"), key(t, profiles.MLDSA87, "a")
	card := signed(t, served, ed, ml)
	all, err := Signatures(card)
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	if all[0].Algorithm != "EdDSA" || all[1].Algorithm != "ML-DSA-87" {
		t.Errorf("algorithms %q, %q", all[0].Algorithm, all[1].Algorithm)
	}
	if err := Verify(card, all[0], ml.Public()); err != ErrAlgorithm {
		t.Errorf("EdDSA with an ML-DSA key: %v", err)
	}
	if err := Verify(card, all[1], ed.Public()); err != ErrAlgorithm {
		t.Errorf("ML-DSA with an Ed25519 key: %v", err)
	}
	if err := Verify(card, all[0], identity.PublicKey{}); err != ErrAlgorithm {
		t.Errorf("no key: %v", err)
	}
	for _, alg := range []string{"none", "HS256", "ES256", "eddsa"} {
		s := *all[0]
		s.Algorithm = alg
		if err := Verify(card, &s, ed.Public()); err != ErrAlgorithm {
			t.Errorf("%s: %v", alg, err)
		}
	}
	// Ed25519 by its full name (RFC 9864) is the same.
	payload, err := Payload(card)
	if err != nil {
		t.Fatal(err)
	}
	protected := b64(`{"alg":"Ed25519","kid":"k"}`)
	raw, err := ed.Sign(input(protected, payload))
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseSignature(fmt.Appendf(nil, `{"protected":%q,"signature":%q,"header":{"x":1}}`, protected, base64.RawURLEncoding.EncodeToString(raw)))
	if err != nil || Verify(card, s, ed.Public()) != nil {
		t.Errorf("Ed25519 by its full name: %v", err)
	}
}

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

func TestMalformedSignatures(t *testing.T) {
	for name, in := range map[string]string{
		"empty":           ``,
		"array":           `[]`,
		"null":            `null`,
		"no protected":    `{"signature":"AA"}`,
		"no signature":    `{"protected":"e30"}`,
		"wrong types":     `{"protected":1,"signature":"AA"}`,
		"padding":         `{"protected":"` + b64(`{"alg":"EdDSA"}`) + `","signature":"AA=="}`,
		"stray bits":      `{"protected":"` + b64(`{"alg":"EdDSA"}`) + `","signature":"AB"}`,
		"newline":         `{"protected":"` + b64(`{"alg":"EdDSA"}`) + `","signature":"A\nA"}`,
		"standard base64": `{"protected":"` + b64(`{"alg":"EdDSA"}`) + `","signature":"+/+/"}`,
		"protected twice": `{"protected":"e30","protected":"e30","signature":"AA"}`,
		"payload":         `{"protected":"` + b64(`{"alg":"EdDSA"}`) + `","signature":"AA","payload":"e30"}`,
		"no alg":          `{"protected":"` + b64(`{"kid":"k"}`) + `","signature":"AA"}`,
		"alg twice":       `{"protected":"` + b64(`{"alg":"none","alg":"EdDSA"}`) + `","signature":"AA"}`,
		"alg null":        `{"protected":"` + b64(`{"alg":null}`) + `","signature":"AA"}`,
		"kid a number":    `{"protected":"` + b64(`{"alg":"EdDSA","kid":1}`) + `","signature":"AA"}`,
		"crit":            `{"protected":"` + b64(`{"alg":"EdDSA","b64":false,"crit":["b64"]}`) + `","signature":"AA"}`,
		"not JSON":        `{"protected":"` + b64(`x`) + `","signature":"AA"}`,
	} {
		if s, err := ParseSignature([]byte(in)); s != nil || !errors.Is(err, ErrSignatureFormat) {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}

func TestVerifyAny(t *testing.T) {
	old, now, other := key(t, profiles.Ed25519, "old"), key(t, profiles.MLDSA87, "now"), key(t, profiles.Ed25519, "other")
	card := signed(t, served, old, now)
	card, err := Attach(card, []byte(`{"protected":1}`))
	if err != nil {
		t.Fatal(err)
	}
	trust := func(keys map[string]identity.PublicKey) func(*Header) identity.PublicKey {
		return func(h *Header) identity.PublicKey { return keys[h.KeyID] }
	}
	if s, err := VerifyAny(card, trust(map[string]identity.PublicKey{"key-1": now.Public()})); err != nil || s.KeyID != "key-1" {
		t.Errorf("the second key: %v, %v", s, err)
	}
	if s, err := VerifyAny(card, trust(map[string]identity.PublicKey{"key-0": other.Public(), "key-1": now.Public()})); err != nil || s.KeyID != "key-1" {
		t.Errorf("one wrong, one right: %v, %v", s, err)
	}
	if _, err := VerifyAny(card, trust(map[string]identity.PublicKey{"key-0": other.Public()})); !errors.Is(err, ErrNoSignature) || !errors.Is(err, ErrSignature) {
		t.Errorf("one wrong: %v", err)
	}
	if _, err := VerifyAny(card, trust(nil)); !errors.Is(err, ErrNoSignature) || errors.Is(err, ErrSignature) {
		t.Errorf("no key: %v", err)
	}
	if _, err := VerifyAny([]byte(served), trust(nil)); !errors.Is(err, ErrNoSignature) {
		t.Errorf("no signatures: %v", err)
	}
	if _, err := VerifyAny([]byte("x"), trust(nil)); !errors.Is(err, ErrCard) {
		t.Errorf("no card: %v", err)
	}
}

// What a card costs its reader is bounded: a false claim to a trusted key is cheaper to
// write than to check.
func TestVerifyAnyChecksSoManyClaims(t *testing.T) {
	k := key(t, profiles.Ed25519, "k")
	forged := `{"protected":"` + b64(`{"alg":"EdDSA","kid":"key-0"}`) + `","signature":"` + b64(strings.Repeat("x", 64)) + `"}`
	for claims, want := range map[int]error{MaxClaims - 1: nil, MaxClaims: ErrNoSignature} {
		card := []byte(served)
		for range claims {
			var err error
			if card, err = Attach(card, []byte(forged)); err != nil {
				t.Fatal(err)
			}
		}
		card = signed(t, string(card), k)
		asked := 0
		_, err := VerifyAny(card, func(*Header) identity.PublicKey { asked++; return k.Public() })
		if !errors.Is(err, want) || asked != MaxClaims {
			t.Errorf("%d false claims: %v, asked for %d keys", claims, err, asked)
		}
	}
}

// A signed card's set has each signature as a proof under its code point, and the card
// as it is (MAP-A2A 7, CC-DOC 6.4).
func TestMAPA2A7_SignaturesAsDetachedProofs(t *testing.T) {
	ed, ml := key(t, profiles.Ed25519, "a"), key(t, profiles.MLDSA87, "a")
	card := signed(t, served, ed, ml)
	es256 := `{"protected":"` + b64(`{"alg":"ES256","kid":"p256"}`) + `","signature":"AAAA"}`
	card, err := Attach(card, []byte(es256))
	if err != nil {
		t.Fatal(err)
	}
	set, err := Document(card, 0)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(set.Document, card) || set.MediaType != "application/json" || len(set.Proofs) != 2 {
		t.Fatalf("set %q, %d proofs", set.MediaType, len(set.Proofs))
	}
	for i, k := range []*identity.Key{ed, ml} {
		p := &set.Proofs[i]
		if p.Alg != uint16(k.Public().Scheme()) || !bytes.Contains(card, p.Octets) {
			t.Errorf("proof %d: %#x %s", i, p.Alg, p.Octets)
		}
		if err := VerifyProof(set, p, k.Public()); err != nil {
			t.Errorf("proof %d: %v", i, err)
		}
		wrong := *p
		wrong.Alg ^= 1
		if err := VerifyProof(set, &wrong, k.Public()); err != ErrAlgorithm {
			t.Errorf("proof %d under another number: %v", i, err)
		}
	}
	if err := VerifyProof(set, &document.Proof{Octets: []byte("x")}, ed.Public()); !errors.Is(err, ErrSignatureFormat) {
		t.Errorf("no signature: %v", err)
	}
	other := *set
	other.Document = bytes.Replace(set.Document, []byte("1.0.0"), []byte("1.0.1"), 1)
	if err := VerifyProof(&other, &set.Proofs[0], ed.Public()); err != ErrSignature {
		t.Errorf("another card: %v", err)
	}

	// What has no canonical form is carried as it is.
	set, err = Document([]byte("no card"), 0)
	if err != nil || len(set.Proofs) != 0 || string(set.Document) != "no card" {
		t.Errorf("set %+v, %v", set, err)
	}
}

// A known answer of our own form: the whole signature of a small card by the key of
// RFC 8032, section 7.1, test 1, computed with another implementation.
func TestKnownSignature(t *testing.T) {
	seed, err := hex.DecodeString("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
	if err != nil {
		t.Fatal(err)
	}
	k, err := identity.FromSeed(profiles.Ed25519, [32]byte(seed))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Sign([]byte(`{ "name" : "Example Agent" }`), k, Header{KeyID: "key-1"})
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != knownSignature {
		t.Errorf("signature\n%s, want\n%s", got, knownSignature)
	}
}

func FuzzCard(f *testing.F) {
	k := key(f, profiles.Ed25519, "fuzz")
	f.Add([]byte(served))
	f.Add([]byte(`{"signatures":[{"protected":"e30","signature":"AA"}],"a":[1e2,"\ud83d\ude00"]}`))
	f.Add([]byte("\xef\xbb\xbf{}"))
	f.Fuzz(func(t *testing.T, card []byte) {
		payload, err := Payload(card)
		all, allErr := Signatures(card)
		if err != nil {
			if !errors.Is(err, ErrCard) {
				t.Fatalf("error %v", err)
			}
			return
		}
		if again, err := Payload(payload); err != nil || !bytes.Equal(again, payload) || !json.Valid(payload) {
			t.Fatalf("the payload of the payload is\n%s, %v, not\n%s", again, err, payload)
		}
		s, err := Sign(card, k, Header{KeyID: "k"})
		if err != nil {
			t.Fatal(err)
		}
		out, err := Attach(card, s)
		if (err == nil) != (allErr == nil) {
			t.Fatalf("signatures: %v, attached: %v", allErr, err)
		}
		if err != nil {
			return
		}
		more, err := Signatures(out)
		if err != nil || len(more) != len(all)+1 || Verify(out, more[len(all)], k.Public()) != nil {
			t.Fatalf("%q became %q, which does not verify: %v", card, out, err)
		}
	})
}

func FuzzSignature(f *testing.F) {
	f.Add([]byte(knownSignature))
	f.Add([]byte(`{"protected":"e30","signature":"AA"}`))
	f.Fuzz(func(t *testing.T, octets []byte) {
		s, err := ParseSignature(octets)
		switch {
		case err != nil && !errors.Is(err, ErrSignatureFormat), (s == nil) != (err != nil):
			t.Fatalf("%v, %v", s, err)
		case s != nil && (s.Algorithm == "" || len(s.signature) == 0):
			t.Fatalf("signature %+v", s)
		}
	})
}

const knownSignature = `{"protected":"eyJhbGciOiJFZERTQSIsInR5cCI6IkpPU0UiLCJraWQiOiJrZXktMSJ9","signature":"Yh-JwxBoQ6fv-jgNUxtsftnNW3FgDy-Dli2Tcmh__ldOYQ8lMn31NvJintbUeoaMsjbuIkudZM83xlT5cgTmAg"}`
