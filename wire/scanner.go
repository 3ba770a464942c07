package wire

import (
	"errors"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/invariant"
)

// ErrBudget says that a partial frame found no room in the shared budget.
var ErrBudget = errors.New("wire: no memory left for partial frames")

// maxStep bounds, in octets, how far ahead of what arrived a buffer beyond the
// size classes is made.
const maxStep = 4 << 20

// Scanner finds frames in a stream of octets. Input is borrowed and frames are
// handed out where they lie, to be opened in place; only a frame that straddles
// two inputs is copied. A turn is
//
//	Feed (Header (Frame | Skip))* Settle
//
// and what it handed out is valid until its Settle. Frames that a turn leaves
// unread are kept for the next one.
//
//	part, from earlier turns           in, borrowed for this one
//	| handed out | frame, straddling ...|... its end | frame | frame | par ...|
//	             ^ off                                        copied by Settle
//
// Any error is final, since the stream cannot be read any further: every later
// call returns it. The zero value is ready. Not for concurrent use, and not to
// be copied once fed.
type Scanner struct {
	// MaxFrame is the longest frame to accept, header included; 0 stands for
	// DefaultFrameLen. A change applies from the next header on.
	MaxFrame int
	// Budget is what partial frames are counted against, with the size of the
	// buffers that hold them; nil is unlimited. Set it before the first Feed.
	Budget *buf.Budget

	in    []byte   // borrowed and unread
	part  *buf.Buf // unread octets of earlier turns: part.B[off:]
	off   int
	spent *buf.Buf // outgrown in this turn, but frames were handed out of it
	total int      // the current frame's length, once its header is verified
	skip  int      // octets of a skipped frame that are still to come
	err   error
}

// Feed begins a turn. It lends b to the scanner until the next call of Settle,
// Feed or Release; the scanner does not write to b, but whoever gets the frames
// may. A turn that was not settled is settled first.
func (s *Scanner) Feed(b []byte) {
	if s.part != nil || len(s.in) > 0 {
		s.settle()
	}
	s.in = b
	s.drop()
}

// Header returns the next frame's header, verified as ParseHeader does it, as
// soon as its HeaderLen octets are there, so that flags, type and channel can be
// judged before the payload has come. It consumes nothing and may be called
// again. The view is valid until the next call of another method. The errors are
// ParseHeader's, but ErrShort, and ErrBudget.
func (s *Scanner) Header() (h Header, ok bool, err error) {
	if s.err != nil {
		return nil, false, s.err
	}
	if s.total != 0 {
		b := s.front(HeaderLen)
		return Header(b), b != nil, s.err
	}
	if s.unread() < HeaderLen {
		return nil, false, nil
	}
	b := s.front(HeaderLen)
	if b == nil {
		return nil, false, s.err
	}
	if h, err = ParseHeader(b, s.MaxFrame); err != nil {
		return nil, false, s.fail(err)
	}
	s.total = HeaderLen + h.PayloadLen()
	return h, true, nil
}

// Frame returns the next frame once it is whole, and consumes it. The frame is
// valid until the next call of Settle, Feed or Release. The errors are Header's.
func (s *Scanner) Frame() (f Frame, ok bool, err error) {
	if s.total == 0 {
		if _, ok, err := s.Header(); !ok {
			return Frame{}, false, err
		}
	}
	if s.err != nil {
		return Frame{}, false, s.err
	}
	n := s.total
	if s.unread() < n {
		return Frame{}, false, nil
	}
	b := s.front(n)
	if b == nil {
		return Frame{}, false, s.err
	}
	s.total = 0
	s.consume(n)
	return Frame{b}, true, nil
}

// Skip consumes the frame whose header Header returned last without handing it
// out, whether it is whole or still arriving; what is yet to come of it is
// dropped on arrival and takes no memory. Without such a header Skip does
// nothing.
func (s *Scanner) Skip() {
	s.skip += s.total
	s.total = 0
	s.drop()
}

// Settle ends the turn: what was handed out is no longer valid, and what is
// unread of the lent octets is copied into a buffer of the scanner's. That
// buffer grows with what has arrived; the length that a header announces only
// ever makes it smaller. Up to buf.MaxClass octets it is at most four times what
// arrived (the step between two size classes), beyond that at most twice, and
// never more than 4 MiB ahead. The errors are ErrBudget and what an earlier call
// has returned.
func (s *Scanner) Settle() error {
	if s.part != nil || len(s.in) > 0 {
		s.settle()
	}
	return s.err
}

