package tlsrecord

import (
	"encoding/binary"
	"io"
	"math"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/internal/invariant"
)

// The content types in use (RFC 8446 section 5.1).
const (
	typeChangeCipherSpec byte = 20
	typeAlert            byte = 21
	typeHandshake        byte = 22
	typeData             byte = 23
)

// Handshake messages that may follow the handshake (RFC 8446 section 4.6), and
// what stands before a message: its type and a length of three octets.
const (
	messageNewSessionTicket byte = 4
	messageKeyUpdate        byte = 24

	messageHeaderLen = 4
)

// HandleBytes begins a turn: it lends b to the machine until Settle. Records are
// opened in b; what is in it afterwards is of no use to anyone else.
func (c *Conn) HandleBytes(b []byte) {
	c.Settle()
	if c.readErr == nil {
		c.in = b
	}
}

// HandleEOF tells that the transport has ended. Poll gives what came before
// first.
func (c *Conn) HandleEOF() { c.eof = true }

// Poll gives the application data of the next record, never empty, or false when
// there is none in what has arrived. The data is borrowed until Settle, so that
// several records of one turn can be looked at together, and its capacity is
// clipped.
//
// The error is final: io.EOF after close_notify, ErrTruncated, a RemoteAlert, a
// *Fault, ErrUnpolled, ErrExhausted or ErrWiped. After a *Fault AppendOutput
// gives the alert for the peer.
func (c *Conn) Poll() (plaintext []byte, ok bool, err error) {
	for c.readErr == nil {
		rec, err := c.next()
		if err != nil {
			c.fail(err)
			break
		}
		if rec == nil {
			if !c.eof {
				return nil, false, nil
			}
			c.endRead(ErrTruncated)
			break
		}
		t, content, err := c.open(rec)
		if err != nil {
			c.fail(err)
			break
		}
		if t == typeData && len(content) > 0 && c.hand == nil {
			c.gotData()
			return content, true, nil
		}
		if err := c.handleRecord(t, content); err != nil {
			c.fail(err)
		}
	}
	return nil, false, c.readErr
}

// Settle ends a turn: what Poll gave is no longer valid, and the beginning of a
// record that is left of the input is copied. Poll must have found nothing more
// before. That there is no memory for it shows at the next Poll.
func (c *Conn) Settle() {
	if c.spent != nil {
		c.free(&c.spent)
	}
	if len(c.in) > 0 {
		c.keep()
	}
	c.in = nil
}

// keep copies the beginning of a record that is left of the input.
func (c *Conn) keep() {
	in := c.in
	have := 0
	if c.part != nil {
		have = len(c.part.B)
	}
	if have+len(in) >= MaxRecordLen || c.whole(in) {
		c.fail(ErrUnpolled)
		return
	}
	if err := c.reserve(&c.part, have+len(in)); err != nil {
		c.fail(err)
		return
	}
	c.part.B = append(c.part.B, in...)
}

// whole tells whether in, behind what part holds, completes a record.
func (c *Conn) whole(in []byte) bool {
	var head [HeaderLen]byte
	n := 0
	have := 0
	if c.part != nil {
		n = copy(head[:], c.part.B)
		have = len(c.part.B)
	}
	n += copy(head[n:], in)
	return n == HeaderLen && have+len(in) >= HeaderLen+int(binary.BigEndian.Uint16(head[3:]))
}

// Buffered is the number of octets of partial records and messages held in
// buffers of the machine's own.
func (c *Conn) Buffered() int {
	n := 0
	for _, b := range []*buf.Buf{c.part, c.hand} {
		if b != nil {
			n += len(b.B)
		}
	}
	return n
}

// reserve makes *b a buffer with room for n octets in all. It grows with what
// arrives, by the step between two size classes, and never by what a length
// announces.
func (c *Conn) reserve(b **buf.Buf, n int) error {
	if *b != nil && cap((*b).B) >= n {
		return nil
	}
	next, err := c.get(n)
	if err != nil {
		return err
	}
	if *b != nil {
		next.B = append(next.B, (*b).B...)
	}
	c.free(b)
	*b = next
	return nil
}

