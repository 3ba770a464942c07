package carriage

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/trestle-npamp/trestle/wire/bridge"
)

// Declaration is what an answer under the class OPAQUE says of itself besides its
// octets. The zero value says what the request did, and has no method.
type Declaration struct {
	// Content declares an enumerated content type, MediaType any (CC-OPAQUE 4.2): by
	// the enumerated content type where there is one for it, else by the configured
	// one (D7). With a MediaType, Content is 0 or that which points at it.
	Content   bridge.ContentType
	MediaType string
	// Method is the envelope's method of an answer in one piece, at most 255 octets
	// of UTF-8. The documents leave it empty; peers may agree on a meaning of it in a
	// protocol of their own. The frames of a stream have none.
	Method string
}

// ErrNotOpaque: the answer's class is another than OPAQUE, and has its content type
// from that.
var ErrNotOpaque = errors.New("carriage: only opaque answers declare a content type of their own")

// declared is a Declaration as envelopes have it.
type declared struct {
	content bridge.ContentType
	media   []byte
	method  []byte
}

// declare checks a declaration of an answer to m.
func (b *Bridge) declare(p *Protocol, m *bridge.Message, d Declaration) (*declared, error) {
	if p.Class != ClassOpaque {
		return nil, ErrNotOpaque
	}
	out := &declared{d.Content, []byte(d.MediaType), []byte(d.Method)}
	switch {
	case d.MediaType != "":
		var err error
		if out.content, out.media, err = b.cfg.Tags.Declare(out.media); err != nil {
			return nil, err
		}
		if d.Content != 0 && d.Content != out.content && !b.points(d.Content) {
			return nil, bridge.ErrMediaTypeAmbiguous
		}
	case d.Content == 0:
		out.content, out.media = m.Content, bytes.Clone(m.MediaType)
	}
	probe := bridge.Message{
		Kind: bridge.KindResponse, Protocol: p.ID, Content: out.content, MediaType: out.media, Method: out.method, Corr: []byte(bridge.NoCorr),
	}
	return out, probe.Check(b.cfg.Tags)
}

// points says that c points at an OpaqueContentType.
func (b *Bridge) points(c bridge.ContentType) bool {
	return b.cfg.Tags != nil && c != 0 && c == b.cfg.Tags.OpaqueContent
}

// Declare says what the answer declares of itself, which is otherwise what the
// request did. It is for whoever answers, before that. Errors: ErrNotOpaque, and why
// the declaration can't be carried: bridge.ErrTagOff for a media type that takes
// numbers which are not configured, and others of package bridge.
func (r *Request) Declare(d Declaration) error {
	out, err := r.c.b.declare(r.proto, &r.msg, d)
	if err == nil {
		r.declared = out
	}
	return err
}

// Declare says what the stream declares of itself, and the answer in place of it. All
// frames of a stream declare the same (CC-OPAQUE 7): once there was an event, it is
// about a foreign error alone. It returns ErrStreamEnded once the stream has its end;
// the other errors are those of Request.Declare.
func (p *Producer) Declare(d Declaration) error {
	f := p.f
	out, err := f.b.declare(f.proto, &bridge.Message{Content: f.content, MediaType: f.media}, d)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.sendable(); err != nil {
		return err
	}
	f.answer.Store(out)
	if f.newest() == 0 {
		f.declared.Store(out)
		f.measure()
	}
	return nil
}

// envelope sets what a frame of the stream declares, or an answer in one piece.
func (f *feed) envelope(m *bridge.Message) {
	d := f.answer.Load()
	switch {
	case d == nil:
	case m.Transport:
		m.Content, m.MediaType, m.Method = bridge.ContentJSON, nil, nil
	case !m.HasStream:
		m.Content, m.MediaType, m.Method = d.content, d.media, d.method
	default:
		if d = f.declared.Load(); d != nil {
			m.Content, m.MediaType, m.Method = d.content, d.media, nil
		}
	}
}

// maxChunk is how many octets Copy sends as one chunk.
const maxChunk = 32 << 10

// Copy sends what r has as chunks of one payload, as it comes, until r's io.EOF; the
// end of the stream is left to the caller. Chunks have no meaning of their own
// (CC-OPAQUE 7), so there are no octets that can't be carried so: a chunk that would
// be misread (D9) is cut behind its first octet. The errors are r's and Send's.
func (p *Producer) Copy(ctx context.Context, r io.Reader) (n int64, err error) {
	room := make([]byte, maxChunk)
	for {
		k, read := r.Read(room)
		if err := p.sendChunk(ctx, room[:k]); err != nil {
			return n, err
		}
		n += int64(k)
		switch {
		case read == io.EOF:
			return n, nil
		case read != nil:
			return n, read
		}
	}
}

func (p *Producer) sendChunk(ctx context.Context, chunk []byte) error {
	if len(chunk) == 0 {
		return nil
	}
	err := p.Send(ctx, chunk)
	if errors.Is(err, bridge.ErrAmbiguous) && len(chunk) > 1 {
		if err = p.Send(ctx, chunk[:1]); err == nil {
			err = p.sendChunk(ctx, chunk[1:])
		}
	}
	return err
}

// Payload reads a stream as the one payload that its chunks make together
// (CC-OPAQUE 7), octet for octet. It is an io.Reader for one goroutine; io.EOF says
// that the payload is complete, and any other error, those of Stream.Next, that it is
// not.
type Payload struct {
	s    *Stream
	read bool // the first chunk was
	head Event
	rest []byte
}

// Payload returns the rest of the stream as one payload.
func (s *Stream) Payload() *Payload { return &Payload{s: s} }

// Declared is the media type that the payload was declared as. It is known once
// something was read.
func (p *Payload) Declared() string { return bridge.Declared(p.head.Content, p.head.MediaType) }

// Read implements io.Reader.
func (p *Payload) Read(b []byte) (int, error) {
	for len(p.rest) == 0 {
		e, err := p.s.Next()
		if err != nil {
			return 0, err
		}
		if !p.read {
			p.read = true
			p.head = Event{Content: e.Content, MediaType: bytes.Clone(e.MediaType)}
		}
		p.rest = e.Foreign
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}
