package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/trestle-npamp/trestle/internal/buf"
)

// frame returns a whole frame whose payload of n octets depends on seq.
func frame(seq, n int) []byte {
	b := AppendHeader(make([]byte, 0, HeaderLen+n), FlagENC, 0x0100, ChannelBridge, Seq(seq), n)
	for i := range n {
		b = append(b, byte(seq*7+i))
	}
	return b
}

// take collects every whole frame that is there, as copies, and spoils the
// originals as opening in place would.
func take(t testing.TB, s *Scanner) (frames [][]byte, err error) {
	t.Helper()
	for {
		f, ok, err := s.Frame()
		if !ok {
			return frames, err
		}
		frames = append(frames, append(bytes.Clone(f.Header()), f.Payload()...))
		for i := range f.Payload() {
			f.Payload()[i] = 0xEE
		}
	}
}

func TestScannerHandsOutInPlace(t *testing.T) {
	in := append(frame(0, 100), frame(1, 0)...)
	var s Scanner
	s.Feed(in)
	f, ok, err := s.Frame()
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if &f.Payload()[0] != &in[HeaderLen] {
		t.Error("a frame that lay whole in the input was copied")
	}
	if f, ok, _ := s.Frame(); !ok || f.Len() != HeaderLen {
		t.Error("second frame missing")
	}
	if _, ok, err := s.Frame(); ok || err != nil {
		t.Error(ok, err)
	}
	if err := s.Settle(); err != nil || s.Buffered() != 0 || s.part != nil {
		t.Error("something was kept of whole frames")
	}
}

func TestScannerFindsFramesInAnySplit(t *testing.T) {
	var stream []byte
	var want [][]byte
	for i, n := range []int{0, 1, 15, 500, 3000, 0, 220, 70_000, 16, 17} {
		want = append(want, frame(i, n))
		stream = append(stream, want[i]...)
	}
	for _, step := range []int{1, 2, 35, 36, 37, 255, 256, 1000, 65_536, len(stream)} {
		budget := buf.NewBudget(1 << 20)
		s := Scanner{Budget: budget}
		var got [][]byte
		for rest := bytes.Clone(stream); len(rest) > 0; {
			n := min(step, len(rest))
			s.Feed(rest[:n])
			frames, err := take(t, &s)
			if err != nil {
				t.Fatal(step, err)
			}
			got = append(got, frames...)
			if err := s.Settle(); err != nil {
				t.Fatal(step, err)
			}
			clear(rest[:n]) // the loan is over
			rest = rest[n:]
		}
		if len(got) != len(want) {
			t.Fatalf("step %d: %d frames, want %d", step, len(got), len(want))
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("step %d: frame %d differs", step, i)
			}
		}
		if s.Buffered() != 0 || budget.Used() != 0 {
			t.Errorf("step %d: %d octets buffered, %d accounted", step, s.Buffered(), budget.Used())
		}
	}
}

func TestScannerShowsTheHeaderBeforeThePayload(t *testing.T) {
	b := frame(5, 1000)
	var s Scanner
	s.Feed(b[:20])
	if _, ok, err := s.Header(); ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := s.Settle(); err != nil {
		t.Fatal(err)
	}
	s.Feed(b[20:HeaderLen])
	for range 2 {
		h, ok, err := s.Header()
		if !ok || err != nil || h.Seq() != 5 || h.PayloadLen() != 1000 {
			t.Fatal(h, ok, err)
		}
	}
	if _, ok, err := s.Frame(); ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := s.Settle(); err != nil || s.Buffered() != HeaderLen {
		t.Fatal(err, s.Buffered())
	}
	s.Feed(b[HeaderLen:])
	if h, ok, _ := s.Header(); !ok || h.Seq() != 5 {
		t.Fatal("header lost between turns")
	}
	if f, ok, _ := s.Frame(); !ok || !bytes.Equal(f.Payload(), b[HeaderLen:]) {
		t.Fatal("frame wrong")
	}
}

