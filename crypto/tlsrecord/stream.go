package tlsrecord

import (
	"io"

	"github.com/trestle-npamp/trestle/internal/buf"
)

// Stream runs a Conn over a transport that blocks, for what comes between the TLS
// handshake and the event loop. Read and Write must not be called at once: a
// KeyUpdate that is read is answered in Read.
type Stream struct {
	c    *Conn
	rw   io.ReadWriter
	in   *buf.Buf
	rest []byte // read and not yet taken
}

// What a Stream reads at once, and what it writes at once, in octets. The read
// buffer is held while the peer says nothing, so it is a small one; a record that
// is larger comes in pieces.
const (
	streamRead   = 4 << 10
	streamBuffer = 16 << 10
	streamChunk  = streamBuffer - Overhead - 3*keyUpdateLen
)

// NewStream returns a Stream of c over rw. Release it.
func NewStream(c *Conn, rw io.ReadWriter) *Stream {
	return &Stream{c: c, rw: rw, in: buf.Get(streamRead)}
}

// Read reads application data. The errors are Poll's and the transport's; io.EOF
// is the peer's close_notify. The alert for a fault has been sent when the fault
// is returned.
func (s *Stream) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	for len(s.rest) == 0 {
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// fill takes the next record into rest, or reads once more.
func (s *Stream) fill() error {
	data, ok, err := s.c.Poll()
	if ok {
		s.rest = data
		return nil
	}
	if s.c.Pending() {
		if _, werr := s.rw.Write(s.c.AppendOutput(nil)); werr != nil && err == nil {
			err = werr
		}
	}
	if err != nil {
		return err
	}
	s.c.Settle()
	n, err := s.rw.Read(s.in.B[:cap(s.in.B)])
	s.c.HandleBytes(s.in.B[:n])
	switch {
	case err == io.EOF:
		s.c.HandleEOF()
	case n > 0:
		// An error that came with octets comes again.
	case err == nil:
		return io.ErrNoProgress
	default:
		return err
	}
	return nil
}

// Write seals p and writes it. The errors are AppendRecords' and the transport's.
func (s *Stream) Write(p []byte) (int, error) {
	out := buf.Get(streamBuffer)
	defer out.Release()
	done := 0
	for len(p) > 0 {
		n := min(len(p), streamChunk)
		b, err := s.c.AppendRecords(out.B[:0], p[:n])
		if err != nil {
			return done, err
		}
		if _, err := s.rw.Write(b); err != nil {
			return done, err
		}
		done += n
		p = p[n:]
	}
	return done, nil
}

// CloseWrite sends close_notify.
func (s *Stream) CloseWrite() error {
	_, err := s.rw.Write(s.c.AppendCloseNotify(nil))
	return err
}

// Release ends the Stream and leaves the Conn and the transport to somebody else.
// It returns a copy of the application data that has been read and not taken; the
// beginning of a record stays with the Conn, and so does an error that Poll has
// met.
func (s *Stream) Release() []byte {
	if s.in == nil {
		return nil
	}
	early := append([]byte(nil), s.rest...)
	for {
		data, ok, _ := s.c.Poll()
		if !ok {
			break
		}
		early = append(early, data...)
	}
	s.c.Settle()
	s.in.Release()
	s.in, s.rest = nil, nil
	return early
}