func (s *Scanner) settle() {
	s.free(s.spent)
	s.spent = nil
	have, in := s.held(), s.in
	s.in = nil
	n := len(have) + len(in)
	if n == 0 || s.err != nil {
		s.free(s.part)
		s.part, s.off = nil, 0
		return
	}
	if len(have) == 0 {
		s.free(s.part)
		s.part, s.off = nil, 0
	} else if s.off == 0 && cap(have) >= n {
		s.part.B = append(have, in...)
		return
	}
	next, err := s.get(s.want(n))
	if err == nil {
		next.B = append(append(next.B, have...), in...)
	} else {
		s.fail(err)
	}
	s.free(s.part)
	s.part, s.off = next, 0
}

// want returns the capacity to ask for when n octets have arrived. Within the
// size classes the rounding up is the step that makes room for more.
func (s *Scanner) want(n int) int {
	w := n
	if n > buf.MaxClass {
		w += min(n, maxStep)
	}
	if s.total != 0 {
		w = min(w, max(n, s.total))
	}
	return w
}

// Release gives everything back and makes the scanner as new, but for MaxFrame
// and Budget.
func (s *Scanner) Release() {
	s.free(s.spent)
	s.free(s.part)
	*s = Scanner{MaxFrame: s.MaxFrame, Budget: s.Budget}
}

// Buffered returns how many unread octets the scanner holds in buffers of its
// own. After Settle these are all that are unread.
func (s *Scanner) Buffered() int { return len(s.held()) }

// held returns the unread octets of earlier turns.
func (s *Scanner) held() []byte {
	if s.part == nil {
		return nil
	}
	return s.part.B[s.off:]
}

func (s *Scanner) unread() int { return len(s.held()) + len(s.in) }

// front returns the first n unread octets, which must be there and more than none, in
// one piece that ends with its capacity. It is small enough to be inlined, which most
// frames get by with. nil means that the scanner has failed.
func (s *Scanner) front(n int) []byte {
	if s.part != nil {
		return s.gather(n)
	}
	return s.in[:n:n]
}

// gather is front where there may be octets of earlier turns.
func (s *Scanner) gather(n int) []byte {
	have := s.held()
	if len(have) == 0 {
		return s.in[:n:n]
	}
	if missing := n - len(have); missing > 0 {
		if cap(have) < n {
			next, err := s.get(n)
			if err != nil {
				s.fail(err)
				return nil
			}
			next.B = append(next.B, have...)
			if s.off > 0 {
				// Growing happens for a frame that ends in s.in; once it is handed
				// out nothing is left in part, so there is one such buffer a turn.
				invariant.Check(s.spent == nil, "wire: second outgrown buffer in a turn")
				s.spent = s.part
			} else {
				s.free(s.part)
			}
			s.part, s.off = next, 0
		}
		s.part.B = append(s.part.B, s.in[:missing]...)
		s.in = s.in[missing:]
		have = s.held()
	}
	return have[:n:n]
}

// consume passes over n octets that front has returned.
func (s *Scanner) consume(n int) {
	if len(s.held()) > 0 {
		s.off += n
		return
	}
	s.in = s.in[n:]
}

// drop passes over what has arrived of a skipped frame.
func (s *Scanner) drop() {
	if s.skip == 0 {
		return
	}
	n := min(s.skip, len(s.held()))
	s.off += n
	s.skip -= n
	n = min(s.skip, len(s.in))
	s.in = s.in[n:]
	s.skip -= n
}

func (s *Scanner) fail(err error) error {
	s.err = err
	return err
}

// get takes a buffer with room for n octets out of the budget.
func (s *Scanner) get(n int) (*buf.Buf, error) {
	if !s.Budget.Take(buf.SizeOf(n)) {
		return nil, ErrBudget
	}
	return buf.Get(n), nil
}

func (s *Scanner) free(b *buf.Buf) {
	if b != nil {
		s.Budget.Give(b.Cap())
		b.Release()
	}
}