// A length field must not make memory appear: what is held follows what came.
func TestScannerAllocatesOnlyAfterArrival(t *testing.T) {
	big := AppendHeader(nil, FlagENC, 0x0100, ChannelBridge, 0, MaxFrameLen-HeaderLen)
	budget := buf.NewBudget(1 << 30)
	s := Scanner{MaxFrame: MaxFrameLen, Budget: budget}
	s.Feed(big)
	if _, ok, err := s.Header(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := s.Settle(); err != nil {
		t.Fatal(err)
	}
	if budget.Used() != buf.MinClass {
		t.Errorf("a header alone took %d octets", budget.Used())
	}
	chunk := make([]byte, 48<<10)
	for came := HeaderLen; came < MaxFrameLen; {
		n := min(len(chunk), MaxFrameLen-came)
		s.Feed(chunk[:n])
		came += n
		f, ok, err := s.Frame()
		if err != nil || ok != (came == MaxFrameLen) {
			t.Fatal(came, ok, err)
		}
		if ok && f.Len() != MaxFrameLen {
			t.Fatal(f.Len())
		}
		bound := 4 * came
		if came > buf.MaxClass {
			bound = min(2*came, came+maxStep)
		}
		if err := s.Settle(); err != nil || budget.Used() > int64(bound) {
			t.Fatalf("%d octets came, %d taken, %v", came, budget.Used(), err)
		}
	}
	if budget.Used() != 0 {
		t.Error(budget.Used())
	}
}

// A buffer that a frame outgrew must stay whole while an earlier frame of the
// turn lies in it.
func TestScannerKeepsOutgrownBufferForTheTurn(t *testing.T) {
	first, second := frame(0, 100), frame(1, 5000)
	budget := buf.NewBudget(1 << 20)
	s := Scanner{Budget: budget}
	s.Feed(append(bytes.Clone(first), second[:40]...))
	if err := s.Settle(); err != nil { // the turn left a whole frame unread
		t.Fatal(err)
	}
	if s.Buffered() != len(first)+40 {
		t.Fatal(s.Buffered())
	}
	s.Feed(bytes.Clone(second[40:]))
	f1, ok, err := s.Frame()
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	f2, ok, err := s.Frame()
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if s.spent == nil {
		t.Fatal("the case does not grow")
	}
	if !bytes.Equal(f1.Payload(), first[HeaderLen:]) || !bytes.Equal(f2.Payload(), second[HeaderLen:]) {
		t.Error("frames differ")
	}
	if err := s.Settle(); err != nil || s.spent != nil || budget.Used() != 0 {
		t.Error(err, budget.Used())
	}
}

func TestScannerSkip(t *testing.T) {
	frames := [][]byte{frame(0, 50), frame(1, 100_000), frame(2, 60), frame(3, 10)}
	stream := bytes.Join(frames, nil)
	for _, step := range []int{1, 30, 36, 100, 4096, len(stream)} {
		budget := buf.NewBudget(1 << 20)
		s := Scanner{Budget: budget}
		s.Skip() // without a header nothing happens
		var got []Seq
		for rest := stream; len(rest) > 0; {
			n := min(step, len(rest))
			s.Feed(bytes.Clone(rest[:n]))
			rest = rest[n:]
			for {
				h, ok, err := s.Header()
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				if h.Seq()%2 == 1 {
					s.Skip()
					s.Skip()
					continue
				}
				f, ok, err := s.Frame()
				if err != nil {
					t.Fatal(err)
				}
				if !ok {
					break
				}
				got = append(got, f.Header().Seq())
			}
			if err := s.Settle(); err != nil {
				t.Fatal(err)
			}
			if budget.Used() > 1024 {
				t.Fatalf("step %d: a skipped frame took memory: %d octets", step, budget.Used())
			}
		}
		if len(got) != 2 || got[0] != 0 || got[1] != 2 || s.Buffered() != 0 || s.skip != 0 {
			t.Errorf("step %d: %v, %d buffered", step, got, s.Buffered())
		}
	}
}

func TestScannerRejects(t *testing.T) {
	good := frame(0, 20)
	mutate := func(f func([]byte)) []byte {
		b := frame(1, 20)
		f(b)
		return b
	}
	tests := []struct {
		name string
		b    []byte
		want error
	}{
		{"checksum", mutate(func(b []byte) { b[21]++ }), ErrChecksum},
		{"magic", mutate(func(b []byte) { b[1] = 'p'; resum(b) }), ErrMagic},
		{"version", mutate(func(b []byte) { b[4] = 0x12; resum(b) }), ErrVersion},
		{"reserved", mutate(func(b []byte) { b[29] = 9 }), ErrReserved},
		{"too long", mutate(func(b []byte) { PutHeader(b, 2, 1, 1, 1, 65) }), ErrTooLong},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			budget := buf.NewBudget(1 << 20)
			s := Scanner{MaxFrame: HeaderLen + 64, Budget: budget}
			s.Feed(append(bytes.Clone(good), tt.b...))
			frames, err := take(t, &s)
			if len(frames) != 1 || err != tt.want {
				t.Fatalf("%d frames, %v; want 1, %v", len(frames), err, tt.want)
			}
			// The fault is final, whatever comes.
			if err := s.Settle(); err != tt.want {
				t.Error(err)
			}
			s.Feed(good)
			if _, ok, err := s.Header(); ok || err != tt.want {
				t.Error(ok, err)
			}
			if _, ok, err := s.Frame(); ok || err != tt.want {
				t.Error(ok, err)
			}
			s.Skip()
			if err := s.Settle(); err != tt.want || s.Buffered() != 0 || budget.Used() != 0 {
				t.Error(err, s.Buffered(), budget.Used())
			}
			s.Release()
			s.Feed(good)
			if _, ok, err := s.Frame(); !ok || err != nil {
				t.Error("a released scanner is not as new:", ok, err)
			}
		})
	}
}

