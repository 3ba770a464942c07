// Package sse reads and writes Server-Sent Events as the HTML standard defines
// them (section 9.2, "Server-sent events").
//
// A Reader turns a body into events whatever way it is split, with lines that end
// in LF, CR or both; a Writer does the reverse. Neither knows what is in an event.
package sse

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/relay/internal/body"
)

// Errors of a Reader besides those of its source.
var (
	// ErrTooLarge says that an event is longer than the limit.
	ErrTooLarge = errors.New("sse: event over the size limit")
	// ErrBudget says that all events together would need more than the budget.
	ErrBudget = errors.New("sse: over the memory budget")
)

// Event is one event. Its slices are borrowed from the Reader until the next call
// of Next or Release.
type Event struct {
	// Type is the event's type; empty means "message".
	Type []byte
	// Data is the data lines, joined by LF. It has what the source sent, octet
	// for octet, apart from line ends.
	Data []byte
	// ID is the last event ID, which an earlier event may have set.
	ID []byte
	// Cut says that the source ended before the blank line that ends an event, so
	// that Data may be incomplete. The standard would drop such an event; sources
	// that close right after their last one are common.
	Cut bool
}

// Message says that the event is of the type that sources mean unless they say
// otherwise.
func (e *Event) Message() bool { return len(e.Type) == 0 || string(e.Type) == "message" }

// The room for one read of the source, in octets: the first for a source that
// sends little at a time, so that a silent stream holds little, the second once a
// read has filled the first.
const (
	smallRead = 4 << 10
	largeRead = 64 << 10
)

// Reader reads the events of one source. It is used by one goroutine at a time.
type Reader struct {
	src   io.Reader
	limit int

	room *buf.Buf // what is read into; nil until the first read
	full bool     // the last read filled it
	err  error    // the source's, or our own; ends everything

	// Where the parser stands in what was read.
	in     []byte
	pos    int
	lf, cr int // where the next LF and CR after pos are; below pos is not known

	// Where it stands in a line.
	state   state
	field   field
	bom     int // octets of a byte order mark seen; -1 when it can't come any more
	afterCR bool
	name    [5]byte // as long as the longest name we know
	nameLen int

	// What there is of the event.
	typ       []byte
	data      *body.Body
	hasData   bool
	id        []byte
	nextID    []byte // the value of an id field that has not ended
	retry     int64  // of a retry field that has not ended, in ms; below 0 if it is no number
	digits    bool
	reconnect time.Duration
}

type state uint8

const (
	lineStart state = iota
	inName
	afterColon
	inValue
)

type field uint8

const (
	fieldOther field = iota // comments, too
	fieldData
	fieldEvent
	fieldID
	fieldRetry
)

// maxField bounds a type and an ID, in octets.
const maxField = 64 << 10

// NewReader returns a Reader of src. limit bounds an event, its data, type and ID
// together, in octets, and 64 KiB its type and its ID each; budget bounds the data of all events whose Readers share
// it, nil does not. Comments and unknown fields are skipped as they come, so they
// need no bound.
func NewReader(src io.Reader, limit int, budget *buf.Budget) *Reader {
	return &Reader{src: src, limit: limit, data: body.New(budget), lf: -1, cr: -1}
}

// Next returns the next event, as soon as its blank line has arrived. The error
// is ErrTooLarge, ErrBudget, or what the source's Read returned: io.EOF after its
// end. It stays. Before the error of a source that ended, with io.EOF or
// io.ErrUnexpectedEOF, comes what there was of an event, with Cut set.
func (r *Reader) Next() (Event, error) {
	r.drop()
	for {
		if r.pos == len(r.in) {
			if r.err == nil {
				r.fill()
			}
			if r.pos == len(r.in) {
				return r.end()
			}
		}
		done, err := r.parse()
		if err != nil {
			r.err, r.pos = err, len(r.in)
			r.drop()
			return Event{}, err
		}
		if done {
			return Event{Type: r.typ, Data: r.data.Bytes(), ID: r.id}, nil
		}
	}
}

// end returns what there is when nothing more comes.
func (r *Reader) end() (Event, error) {
	if r.hasData && (r.err == io.EOF || r.err == io.ErrUnexpectedEOF) {
		return Event{Type: r.typ, Data: r.data.Bytes(), ID: r.id, Cut: true}, nil
	}
	return Event{}, r.err
}

// drop forgets the event that Next has returned, or what there is of one.
func (r *Reader) drop() {
	r.data.Release()
	r.hasData, r.typ = false, r.typ[:0]
}

// Retry is the reconnection time that the source asked for last, 0 for none.
func (r *Reader) Retry() time.Duration { return r.reconnect }

// Release gives all memory back. Next must not be called afterwards.
func (r *Reader) Release() {
	r.drop()
	r.room.Release()
	r.room, r.in, r.pos, r.err = nil, nil, 0, io.ErrClosedPipe
}

// fill reads once more. A Read that brings nothing is tried again, but not for
// ever.
func (r *Reader) fill() {
	size := smallRead
	if r.full {
		size = largeRead
	}
	if r.room == nil || cap(r.room.B) != size {
		r.room.Release()
		r.room = buf.Get(size)
		r.room.B = r.room.B[:size]
	}
	for range 100 {
		n, err := r.src.Read(r.room.B)
		r.in, r.pos, r.lf, r.cr = r.room.B[:n], 0, -1, -1
		r.full = n >= smallRead
		r.err = err
		if n > 0 || err != nil {
			return
		}
	}
	r.err = io.ErrNoProgress
}

