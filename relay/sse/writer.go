package sse

import (
	"bytes"
	"io"
	"net/http"

	"github.com/trestle-npamp/trestle/relay/internal/media"
)

// SetHeader sets what makes a response a stream of events that nobody on its way
// may hold back: neither a cache nor a proxy that buffers or compresses.
func SetHeader(h http.Header) {
	h["Content-Type"] = []string{media.EventStream}
	h["Cache-Control"] = []string{"no-cache, no-transform"}
	h["X-Accel-Buffering"] = []string{"no"}
}

// Writer writes events. Each is flushed, so that it is on its way when the call
// returns. It is used by one goroutine at a time and allocates nothing.
type Writer struct {
	w     io.Writer
	flush func() error
}

// NewWriter returns a Writer to w. flush sends what w holds back; nil for a w that
// holds nothing back.
func NewWriter(w io.Writer, flush func() error) *Writer { return &Writer{w, flush} }

var (
	dataField  = []byte("data: ")
	idField    = []byte("id: ")
	eventField = []byte("event: ")
	lineFeed   = []byte{'\n'}
	colon      = []byte(": ")
)

// Event writes an event with the given data. A Reader gets the same octets, with
// the one exception that the format forces: data is split into lines at each LF
// and each CR, and both arrive as LF. In a JSON text a raw CR is white space
// (D21).
func (w *Writer) Event(data []byte) error {
	lf, cr := -1, -1
	for pos := 0; ; {
		lf, cr = next(data, pos, lf, '\n'), next(data, pos, cr, '\r')
		end := min(lf, cr)
		if err := w.write(dataField, data[pos:end], lineFeed); err != nil {
			return err
		}
		if end == len(data) {
			break
		}
		pos = end + 1
	}
	return w.send()
}

// Named is Event with an event ID and a type, in which there must be no line end.
func (w *Writer) Named(id, typ, data []byte) error {
	if err := w.write(idField, id, lineFeed, eventField, typ, lineFeed); err != nil {
		return err
	}
	return w.Event(data)
}

// next is where the first c at or after pos is, len(data) for none, if known is
// not that place already.
func next(data []byte, pos, known int, c byte) int {
	if known >= pos {
		return known
	}
	if i := bytes.IndexByte(data[pos:], c); i >= 0 {
		return pos + i
	}
	return len(data)
}

// Comment writes a line that readers skip, to show that the stream is alive. text
// must have no line end in it.
func (w *Writer) Comment(text []byte) error {
	if err := w.write(colon, text, lineFeed); err != nil {
		return err
	}
	return w.send()
}

// send ends an event with its blank line. Behind a comment it does no harm, and
// it lets those read on who look for blank lines alone.
func (w *Writer) send() error {
	if err := w.write(lineFeed); err != nil {
		return err
	}
	if w.flush == nil {
		return nil
	}
	return w.flush()
}

func (w *Writer) write(parts ...[]byte) error {
	for _, part := range parts {
		if len(part) == 0 {
			continue
		}
		if _, err := w.w.Write(part); err != nil {
			return err
		}
	}
	return nil
}