// The fault must show as soon as the header is there, not when its payload is.
func TestScannerRejectsBeforeThePayload(t *testing.T) {
	s := Scanner{MaxFrame: FloorFrameLen}
	s.Feed(AppendHeader(nil, 0, 1, 0, 0, FloorFrameLen))
	if _, ok, err := s.Frame(); ok || err != ErrTooLong {
		t.Error(ok, err)
	}
}

func TestScannerBudget(t *testing.T) {
	shared := buf.NewBudget(1024)
	a, b := Scanner{Budget: shared}, Scanner{Budget: shared}
	a.Feed(frame(0, 600)[:600])
	if err := a.Settle(); err != nil {
		t.Fatal(err)
	}
	b.Feed(frame(0, 10)[:1])
	if err := b.Settle(); !errors.Is(err, ErrBudget) {
		t.Fatal(err)
	}
	if _, _, err := b.Frame(); !errors.Is(err, ErrBudget) {
		t.Error("not final:", err)
	}
	if shared.Used() != 1024 {
		t.Error(shared.Used())
	}
	a.Release()
	b.Release()
	if shared.Used() != 0 {
		t.Error(shared.Used())
	}
	// The frame that completes may need more room than its partial octets had.
	a.Feed(frame(0, 2000)[:500])
	if err := a.Settle(); err != nil {
		t.Fatal(err)
	}
	a.Feed(frame(0, 2000)[500:])
	if _, ok, err := a.Frame(); ok || !errors.Is(err, ErrBudget) {
		t.Error(ok, err)
	}
	a.Release()
	if shared.Used() != 0 {
		t.Error(shared.Used())
	}
}

func TestScannerFeedSettlesAForgottenTurn(t *testing.T) {
	b := frame(0, 300)
	var s Scanner
	for rest := bytes.Clone(b); len(rest) > 0; {
		n := min(50, len(rest))
		s.Feed(rest[:n])
		rest = rest[n:]
	}
	f, ok, err := s.Frame()
	if !ok || err != nil || !bytes.Equal(f.Payload(), b[HeaderLen:]) {
		t.Error(ok, err)
	}
	s.Release()
}

