package conformance

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/bridge"
)

// head is a script as far as its first step.
const head = "clause X 1\ntests responder\ncarries A2A\n"

func TestFaultsOfScriptsAreToldWithTheirLine(t *testing.T) {
	for name, tc := range map[string]struct {
		src  string
		line int
		says string
	}{
		"nothing":                   {"", 1, "no clause"},
		"no side":                   {"clause X 1\n", 1, "which side"},
		"no protocol":               {"clause X 1\ntests responder\n", 1, "carries nothing"},
		"no step":                   {head, 1, "nothing happens"},
		"unknown line":              {head + "somebody sends REQUEST on Bridge\n", 4, `nobody is called "somebody"`},
		"unknown verb":              {head + "peer eats\n", 4, `peer can't "eats"`},
		"unknown side":              {"tests both\n", 1, `no side "both"`},
		"unknown channel":           {head + "peer sends REQUEST on Bride\n", 4, `no channel "Bride"`},
		"unknown type":              {head + "peer sends QUERY on Bridge\n", 4, `no frame type "QUERY"`},
		"missing type octets":       {head + "peer sends REQUEST on Bridge\n", 4, "channel and frame type are 000d0100"},
		"unknown field":             {head + "peer sends REQUEST on Bridge | 000d 0100\n  colour red | 00\n", 5, `no field "colour"`},
		"wrong octets":              {head + "peer sends REQUEST on Bridge | 000d 0100\n  protocol A2A | 03\n", 5, `are 02, not "03"`},
		"octets of another field":   {head + "peer sends REQUEST on Bridge | 000d 0100\n  protocol A2A | 02\n | 02\n", 5, `are 02, not "0202"`},
		"octets beside nothing":     {head + " | 02\n", 4, "beside nothing"},
		"field of nothing":          {head + "  protocol A2A | 02\n", 4, "field of nothing"},
		"octets of the application": {head + "app sees request | 00\n", 4, "only what peers send and receive"},
		"field of the application":  {head + "app sees request\n  colour red\n", 5, `has no field "colour"`},
		"unended text":              {head + "app responds\n  foreign `{\n", 5, "no end"},
		"bad escape":                {head + "app responds\n  foreign \"\\q\"\n", 5, "no end"},
		"bad hexadecimal":           {head + "app responds\n  foreign h'0'\n", 5, "hexadecimal"},
		"a hole where none can be":  {head + "app responds\n  foreign <a>\n", 5, "can't have"},
		"bad hole":                  {head + "peer sends REQUEST on Bridge | 000d 0100\n  corr <1> | \n", 5, "letters"},
		"left over":                 {head + "peer sends REQUEST on Bridge | 000d 0100\n  kind request twice | 01\n", 5, `"twice" is left over`},
		"no number":                 {head + "peer sends REQUEST on Bridge | 000d 0100\n  flags 256 | 00\n", 5, "no number of 8 bits"},
		"too long":                  {head + "peer sends REQUEST on Bridge | 000d 0100\n  corr `" + strings.Repeat("x", 256) + "` | 00\n", 5, "256 octets"},
		"no tag":                    {head + "peer sends REQUEST on Bridge | 000d 0100\n  mediatype `a` | 00\n", 5, "tags give it"},
		"star that is not last":     {head + "peer receives ERROR on Bridge | 000d 0102\n  error NotDelivered * | 04*\n  foreign `x` | 78\n", 5, "stands at the end"},
		"star that is sent":         {head + "peer sends ERROR on Bridge | 000d 0102\n  error NotDelivered * | 04*\n", 4, "can't be sent"},
		"setting after steps":       {head + "app sees nothing\ncarries MCP\n", 5, "before the first step"},
		"no reason":                 {head + "not program\n", 4, "the reason is missing"},
		"no backend":                {head + "not paper because it burns\n", 4, `no backend "paper"`},
		"run on nothing":            {head + "not program because a\nnot machines because b\napp sees nothing\n", 1, "run on nothing"},
		"a caller without a relay":  {head + "caller receives nothing\n", 4, "no caller beside a responder"},
		"tags that clash":           {head + "tags binding 0x0013\napp sees nothing\n", 1, "TLV"},
		"AGNTCY without its id":     {"carries AGNTCY\n", 1, "as ID is missing"},
		"unknown class":             {"carries 0x20 transparent\n", 1, `no class "transparent"`},
		"too much time":             {head + "time passes 2h\n", 4, "an hour"},
		"bad entry":                 {head + "peer sends QUERY on Discovery | 0010 0100\n  map 1 | a1\n  entry 0 kind [1 | 00\n", 6, "missing"},
		"deep entry":                {head + "peer sends QUERY on Discovery | 0010 0100\n  entry 0 kind " + strings.Repeat("[", 40) + " | 00\n", 5, "deeply"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Parse("x", []byte(tc.src))
			var e *Error
			if !errors.As(err, &e) || s != nil {
				t.Fatalf("error %v", err)
			}
			if e.Name != "x" || e.Line != tc.line || !strings.Contains(e.Error(), tc.says) {
				t.Errorf("%v, want line %d and %q", e, tc.line, tc.says)
			}
		})
	}
	if _, err := Parse("x", make([]byte, maxScript+1)); !errors.Is(err, ErrTooLong) {
		t.Errorf("a script over 1 MiB: %v", err)
	}
}

