package tlsrecord

import (
	"encoding/binary"
	"slices"
)

// SealedLen is how many octets AppendRecords and SealBatch make of n octets of
// application data, key updates not counted: room for it keeps them from
// allocating.
func SealedLen(n int) int {
	return n + (n+MaxPlaintext-1)/MaxPlaintext*Overhead
}

// AppendRecords seals plaintext in as few records as it takes and appends them to
// dst, behind whatever the machine itself has to say first. plaintext is not
// written to and must not overlap dst's spare capacity. The error is what ended
// writing: ErrClosed, ErrWiped, an alert or a fault; then dst is returned as it
// was.
func (c *Conn) AppendRecords(dst, plaintext []byte) ([]byte, error) {
	if c.writeErr != nil {
		return dst, c.writeErr
	}
	start := len(dst)
	if len(plaintext) == 0 {
		return c.AppendOutput(dst), nil
	}
	dst = slices.Grow(dst, SealedLen(len(plaintext)))
	for len(plaintext) > 0 {
		n := min(len(plaintext), MaxPlaintext)
		if c.due() {
			dst = slices.Grow(c.appendDue(dst), SealedLen(len(plaintext)))
		}
		at := len(dst)
		dst = dst[:at+HeaderLen]
		dst = append(dst, plaintext[:n]...)
		if dst = c.seal(dst, at, typeData); c.writeErr != nil {
			return dst[:start], c.writeErr
		}
		plaintext = plaintext[n:]
	}
	return dst, nil
}

// SealBatch seals the plaintext in b[start+HeaderLen:] in place, in as few
// records as it takes; b[start:start+HeaderLen] is room for the first header.
// Whatever the machine itself has to say comes first. It returns b, longer by
// what records cost; with capacity for SealedLen nothing is allocated. What
// belongs to a second record and further ones is moved within b; the package's
// comment tells how a batch avoids that. Without plaintext there is no record.
// The error is AppendRecords'; then b[:start] is returned.
func (c *Conn) SealBatch(b []byte, start int) ([]byte, error) {
	if c.writeErr != nil {
		return b[:start], c.writeErr
	}
	n := len(b) - start - HeaderLen
	switch {
	case n <= 0:
		return c.AppendOutput(b[:start]), nil
	case n <= MaxPlaintext && !c.due():
		b = slices.Grow(b, 1+tagLen)
		b = c.seal(b, start, typeData)
	default:
		b = c.sealMany(b, start, n)
	}
	if c.writeErr != nil {
		return b[:start], c.writeErr
	}
	return b, nil
}

// sealMany is SealBatch for more than one record.
//
//	| room | chunk 0 | chunk 1 | chunk 2 |                  before
//	| KU | head | chunk 0 | tail | head | chunk 1 | tail | ...   after
func (c *Conn) sealMany(b []byte, start, n int) []byte {
	chunks := (n + MaxPlaintext - 1) / MaxPlaintext
	// at is where the record of chunk i begins.
	at := func(i int) int {
		return start + i*(MaxPlaintext+Overhead) + c.updatesBefore(i)*keyUpdateLen
	}
	from := func(i int) []byte {
		o := start + HeaderLen + i*MaxPlaintext
		return b[o:min(o+MaxPlaintext, start+HeaderLen+n)]
	}
	end := at(chunks-1) + len(from(chunks-1)) + Overhead
	b = slices.Grow(b, end-len(b))[:end]
	// Everything moves up, so the last goes first.
	for i := chunks - 1; i >= 0; i-- {
		copy(b[at(i)+HeaderLen:], from(i))
	}
	out := b[:start]
	for left := n; left > 0; left -= MaxPlaintext {
		out = c.appendDue(out)
		o := len(out)
		out = c.seal(out[:o+HeaderLen+min(left, MaxPlaintext)], o, typeData)
		if c.writeErr != nil {
			break
		}
	}
	return out
}

// updatesBefore is how many KeyUpdates stand before record i of a batch that
// begins now: what appendDue will do when it comes to it.
func (c *Conn) updatesBefore(i int) int {
	updates, seq, last := 0, c.wr.seq, c.cfg.limit-1
	if c.owed {
		updates, seq = updates+1, 0
	}
	if c.want {
		updates, seq = updates+1, 0
	}
	free := 0 // records left under the key
	if seq < last {
		free = int(last - seq)
	}
	if i < free {
		return updates
	}
	return updates + 1 + (i-free)/int(last)
}

// due tells whether appendDue has anything to append.
func (c *Conn) due() bool { return c.owed || c.want || c.wr.seq >= c.cfg.limit-1 }