// FuzzScanner cuts a stream into arbitrary pieces, reads it frame by frame in an
// arbitrary manner, and compares with reading it in one piece.
func FuzzScanner(f *testing.F) {
	f.Add([]byte{0, 10, 1, 200, 2, 0}, []byte{1, 50, 3, 7, 200, 0})
	f.Add([]byte{9, 255, 9, 255, 200, 1, 2, 3}, []byte{36, 4, 255, 1, 35, 2})
	f.Add([]byte{201, 4, 90}, []byte{16})
	f.Add([]byte{0, 1, 202, 0}, []byte{})
	f.Fuzz(func(t *testing.T, program, plan []byte) {
		const maxFrame = HeaderLen + 9*256
		if len(program) > 512 {
			return // frames that are left unread for long are copied again each turn
		}
		stream := buildStream(program)
		want, partial, wantErr := readAll(stream, maxFrame)

		budget := buf.NewBudget(1 << 20)
		s := Scanner{MaxFrame: maxFrame, Budget: budget}
		step := func(i int) int { // the plan, over and over
			if len(plan) == 0 {
				return 97
			}
			return int(plan[i%len(plan)])
		}
		var err error
		next, fed := 0, 0
		for i := 0; fed < len(stream) && err == nil; i++ {
			n := min(1+step(i)*(1+step(i+1)%8), len(stream)-fed)
			in := bytes.Clone(stream[fed : fed+n])
			s.Feed(in)
			fed += n
			manner := step(i + 2)
			var kept []Frame
			for first := next; err == nil; {
				if manner&1 == 1 {
					h, ok, herr := s.Header()
					if err = herr; err != nil || !ok {
						break
					}
					if !bytes.Equal(h, want[next][:HeaderLen]) {
						t.Fatalf("header %d: %x", next, h)
					}
				}
				if manner&2 == 2 && next-first > manner>>4 {
					break // a turn that leaves frames unread
				}
				if manner&4 == 4 && next%3 == 1 {
					_, ok, herr := s.Header()
					if err = herr; err != nil || !ok {
						break
					}
					s.Skip()
					next++
					continue
				}
				fr, ok, ferr := s.Frame()
				if err = ferr; err != nil || !ok {
					break
				}
				if !bytes.Equal(fr.b, want[next]) || cap(fr.Payload()) != len(fr.Payload()) {
					t.Fatalf("frame %d: %x", next, fr.b)
				}
				for j := range fr.Payload() {
					fr.Payload()[j] = byte(len(kept)) ^ 0xEE
				}
				kept = append(kept, fr)
				next++
			}
			for k, fr := range kept { // all are valid until the turn is settled
				for _, c := range fr.Payload() {
					if c != byte(k)^0xEE {
						t.Fatal("a frame changed within its turn")
					}
				}
			}
			if i%5 != 4 {
				if serr := s.Settle(); serr != err {
					t.Fatal(serr, err)
				}
				clear(in)
				if got, came := budget.Used(), s.Buffered(); got > int64(max(buf.MinClass, 4*came)) {
					t.Fatalf("%d octets taken for %d", got, came)
				}
			}
		}
		// Whatever the turns left unread is still there.
		for err == nil {
			fr, ok, ferr := s.Frame()
			if err = ferr; err != nil || !ok {
				break
			}
			if !bytes.Equal(fr.b, want[next]) {
				t.Fatalf("frame %d: %x", next, fr.b)
			}
			next++
		}
		if err != wantErr {
			t.Fatalf("error %v, want %v", err, wantErr)
		}
		// A frame of which only the header came is none, unless it was skipped.
		if n := len(want); next != n && !(partial && next == n-1) {
			t.Fatalf("%d frames, want %d", next, n)
		}
		s.Release()
		if budget.Used() != 0 {
			t.Fatal("budget not given back")
		}
	})
}