// Whatever can be laid out is a script, and its layout stays as it is.
func FuzzLayout(f *testing.F) {
	for _, path := range paths(f) {
		src, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	f.Add([]byte(head + "app sees nothing\n"))
	f.Add([]byte(head + "peer sends QUERY on Discovery\n map 2\n entry 0 frame_kind 256\n entry 1 corr {1: [true, h'00', -1], \"x\": null}\n"))
	f.Add([]byte(head + "peer receives 0x200 on 7\n corr `a` <b> h'00'\n octets *\n"))
	f.Fuzz(func(t *testing.T, src []byte) {
		_, plain := Parse("x", src)
		out, err := Layout("x", src)
		if err != nil {
			if plain == nil {
				t.Fatalf("a script that has no layout: %v", err)
			}
			return
		}
		s, err := Parse("x", out)
		if err != nil {
			t.Fatalf("laid out it is no script: %v\n%s", err, out)
		}
		again, err := Layout("x", out)
		if err != nil || string(again) != string(out) {
			t.Fatalf("laid out again it is another: %v\n%s\n%s", err, out, again)
		}
		for _, st := range s.Steps {
			if st.Frame != nil && len(st.Frame.Golden.b) > len(src)*2+16*len(st.fields) {
				t.Fatalf("%d octets from a script of %d", len(st.Frame.Golden.b), len(src))
			}
		}
	})
}

// The fields and octets of a script are written without wire/bridge; here the two
// readings of the documents are held against each other. What breaks the envelope's
// rules is marked as malformed, and nothing else is.
func TestScriptsAndCodecAgree(t *testing.T) {
	frames := 0
	for _, s := range load(t) {
		for _, st := range s.Steps {
			if st.Frame == nil || st.Frame.Channel != wire.ChannelBridge && st.Frame.Channel != wire.ChannelDiscovery {
				continue
			}
			if _, ok := bridge.KindOf(st.Frame.Type); !ok || len(st.Frame.Fields) > 0 && st.Frame.Fields[0].Name == "map" {
				continue
			}
			fault := func(err any) { t.Helper(); t.Errorf("%s:%d: %v", s.Name, st.Line, err) }
			known := bindings{}
			for _, h := range st.Frame.Golden.holes {
				known[h.name] = []byte("12345678")
			}
			golden := st.Frame.Golden
			if golden.open {
				golden.append([]byte{4})
				golden.append([]byte("text"))
				golden.open = false
			}
			payload, err := golden.fill(known)
			if err != nil {
				fault(err)
				continue
			}
			var m bridge.Message
			err = bridge.Parse(&m, st.Frame.Type, payload, &s.Tags)
			if (err != nil) != (st.Flag == "malformed") {
				fault(err)
				continue
			}
			if err != nil {
				continue
			}
			frames++
			if err := agrees(&m, st.Frame); err != nil {
				fault(err)
			}
			if st.Verb == "receives" {
				out, err := m.Append(nil, &s.Tags)
				if err != nil || string(out) != string(payload) {
					fault(errors.Join(err, errors.New("the codec writes "+dump(out))))
				}
			}
		}
	}
	if frames < 50 {
		t.Errorf("%d frames", frames)
	}
}

// agrees compares what the codec reads with the fields.
func agrees(m *bridge.Message, f *Frame) error {
	var want bridge.Message
	want.Kind, _ = bridge.KindOf(f.Type)
	for _, x := range f.Fields {
		b := x.octets.b
		switch x.Name {
		case "protocol":
			want.Protocol = bridge.ProtocolID(b[0])
		case "content":
			want.Content = bridge.ContentType(b[0])
		case "flags":
			want.Flags = b[0]
		case "corr":
			want.Corr = b[1:]
		case "method":
			want.Method = b[1:]
		case "label":
			want.HasLabel, want.Label = true, bridge.Label{Effect: bridge.Effect(b[4]), Scope: b[6:]}
		}
	}
	switch {
	case m.Kind != want.Kind, m.Protocol != want.Protocol, m.Content != want.Content, m.Flags != want.Flags:
		return errors.New("the codec reads another envelope")
	case len(f.Golden.holes) == 0 && string(m.Corr) != string(want.Corr), string(m.Method) != string(want.Method):
		return errors.New("the codec reads another correlation id or method")
	case m.HasLabel != want.HasLabel, m.Label.Effect != want.Label.Effect, string(m.Label.Scope) != string(want.Label.Scope):
		return errors.New("the codec reads another label")
	}
	return nil
}

func TestLoadNamesTheScriptAtFault(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "bad"+Extension), []byte("clause X 1\nwhat\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(os.DirFS(dir)); err == nil || !strings.HasPrefix(err.Error(), "bad:2: ") {
		t.Errorf("%v", err)
	}
	if s, err := Load(os.DirFS(t.TempDir())); err != nil || len(s) != 0 {
		t.Errorf("%v %v", s, err)
	}
}