// lineEnd is where the line that pos is in ends, or len(in). Every octet is looked
// at once for either kind of end.
func (r *Reader) lineEnd() int {
	find := func(at *int, c byte) {
		if *at < r.pos {
			if *at = bytes.IndexByte(r.in[r.pos:], c); *at < 0 {
				*at = len(r.in)
			} else {
				*at += r.pos
			}
		}
	}
	find(&r.lf, '\n')
	find(&r.cr, '\r')
	return min(r.lf, r.cr)
}

const byteOrderMark = "\xEF\xBB\xBF"

// parse goes on to the end of an event, which done says, or of what was read.
func (r *Reader) parse() (done bool, err error) {
	for r.pos < len(r.in) {
		c := r.in[r.pos]
		if r.afterCR {
			r.afterCR = false
			if c == '\n' {
				r.pos++
				continue
			}
		}
		if r.bom >= 0 {
			if c == byteOrderMark[r.bom] {
				r.pos++
				if r.bom++; r.bom == len(byteOrderMark) {
					r.bom = -1
				}
				continue
			}
			if r.bom > 0 { // it was the start of a field that nobody knows
				r.state, r.field = inValue, fieldOther
			}
			r.bom = -1
		}
		switch r.state {
		case lineStart:
			switch c {
			case '\n', '\r':
				r.endLine(c)
				if r.hasData {
					return true, nil
				}
				r.typ = r.typ[:0]
			case ':':
				r.pos++
				r.state, r.field = inValue, fieldOther
			default:
				r.state, r.nameLen = inName, 0
			}
		case inName:
			switch {
			case c == ':':
				r.pos++
				r.state = afterColon
				if err := r.startValue(); err != nil {
					return false, err
				}
			case c == '\n' || c == '\r': // a name alone is a field with an empty value
				if err := r.startValue(); err != nil {
					return false, err
				}
				r.endValue()
				r.endLine(c)
			case r.nameLen == len(r.name):
				r.state, r.field = inValue, fieldOther
			default:
				r.name[r.nameLen] = c
				r.nameLen++
				r.pos++
			}
		case afterColon:
			if c == ' ' {
				r.pos++
			}
			r.state = inValue
		case inValue:
			end := r.lineEnd()
			if err := r.value(r.in[r.pos:end]); err != nil {
				return false, err
			}
			r.pos = end
			if end < len(r.in) {
				r.endValue()
				r.endLine(r.in[end])
			}
		}
	}
	return false, nil
}

// endLine goes behind the line end c.
func (r *Reader) endLine(c byte) {
	r.pos++
	r.state, r.afterCR = lineStart, c == '\r'
}

// startValue knows the field's name.
func (r *Reader) startValue() error {
	switch string(r.name[:r.nameLen]) {
	case "data":
		r.field = fieldData
		if !r.hasData {
			r.hasData = true
			return nil
		}
		return r.append(lineFeed)
	case "event":
		r.field, r.typ = fieldEvent, r.typ[:0]
	case "id":
		r.field, r.nextID = fieldID, r.nextID[:0]
	case "retry":
		r.field, r.retry, r.digits = fieldRetry, 0, false
	default:
		r.field = fieldOther
	}
	return nil
}

// value takes a part of a field's value.
func (r *Reader) value(part []byte) error {
	switch r.field {
	case fieldData:
		return r.append(part)
	case fieldEvent:
		if err := r.check(len(part)); err != nil || len(r.typ)+len(part) > maxField {
			return ErrTooLarge
		}
		r.typ = append(r.typ, part...)
	case fieldID:
		if err := r.check(len(part) + len(r.nextID)); err != nil || len(r.nextID)+len(part) > maxField {
			return ErrTooLarge
		}
		r.nextID = append(r.nextID, part...)
	case fieldRetry:
		for _, c := range part {
			switch {
			case c < '0' || c > '9' || r.retry > maxRetry/10:
				r.retry = -1
			case r.retry >= 0:
				r.retry = r.retry*10 + int64(c-'0')
			}
		}
		r.digits = r.digits || len(part) > 0
	}
	return nil
}

// maxRetry is the longest reconnection time that we tell from none, in ms.
const maxRetry = 1 << 40

// endValue ends a field.
func (r *Reader) endValue() {
	switch r.field {
	case fieldID:
		if bytes.IndexByte(r.nextID, 0) < 0 {
			r.id, r.nextID = r.nextID, r.id
		}
	case fieldRetry:
		if r.digits && r.retry >= 0 {
			r.reconnect = time.Duration(r.retry) * time.Millisecond
		}
	}
}

func (r *Reader) append(part []byte) error {
	switch r.data.Append(part, r.limit-len(r.typ)) {
	case nil:
		return nil
	case body.ErrTooLarge:
		return ErrTooLarge
	}
	return ErrBudget
}

// check says whether n octets more fit into the event.
func (r *Reader) check(n int) error {
	if len(r.data.Bytes())+len(r.typ)+n > r.limit {
		return ErrTooLarge
	}
	return nil
}