// buildStream writes frames of the lengths that the program says, numbered by
// their sequence numbers, and whatever else it wants.
func buildStream(program []byte) []byte {
	var stream []byte
	for seq := 0; len(program) >= 2 && len(stream) < 1<<16; seq++ {
		op, arg := program[0], int(program[1])
		program = program[2:]
		switch {
		case op < 200:
			stream = append(stream, frame(seq, int(op%9)*256+arg)...)
		case op == 200: // rubbish
			stream = append(stream, program...)
		case op == 201: // a frame that breaks off
			b := frame(seq, arg)
			return append(stream, b[:min(len(b), int(arg))]...)
		case op == 202: // too long by some
			return AppendHeader(stream, 0, 1, 0, Seq(seq), 9*256+1+arg)
		default: // a good header with one octet changed
			b := frame(seq, 3)
			b[arg%HeaderLen] ^= op
			if op&1 == 1 {
				resum(b)
			}
			stream = append(stream, b...)
		}
	}
	return stream
}

// readAll reads a stream in one piece. partial says that the last of the frames
// is no more than a header whose payload is missing.
func readAll(stream []byte, maxFrame int) (frames [][]byte, partial bool, err error) {
	for {
		f, n, err := ParseFrame(stream, maxFrame)
		switch {
		case err != nil:
			return frames, false, err
		case n > 0:
			frames = append(frames, f.b)
			stream = stream[n:]
		case len(stream) >= HeaderLen:
			return append(frames, stream[:HeaderLen]), true, nil
		default:
			return frames, false, nil
		}
	}
}

func TestScannerAllocatesNothing(t *testing.T) {
	stream := bytes.Join([][]byte{frame(0, 512), frame(1, 512), frame(2, 512)}, nil)
	var s Scanner
	turn := func(b []byte) {
		s.Feed(b)
		for {
			h, ok, err := s.Header()
			if err != nil {
				t.Fatal(err)
			}
			if !ok || h.Type() != 0x0100 {
				break
			}
			if _, ok, _ := s.Frame(); !ok {
				break
			}
		}
		if err := s.Settle(); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(200, func() { turn(stream) }); n != 0 {
		t.Errorf("whole frames: %v allocations", n)
	}
	if n := testing.AllocsPerRun(200, func() {
		turn(stream[:20])
		turn(stream[20:700])
		turn(stream[700:])
	}); n != 0 && !raceEnabled {
		t.Errorf("straddling frames: %v allocations", n)
	}
}

func benchmarkScanner(b *testing.B, size, step int) {
	const frames = 64
	var stream []byte
	for i := range frames {
		stream = append(stream, frame(i, size)...)
	}
	var s Scanner
	b.SetBytes(int64(len(stream) / frames))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N/frames + 1 {
		for rest := stream; len(rest) > 0; {
			n := min(step, len(rest))
			s.Feed(rest[:n])
			rest = rest[n:]
			for {
				if _, ok, err := s.Header(); !ok || err != nil {
					break
				}
				f, ok, _ := s.Frame()
				if !ok {
					break
				}
				sink += f.Len()
			}
			if err := s.Settle(); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// One operation is one frame.
func BenchmarkScanner(b *testing.B) {
	b.Run("512 octets, whole", func(b *testing.B) { benchmarkScanner(b, 512, 1<<30) })
	b.Run("512 octets, in 4 KiB pieces", func(b *testing.B) { benchmarkScanner(b, 512, 4096) })
	b.Run("64 KiB, in 16 KiB pieces", func(b *testing.B) { benchmarkScanner(b, 64<<10, 16<<10) })
}

// Random octets must not look like frames.
func TestScannerOnNoise(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 4096)
	for range 100 {
		for i := 0; i < len(noise); i += 8 {
			binary.LittleEndian.PutUint64(noise[i:], rng.Uint64())
		}
		var s Scanner
		s.Feed(noise)
		if _, ok, err := s.Frame(); ok || err != ErrChecksum {
			t.Fatal(ok, err)
		}
	}
}