// checkHeader gives the length of what follows a record's header. It is asked as
// soon as the header is there, so that a lie in it costs no memory.
func checkHeader(h []byte) (int, error) {
	if h[0] != typeData {
		if h[0] == typeChangeCipherSpec {
			return 0, ErrChangeCipherSpec
		}
		return 0, ErrContentType
	}
	if h[1] != 3 || h[2] != 3 {
		return 0, ErrVersion
	}
	n := int(binary.BigEndian.Uint16(h[3:]))
	if n > maxCiphertext {
		return 0, ErrTooLong
	}
	if n < tagLen {
		return 0, ErrTooShort
	}
	return n, nil
}

// next takes the next whole record from the input, in one piece; nil if it is not
// whole yet.
func (c *Conn) next() ([]byte, error) {
	if c.part != nil {
		return c.nextStraddling()
	}
	if len(c.in) < HeaderLen {
		return nil, nil
	}
	n, err := checkHeader(c.in)
	if err != nil || len(c.in) < HeaderLen+n {
		return nil, err
	}
	rec := c.in[:HeaderLen+n]
	c.in = c.in[HeaderLen+n:]
	return rec, nil
}

// nextStraddling is next for a record whose beginning came earlier.
func (c *Conn) nextStraddling() ([]byte, error) {
	if missing := HeaderLen - len(c.part.B); missing > 0 {
		// The smallest buffer there is holds a header.
		n := min(missing, len(c.in))
		c.part.B = append(c.part.B, c.in[:n]...)
		c.in = c.in[n:]
		if n < missing {
			return nil, nil
		}
	}
	n, err := checkHeader(c.part.B)
	if err != nil {
		return nil, err
	}
	missing := HeaderLen + n - len(c.part.B)
	if len(c.in) < missing {
		return nil, nil
	}
	if err := c.reserve(&c.part, HeaderLen+n); err != nil {
		return nil, err
	}
	c.part.B = append(c.part.B, c.in[:missing]...)
	c.in = c.in[missing:]
	// The record will be handed out of this buffer; it goes back at Settle. There
	// is one such record a turn, since what follows it lies in the input.
	invariant.Check(c.spent == nil, "tlsrecord: second straddling record in a turn")
	c.spent, c.part = c.part, nil
	return c.spent.B, nil
}

// open authenticates and decrypts a record in place and strips its padding (RFC
// 8446 sections 5.2 and 5.4). How much padding there was shows in how long that
// takes, which the RFC leaves to who pads (appendix E.3).
func (c *Conn) open(rec []byte) (t byte, content []byte, err error) {
	h := &c.rd
	if h.seq == math.MaxUint64 {
		return 0, nil, ErrExhausted
	}
	if h.aead == nil {
		if err := h.derive(&c.cfg); err != nil {
			return 0, nil, err
		}
	}
	body := rec[HeaderLen:]
	inner, err := h.aead.Open(body[:0], h.nonce[:], body, rec[:HeaderLen])
	if err != nil {
		return 0, nil, ErrTag
	}
	h.advance()
	c.stats.RecordsIn++
	if h.seq >= c.cfg.limit && !c.asked {
		c.asked = true
		c.want = c.writeErr == nil
	}
	if len(inner) > MaxPlaintext+1 {
		return 0, nil, ErrInnerTooLong
	}
	n := len(inner)
	if n == 0 || inner[n-1] == 0 {
		if n = trimZeros(inner); n == 0 {
			return 0, nil, ErrNoContent
		}
	}
	return inner[n-1], inner[: n-1 : n-1], nil
}

// trimZeros gives the length of b without the zeros at its end.
func trimZeros(b []byte) int {
	n := len(b)
	for n >= 8 && binary.NativeEndian.Uint64(b[n-8:]) == 0 {
		n -= 8
	}
	for n > 0 && b[n-1] == 0 {
		n--
	}
	return n
}

// gotData notes a record of application data.
func (c *Conn) gotData() {
	c.idle = 0
	if c.updates > 0 {
		if c.data++; c.data == keyUpdateEvery {
			c.data = 0
			c.updates--
		}
	}
}

// gotNothing notes a record that brought nothing.
func (c *Conn) gotNothing() error {
	if c.idle++; c.idle > maxIdle {
		return ErrFlood
	}
	return nil
}

// handleRecord deals with every record but application data in its place.
func (c *Conn) handleRecord(t byte, content []byte) error {
	if t != typeHandshake && c.hand != nil {
		return ErrInterleaved
	}
	switch t {
	case typeData:
		return c.gotNothing() // it is empty
	case typeAlert:
		return c.handleAlert(content)
	case typeHandshake:
		return c.handleHandshake(content)
	}
	return ErrInnerType
}

