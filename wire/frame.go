package wire

// Frame is a whole frame as it came from the wire, unopened: its payload may be
// ciphertext. The zero value is no frame; its accessors panic.
type Frame struct {
	b []byte
}

// Header returns a view of the frame's header.
func (f Frame) Header() Header { return Header(f.b[:HeaderLen:HeaderLen]) }

// Payload returns a view of everything after the header, the tag of a sealed
// frame included. Its capacity ends with it, so that opening in place cannot
// run into the next frame.
func (f Frame) Payload() []byte { return f.b[HeaderLen:len(f.b):len(f.b)] }

// Len returns the frame's length in octets, header included; 0 for no frame.
func (f Frame) Len() int { return len(f.b) }

// ParseFrame returns the frame that b starts with, as a view, and its length.
// A length of 0 without an error means that the frame is not whole yet. The
// errors are ParseHeader's, but ErrShort; after one of them b cannot be read any
// further.
func ParseFrame(b []byte, maxFrame int) (Frame, int, error) {
	if len(b) < HeaderLen {
		return Frame{}, 0, nil
	}
	h, err := ParseHeader(b, maxFrame)
	if err != nil {
		return Frame{}, 0, err
	}
	n := HeaderLen + h.PayloadLen()
	if len(b) < n {
		return Frame{}, 0, nil
	}
	return Frame{b[:n:n]}, n, nil
}
