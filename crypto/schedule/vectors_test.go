package schedule

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/internal/vectors"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
)

func hashNamed(t *testing.T, name string) profiles.Hash {
	t.Helper()
	switch strings.ReplaceAll(strings.ToLower(name), "-", "") {
	case "sha256":
		return profiles.SHA256
	case "sha384":
		return profiles.SHA384
	}
	t.Fatalf("hash %q", name)
	return 0
}

func TestVectorsKeySchedule(t *testing.T) {
	var f struct {
		RFC8448 struct {
			Secret   string `json:"client_handshake_traffic_secret"`
			Key      string `json:"write_key"`
			IV       string `json:"write_iv"`
			Finished string `json:"finished_key"`
		} `json:"rfc8448_expand_label"`
		RFC5869 struct {
			IKM, Salt, Info, PRK, OKM string
			L                         int
		} `json:"rfc5869_tc1"`
		Inputs struct {
			Hash   string `json:"hash"`
			MLKEM  string `json:"ikm_mlkem_ss"`
			X25519 string `json:"ikm_x25519_ss"`
			KEM    string `json:"th_kem"`
			CCV    string `json:"th_ccv"`
		} `json:"npamp_inputs"`
	}
	if !vectors.Load(t, "key-schedule-kat.json", &f) {
		return
	}
	prk := Extract(profiles.SHA256, unhex(t, f.RFC5869.Salt), unhex(t, f.RFC5869.IKM))
	equal(t, "RFC 5869 PRK", prk, f.RFC5869.PRK)
	okm := make([]byte, f.RFC5869.L)
	if err := Expand(profiles.SHA256, prk, unhex(t, f.RFC5869.Info), okm); err != nil {
		t.Fatal(err)
	}
	equal(t, "RFC 5869 OKM", okm, f.RFC5869.OKM)

	// The file has inputs and anchors only. An oracle, proved on the anchors
	// with TLS's prefix, says what the ladder must give with ours.
	oracle := func(prefix string, secret []byte, label string, context []byte, n int) []byte {
		info := []byte{byte(n >> 8), byte(n), byte(len(prefix) + len(label))}
		info = append(append(info, prefix+label...), byte(len(context)))
		out := make([]byte, n)
		if err := Expand(profiles.SHA256, secret, append(info, context...), out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	tls := unhex(t, f.RFC8448.Secret)
	equal(t, "RFC 8448 key", oracle("tls13 ", tls, "key", nil, 16), f.RFC8448.Key)
	equal(t, "RFC 8448 iv", oracle("tls13 ", tls, "iv", nil, 12), f.RFC8448.IV)
	equal(t, "RFC 8448 finished", oracle("tls13 ", tls, "finished", nil, 32), f.RFC8448.Finished)

	ikm := append(unhex(t, f.Inputs.MLKEM), unhex(t, f.Inputs.X25519)...)
	handshake := Extract(hashNamed(t, f.Inputs.Hash), make([]byte, 32), ikm)
	s := NewSecrets(hashNamed(t, f.Inputs.Hash), ikm, point(unhex(t, f.Inputs.KEM)))
	if !bytes.Equal(s.handshake[:32], handshake) {
		t.Error("handshake_secret differs")
	}
	for dir, label := range []string{"c hs", "s hs"} {
		hs := oracle("n-pamp ", handshake, label, unhex(t, f.Inputs.KEM), 32)
		if !bytes.Equal(s.hs[dir][:32], hs) {
			t.Errorf("%s differs", label)
		}
		context := append([]byte{byte(dir)}, make([]byte, 12)...)
		context[10] = 1
		traffic := oracle("n-pamp ", hs, "traffic", context, 32)
		key, iv, err := s.AuthRoot(wire.Direction(dir)).Traffic(0, profiles.AES256GCM, wire.ChannelControl)
		if err != nil || !bytes.Equal(key[:], oracle("n-pamp ", traffic, "key", nil, 32)) ||
			!bytes.Equal(iv[:], oracle("n-pamp ", traffic, "iv", nil, 12)) {
			t.Errorf("%s traffic key differs (%v)", label, err)
		}
		th := point(unhex(t, f.Inputs.CCV))
		want := finishedMAC(profiles.SHA256, oracle("n-pamp ", hs, "finished", nil, 32), th)
		if got := s.Finished(wire.Direction(dir), th); got != want {
			t.Errorf("%s Finished differs", label)
		}
	}
	c2s, s2c := s.Master(point(unhex(t, f.Inputs.CCV)))
	master := oracle("n-pamp ", handshake, "master", unhex(t, f.Inputs.CCV), 32)
	if !bytes.Equal(c2s.secret[:32], master) || !bytes.Equal(s2c.secret[:32], master) {
		t.Error("master differs")
	}
}

func TestVectorsTranscript(t *testing.T) {
	var f struct {
		Frames []struct {
			Type string `json:"frame_type"`
			TLVs []struct{ Type, Value string }
		}
		Expected map[string]string `json:"expected_transcript_points"`
	}
	if !vectors.Load(t, "transcript-kat.json", &f) {
		return
	}
	number := func(s string) uint16 {
		n, err := strconv.ParseUint(s, 0, 16)
		if err != nil {
			t.Fatal(err)
		}
		return uint16(n)
	}
	// What each point comes right after: frame and TLV, counted from 0.
	points := map[[2]int]string{{1, 4}: "th_kem", {2, 0}: "th_sid", {2, 1}: "th_scv", {3, 0}: "th_cid", {3, 1}: "th_ccv"}
	tr := NewTranscript(profiles.SHA256)
	seen := 0
	for i, frame := range f.Frames {
		tr.AddFrameType(wire.FrameType(number(frame.Type)))
		for j, tlv := range frame.TLVs {
			tr.AddTLV(wire.TLVType(number(tlv.Type)), unhex(t, tlv.Value))
			if name := points[[2]int{i, j}]; name != "" {
				p := tr.Sum()
				equal(t, name, p.Bytes(), f.Expected[name])
				seen++
			}
		}
	}
	if seen != len(f.Expected) || seen != 5 {
		t.Errorf("%d points seen, %d expected", seen, len(f.Expected))
	}
}

func TestVectorsFinished(t *testing.T) {
	var f struct {
		Hash     string
		Expected map[string]string
		Inputs   map[string]string `json:"npamp_inputs"`
		RFC4231  map[string]any    `json:"rfc4231_hmac_sha256"`
	}
	if !vectors.Load(t, "finished-kat.json", &f) {
		return
	}
	h := hashNamed(t, f.Hash)
	for _, side := range []struct{ name, th string }{{"client", "th_ccv"}, {"server", "th_scv"}} {
		mac := finishedMAC(h, unhex(t, f.Inputs["finished_key_"+side.name]), point(unhex(t, f.Inputs[side.th])))
		equal(t, side.name, mac.Bytes(), f.Expected["verify_data_"+side.name])
	}
	for _, name := range []string{"tc1", "tc2"} {
		c := f.RFC4231[name].(map[string]any)
		var d digest
		mac(h, unhex(t, c["key"].(string)), &d, unhex(t, c["data"].(string)))
		equal(t, "RFC 4231 "+name, d[:h.Size()], c["hmac_sha256"].(string))
	}
}

func TestVectorsCorpus(t *testing.T) {
	var f struct {
		TestGroups []struct {
			Op    string
			Tests []struct {
				TcID   int
				Result string
				In     struct {
					Hash, PRK, Info, Secret, Label, Context, Profile, Master, IV string

					Length  int
					Dir     wire.Direction
					Epoch   wire.Epoch
					Suite   profiles.Suite
					Channel wire.Channel
					Seq     string
				}
				Expected struct{ OKM, Out, Key, IV, Nonce string }
			}
		}
	}
	if !corpus(t, &f) {
		return
	}
	run := map[string]int{}
	for _, g := range f.TestGroups {
		for _, c := range g.Tests {
			name := g.Op + " " + strconv.Itoa(c.TcID)
			valid := c.Result == "valid"
			in := c.In
			switch g.Op {
			case "hkdf.expand":
				out := make([]byte, in.Length)
				err := Expand(hashNamed(t, in.Hash), unhex(t, in.PRK), unhex(t, in.Info), out)
				if (err == nil) != valid {
					t.Errorf("%s: %v", name, err)
				}
				equal(t, name, out, c.Expected.OKM)
			case "hkdf.expand_label":
				out := make([]byte, in.Length)
				err := ExpandLabel(hashNamed(t, in.Hash), unhex(t, in.Secret), in.Label, unhex(t, in.Context), out)
				if (err == nil) != valid {
					t.Errorf("%s: %v", name, err)
				}
				if valid {
					equal(t, name, out, c.Expected.Out)
				}
			case "keys.derive_traffic":
				r := NewRoot(profiles.ByName(in.Profile).Hash, in.Dir, unhex(t, in.Master))
				key, iv, err := r.Traffic(in.Epoch, in.Suite, in.Channel)
				if (err == nil) != valid {
					t.Errorf("%s: %v", name, err)
				}
				equal(t, name, key[:], c.Expected.Key)
				equal(t, name, iv[:], c.Expected.IV)
			case "nonce.derive":
				raw := unhex(t, in.IV)
				// An iv of another length does not fit the type.
				if (len(raw) == IVLen) != valid {
					t.Errorf("%s: iv of %d octets", name, len(raw))
				}
				if !valid {
					break
				}
				seq, err := strconv.ParseUint(in.Seq, 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				var nonce [IVLen]byte
				Nonce((*[IVLen]byte)(raw), wire.Seq(seq), &nonce)
				equal(t, name, nonce[:], c.Expected.Nonce)
			default:
				continue
			}
			run[g.Op]++
		}
	}
	for _, op := range []string{"hkdf.expand", "hkdf.expand_label", "keys.derive_traffic", "nonce.derive"} {
		if run[op] == 0 {
			t.Errorf("no case of %s", op)
		}
	}
}

// corpus reads the groups of the corpus whose operations this package has; the
// others' fields have other types.
func corpus(t *testing.T, into any) bool {
	t.Helper()
	var all struct {
		TestGroups []map[string]any `json:"testGroups"`
	}
	if !vectors.Load(t, "conformance-corpus.json", &all) {
		return false
	}
	all.TestGroups = slices.DeleteFunc(all.TestGroups, func(g map[string]any) bool {
		op := g["op"].(string)
		return !strings.HasPrefix(op, "hkdf.") && !strings.HasPrefix(op, "keys.") && !strings.HasPrefix(op, "nonce.")
	})
	b, err := json.Marshal(all)
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		t.Fatal(err)
	}
	return true
}