func (c *Conn) handleAlert(content []byte) error {
	switch {
	case len(content) == 0:
		return ErrEmpty
	case len(content) != 2:
		return ErrAlert
	}
	switch a := Alert(content[1]); a {
	case AlertCloseNotify:
		// Whatever follows is to be ignored, and we may go on sending (RFC 8446
		// section 6.1).
		c.endRead(io.EOF)
		return nil
	case AlertUserCanceled:
		// A close_notify should follow; some send it in the place of one, and
		// some for no reason at all.
		return c.gotNothing()
	default:
		// Every other alert ends the connection, whatever its level (section 6.2).
		return RemoteAlert(a)
	}
}

// handleHandshake takes the next octets of the handshake's stream, in which
// messages may be split and joined over records.
func (c *Conn) handleHandshake(content []byte) error {
	if len(content) == 0 {
		return ErrEmpty
	}
	rest := content
	if c.hand != nil {
		if err := c.reserve(&c.hand, len(c.hand.B)+len(content)); err != nil {
			return err
		}
		c.hand.B = append(c.hand.B, content...)
		rest = c.hand.B
	}
	for len(rest) > 0 {
		n, err := c.checkMessage(rest)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		if err := c.handleMessage(rest[:n], rest[n:]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	switch {
	case len(rest) == 0:
		c.free(&c.hand)
	case c.hand != nil:
		c.hand.B = c.hand.B[:copy(c.hand.B, rest)]
	default:
		if err := c.reserve(&c.hand, len(rest)); err != nil {
			return err
		}
		c.hand.B = append(c.hand.B, rest...)
	}
	return nil
}

// checkMessage gives the length of the message that b begins with, 0 if it is not
// whole. Type and length are judged as soon as they are there.
func (c *Conn) checkMessage(b []byte) (int, error) {
	switch {
	case b[0] == messageKeyUpdate:
	case b[0] == messageNewSessionTicket && !c.cfg.server:
	default:
		return 0, ErrMessageType
	}
	if len(b) < messageHeaderLen {
		return 0, nil
	}
	n := messageHeaderLen + int(b[1])<<16 + int(b[2])<<8 + int(b[3])
	switch {
	case b[0] == messageKeyUpdate && n != messageHeaderLen+1:
		return 0, ErrMessage
	case n > MaxMessage:
		return 0, ErrMessageTooLong
	case len(b) < n:
		return 0, nil
	}
	return n, nil
}

// handleMessage obeys a message; behind is what follows it in its record.
func (c *Conn) handleMessage(m, behind []byte) error {
	if m[0] == messageNewSessionTicket {
		if !validTicket(m[messageHeaderLen:]) {
			return ErrMessage
		}
		c.stats.TicketsIn++
		return c.gotNothing()
	}
	request := m[messageHeaderLen]
	switch {
	case request > 1:
		return ErrKeyUpdateValue
	case len(behind) > 0:
		return ErrKeyUpdateNotLast
	case c.updates >= c.cfg.burst:
		return ErrKeyUpdates
	}
	if err := c.rd.update(&c.cfg); err != nil {
		return err
	}
	c.updates++
	c.data = 0
	c.stats.KeyUpdatesIn++
	c.asked, c.want = false, false
	if request == 1 && c.writeErr == nil {
		// However many a peer asks for before we send, one answers them all (RFC
		// 8446 section 4.6.3).
		c.owed = true
	}
	return nil
}

// validTicket parses the body of a NewSessionTicket (RFC 8446 section 4.6.1),
// none of which is kept.
func validTicket(b []byte) bool {
	const fixed = 4 + 4 // lifetime, age_add
	if len(b) < fixed+1 {
		return false
	}
	b = b[fixed:]
	if n := 1 + int(b[0]); len(b) < n+2 { // nonce
		return false
	} else {
		b = b[n:]
	}
	n := int(binary.BigEndian.Uint16(b)) // ticket, not empty
	if n == 0 || len(b) < 2+n+2 {
		return false
	}
	b = b[2+n:]
	if int(binary.BigEndian.Uint16(b)) != len(b)-2 {
		return false
	}
	for b = b[2:]; len(b) > 0; {
		if len(b) < 4 {
			return false
		}
		n := 4 + int(binary.BigEndian.Uint16(b[2:]))
		if len(b) < n {
			return false
		}
		b = b[n:]
	}
	return true
}