// appendDue appends the KeyUpdates that must stand before the next record of
// application data: the answer to the peer's, the one that asks the peer for one,
// and the one that ends a key at its limit.
func (c *Conn) appendDue(dst []byte) []byte {
	dst = c.AppendOutput(dst)
	if c.writeErr == nil && c.wr.seq >= c.cfg.limit-1 {
		dst = c.appendKeyUpdate(dst, 0)
	}
	return dst
}

// Pending tells whether AppendOutput has anything to give.
func (c *Conn) Pending() bool { return c.alertDue || c.owed || c.want }

// AppendOutput appends what the machine itself has to say: the alert for a
// fault, the answer to a KeyUpdate, a KeyUpdate that asks for one. AppendRecords
// and SealBatch put it before the data by themselves; a driver calls it when a
// turn has no data to send.
func (c *Conn) AppendOutput(dst []byte) []byte {
	if c.alertDue {
		c.alertDue = false
		dst = c.appendRecord(dst, typeAlert, []byte{c.alert.level(), byte(c.alert)})
		c.wr.wipe()
		return dst
	}
	if c.owed {
		dst = c.appendKeyUpdate(dst, 0)
	}
	if c.want {
		dst = c.appendKeyUpdate(dst, 1)
	}
	return dst
}

// AppendKeyUpdate appends a KeyUpdate and moves our direction on to its next key;
// with request the peer is asked to do the same for its own. The error is
// AppendRecords'.
func (c *Conn) AppendKeyUpdate(dst []byte, request bool) ([]byte, error) {
	if c.writeErr != nil {
		return dst, c.writeErr
	}
	start := len(dst)
	dst = c.AppendOutput(dst)
	if c.writeErr == nil {
		var r byte
		if request {
			r = 1
		}
		dst = c.appendKeyUpdate(dst, r)
	}
	if c.writeErr != nil {
		return dst[:start], c.writeErr
	}
	return dst, nil
}

// AppendCloseNotify ends writing in order: the peer learns that it has everything.
// Reading goes on. Where writing has ended before, only an alert that is due is
// appended.
func (c *Conn) AppendCloseNotify(dst []byte) []byte { return c.AppendAlert(dst, AlertCloseNotify) }

// AppendAlert appends an alert. Every alert but user_canceled ends writing, with
// ErrClosed, and every alert but that and close_notify ends reading too. Where
// writing has ended before, only an alert that is due is appended.
func (c *Conn) AppendAlert(dst []byte, a Alert) []byte {
	if c.writeErr != nil {
		return c.AppendOutput(dst)
	}
	if a == AlertUserCanceled {
		return c.appendRecord(dst, typeAlert, []byte{a.level(), byte(a)})
	}
	c.alert, c.alertDue = a, true
	c.endWrite(ErrClosed)
	if a != AlertCloseNotify {
		c.endRead(ErrClosed)
	}
	return c.AppendOutput(dst)
}

// appendKeyUpdate appends a KeyUpdate, the last record under its key. One that
// asks nothing answers what the peer asked.
func (c *Conn) appendKeyUpdate(dst []byte, request byte) []byte {
	if request == 1 {
		c.want = false
	} else {
		c.owed = false
	}
	at := len(dst)
	dst = c.appendRecord(dst, typeHandshake, []byte{messageKeyUpdate, 0, 0, 1, request})
	if len(dst) == at {
		return dst
	}
	if err := c.wr.update(&c.cfg); err != nil {
		c.endWrite(err)
		return dst
	}
	c.stats.KeyUpdatesOut++
	return dst
}

// appendRecord appends one record of the given inner type.
func (c *Conn) appendRecord(dst []byte, t byte, content []byte) []byte {
	at := len(dst)
	dst = slices.Grow(dst, len(content)+Overhead)
	dst = append(dst[:at+HeaderLen], content...)
	return c.seal(dst, at, t)
}

// seal makes b[at:] one record of the given inner type: room for the header,
// then the content; b has the capacity. A key that can't be derived ends writing,
// and gives b[:at].
func (c *Conn) seal(b []byte, at int, t byte) []byte {
	h := &c.wr
	if h.aead == nil {
		if err := h.derive(&c.cfg); err != nil {
			c.endWrite(err)
			return b[:at]
		}
	}
	b = append(b, t)
	header, body := b[at:at+HeaderLen], b[at+HeaderLen:]
	header[0], header[1], header[2] = typeData, 3, 3
	binary.BigEndian.PutUint16(header[3:], uint16(len(body)+tagLen))
	h.aead.Seal(body[:0], h.nonce[:], body, header)
	h.advance()
	c.stats.RecordsOut++
	return b[:len(b)+tagLen]
}
