package wire

import (
	"errors"

	"github.com/trestle-npamp/trestle/internal/buf"
)

// ErrBudget says that a partial frame found no room in the shared budget.
var ErrBudget = errors.New("wire: no memory left for partial frames")

// Scanner finds frames in a stream of octets. Input is borrowed and frames are
// handed out where they lie; only a frame that straddles two inputs is copied.
// A turn is: Feed, then Header, Frame and Skip until they have nothing more,
// then Settle. The zero value is ready. Not for concurrent use.
//
// Any error is final: the stream has no readable continuation, and every later
// call returns the same error.
type Scanner struct {
	// MaxFrame is the longest frame to accept, header included; 0 stands for
	// DefaultFrameLen. A change applies from the next header on.
	MaxFrame int
	// Budget is what partial frames are counted against; nil is unlimited.
	Budget *buf.Budget

	in []byte // borrowed and unread
}

// Feed lends b to the scanner until the next call of Settle, Feed or Release.
func (s *Scanner) Feed(b []byte) { s.in = b }

// Header returns the next frame's header as soon as its octets are there.
func (s *Scanner) Header() (h Header, ok bool, err error) { return nil, false, nil }

// Frame returns the next frame once it is whole, and consumes it.
func (s *Scanner) Frame() (f Frame, ok bool, err error) { return Frame{}, false, nil }

// Skip consumes the current frame without handing it out, also while it is
// still arriving.
func (s *Scanner) Skip() {}

// Settle ends the turn.
func (s *Scanner) Settle() error { return nil }

// Release gives everything back.
func (s *Scanner) Release() {}

// Buffered returns how many unread octets are held in buffers of the scanner.
func (s *Scanner) Buffered() int { return 0 }
