package conn

import (
	"encoding/binary"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/trestle-npamp/trestle/internal/buf"
	"github.com/trestle-npamp/trestle/wire"
	"github.com/trestle-npamp/trestle/wire/control"
)

// handleCommon serves the frame types that mean the same on every channel
// (draft-bubblefish-npamp-02, section 4; D13).
func (c *Conn) handleCommon(t wire.FrameType, ch wire.Channel, pt []byte) bool {
	switch t {
	case wire.TypePing:
		c.cfg.Counters.PingsIn.Add(1)
		if err := control.CheckPing(pt); err != nil {
			c.fail(control.CodeProtocol, err)
			break
		}
		c.reply(ch, wire.TypePong, pt)
	case wire.TypePong:
		// Any opened frame already counted as a sign of life.
	case wire.TypeClose:
		c.handleClose(ch)
	case wire.TypeCloseAck:
		if !c.closeSent {
			c.cfg.Counters.StaleAcks.Add(1)
			break
		}
		c.end(&CloseError{Code: c.closeCode, Text: c.closeText, Acked: true})
	case wire.TypeError:
		c.cfg.Counters.ErrorsIn.Add(1)
		r, err := control.ParseErrorReport(pt)
		if err != nil && !errors.Is(err, control.ErrReportText) {
			c.fail(control.CodeProtocol, ErrControl)
			break
		}
		c.peerError, c.peerErrorText = r.Code, string(cutText(r.Text))
	case wire.TypeKeyUpdate:
		c.handleKeyUpdate(ch, pt)
	case wire.TypeKeyUpdateAck:
		c.handleKeyUpdateAck(ch, pt)
	case wire.TypePathChallenge, wire.TypePathResponse:
		c.cfg.Counters.PathFrames.Add(1)
	case wire.TypeFlowUpdate:
		return c.handleFlowUpdate(ch, pt)
	default:
		c.cfg.Counters.UnknownType.Add(1)
	}
	return false
}

// cutText keeps of a peer's text what our own may be long.
func cutText(text []byte) []byte {
	n := min(len(text), control.MaxErrorText)
	for n < len(text) && n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}

func (c *Conn) handleClose(ch wire.Channel) {
	e := &CloseError{Remote: true}
	e.Code, e.Text = c.peerError, c.peerErrorText
	c.dropQueue()
	// Without a KEY_UPDATE before it, for which there may be no credit: a key has
	// room for the marker that it needs at its bound, or for this.
	c.seal(ch, wire.TypeCloseAck, nil)
	c.end(e)
}

func (c *Conn) handleFlowUpdate(ch wire.Channel, pt []byte) bool {
	if ch != wire.ChannelControl {
		return c.handleStreamUpdate(ch, pt)
	}
	limit, err := control.ParseFlowUpdate(pt)
	switch {
	case err != nil:
		c.fail(control.CodeProtocol, ErrControl)
	case !c.creditInForce():
		// Before the peer's HELLO the floor stands, whatever else it sends (D3).
		c.cfg.Counters.UnknownType.Add(1)
	default:
		c.credit.Update(limit)
	}
	return false
}

// creditInForce: connection-level credit counts only if both HELLOs carried
// params key 2 (D6).
func (c *Conn) creditInForce() bool {
	return !c.cfg.NoHello && c.hasHello && c.peerHello.HasCredit
}

// receiveCredit counts n plaintext octets that arrived outside Control, and
// reports false if the peer was not allowed to send them.
func (c *Conn) receiveCredit(n int) bool {
	if c.credit.Receive(n) == nil {
		c.credit.Consume(n)
		return true
	}
	if c.creditInForce() {
		return false
	}
	// A peer that sends no HELLO knows of no credit (D3).
	c.overran = true
	c.credit.FreeReceive()
	_ = c.credit.Receive(n)
	c.credit.Consume(n)
	return true
}

// handleControl serves Control's own frames after the handshake.
func (c *Conn) handleControl(t wire.FrameType, pt []byte) bool {
	switch t {
	case wire.TypeHello:
		if c.hasHello {
			c.fail(control.CodeProtocol, ErrHello)
			return false
		}
		if err := control.ParseHello(&c.peerHello, pt); err != nil {
			c.fail(control.CodeProtocol, ErrHello)
			return false
		}
		if !c.adoptHello() {
			c.fail(control.CodeLimit, ErrCredit)
			return false
		}
		c.event.Kind = EventHello
		return true
	case wire.TypeHelloDone:
		if !c.hasHello || c.helloDone || len(pt) != 0 {
			c.fail(control.CodeProtocol, ErrHello)
			return false
		}
		c.helloDone = true
	case wire.TypeMasterRatchet:
		c.handleMasterRatchet(pt)
	case wire.TypeMasterRatchetAck:
		c.handleMasterRatchetAck(pt)
	case wire.TypeRekem:
		c.handleRekem(pt)
	case wire.TypeRekemAck:
		c.handleRekemAck(pt)
	default:
		c.cfg.Counters.UnknownType.Add(1)
	}
	return false
}

// adoptHello applies the peer's HELLO. It reports false if the peer has sent more
// than the credit that comes into force by it.
func (c *Conn) adoptHello() bool {
	h := &c.peerHello
	c.hasHello = true
	if h.HasMaxMessage {
		c.maxPeerFrame = int(min(max(h.MaxMessage, wire.FloorFrameLen), wire.MaxFrameLen))
	} else {
		c.maxPeerFrame = wire.DefaultFrameLen
	}
	if h.HasChannels {
		c.theirs = setOf(wire.ChannelControl) | setOf(h.Channels...)
	}
	switch {
	case c.cfg.NoHello:
	case h.HasCredit:
		c.credit.LimitSend(max(h.Credit, FloorCredit))
		if c.overran {
			return false
		}
	default:
		c.credit.FreeSend()
		c.credit.FreeReceive()
	}
	if c.cfg.PingInterval > 0 {
		c.pingAt = c.now + c.jittered()
	}
	return true
}

func (c *Conn) hello() control.Hello {
	h := control.Hello{
		Version:       control.HelloVersion,
		Protocols:     c.cfg.Protocols,
		HasMaxMessage: true,
		MaxMessage:    uint64(c.cfg.MaxFrame),
		HasChannels:   true,
		HasCredit:     true,
		Credit:        uint64(c.cfg.Credit),
		Agent:         c.cfg.Agent,
	}
	if c.cfg.StreamCredit > 0 {
		h.HasStreamCredit, h.StreamCredit = true, uint64(c.cfg.StreamCredit)
	}
	for ch := range knownChannels {
		if c.ours.has(wire.Channel(ch)) {
			h.Channels = append(h.Channels, wire.Channel(ch))
		}
	}
	// GREASE: a value nobody knows, once as a channel and once in HELLO's own
	// array, keeps peers honest about ignoring what they do not know (D3).
	g := control.GREASEChannel(uint16(c.cfg.Grease))
	h.Channels = append(h.Channels, g)
	h.Grease = append(h.Grease, uint64(g))
	return h
}

// jittered is the ping interval give or take 20 % (D28).
func (c *Conn) jittered() time.Duration {
	iv := c.cfg.PingInterval
	return iv - iv/5 + c.jitter(iv/5*2)
}

// jitter spreads over 0 to d what many associations would otherwise do at once.
func (c *Conn) jitter(d time.Duration) time.Duration {
	c.spread = c.spread*1664525 + 1013904223
	return d / (1 << 16) * time.Duration(c.spread>>16)
}

// Deadline is the next time at which HandleTimeout wants to be called, or false.
func (c *Conn) Deadline() (time.Duration, bool) {
	var at time.Duration
	add := func(t time.Duration) {
		if t != 0 && (at == 0 || t < at) {
			at = t
		}
	}
	switch c.state {
	case stateClosed, stateDone:
		return 0, false
	case stateClosing:
		add(c.closeBy)
	default:
		add(c.pingAt)
		if !c.hasHello && !c.helloExpired && !c.cfg.NoHello {
			add(c.opened + c.cfg.HelloWait)
		}
		if c.quiet() {
			add(c.idleAt())
		}
		add(c.rekem.until)
	}
	return at, at != 0
}

// quiet tells a peer that has sent no HELLO: it is not pinged, because it may be one
// that never answers (D13), so silence is all there is to go by.
func (c *Conn) quiet() bool { return !c.hasHello && c.cfg.HelloIdle > 0 }

// idleAt is when such a peer has been silent for too long.
func (c *Conn) idleAt() time.Duration { return max(c.lastRecv, c.lastSent) + c.cfg.HelloIdle }

// HandleTimeout lets the machine do what is due at now: a PING, giving up on a
// silent peer, on its HELLO, on the answer to a REKEM or on its CLOSE_ACK.
func (c *Conn) HandleTimeout(now time.Duration) {
	c.now = now
	switch c.state {
	case stateClosed, stateDone:
		return
	case stateClosing:
		if now >= c.closeBy {
			if !c.closeSent {
				c.sealClose(c.closeCode, c.closeText)
			}
			c.end(&CloseError{Code: c.closeCode, Text: c.closeText})
		}
		return
	}
	if !c.hasHello && !c.helloExpired && now >= c.opened+c.cfg.HelloWait {
		c.helloExpired = true
		c.credit.FreeSend()
		c.maxPeerFrame = wire.DefaultFrameLen
	}
	if c.rekem.pending() && now >= c.rekem.until {
		c.abandonRekem()
	}
	if c.quiet() && now >= c.idleAt() {
		if c.cfg.Busy == nil || !c.cfg.Busy() {
			c.fail(control.CodeTimeout, ErrIdle)
			return
		}
		c.lastSent = now
	}
	if c.pingAt == 0 || now < c.pingAt {
		return
	}
	if silent := now - c.lastRecv; silent < c.cfg.PingInterval*4/5 {
		c.pingAt = c.lastRecv + c.jittered()
		return
	}
	if c.pings >= maxUnansweredPings {
		c.fail(control.CodeTimeout, ErrDead)
		return
	}
	c.pings++
	c.pingSeq++
	var p [8]byte
	binary.BigEndian.PutUint64(p[:], c.pingSeq)
	c.cfg.Counters.PingsOut.Add(1)
	c.reply(wire.ChannelControl, wire.TypePing, p[:])
	c.pingAt = now + c.jittered()
}

// reply queues a small frame of our own on ch. Such answers are bounded: a peer
// that provokes more than it reads is closed.
func (c *Conn) reply(ch wire.Channel, t wire.FrameType, payload []byte) {
	if c.closeSent {
		return // CLOSE was the last word
	}
	if c.Direct(ch, len(payload)) {
		c.sealNow(ch, t, payload)
		return
	}
	if c.replies >= MaxPendingReplies {
		c.fail(control.CodeLimit, ErrReplies)
		return
	}
	b := buf.Get(wire.HeaderLen + len(payload) + wire.TagLen)
	b.B = append(append(b.B, zeroHeader[:]...), payload...)
	c.replies++
	c.push(ch, t, 0, nil, b)
}

// Close ends the association in order: what is queued goes first, bounded by
// CloseWait, then ERROR with code and text (unless code is 0), then CLOSE. After
// CloseBy it shortens the wait.
func (c *Conn) Close(now time.Duration, code control.ErrorCode, text string) {
	c.CloseBy(now, code, text, now+c.cfg.CloseWait)
}

// CloseBy is Close with a wait of the caller's: the association ends at by at the
// latest.
func (c *Conn) CloseBy(now time.Duration, code control.ErrorCode, text string, by time.Duration) {
	c.now = now
	switch c.state {
	case stateOpen:
		if c.inBatch {
			c.flush() // what sources had to send before
		}
		if c.state != stateOpen {
			return
		}
		c.state = stateClosing
		c.closeCode, c.closeText = code, text
		c.closeBy = by
	case stateClosing:
		c.closeBy = min(c.closeBy, by)
	}
}

// Abort ends the association at once: ERROR with code, CLOSE, no waiting.
func (c *Conn) Abort(now time.Duration, code control.ErrorCode, cause error) {
	c.now = now
	if c.state >= stateClosed {
		return
	}
	c.dropQueue()
	if !c.closeSent {
		c.sealClose(code, "")
	}
	c.end(&CloseError{Code: code, Cause: cause})
}

// sealClose puts ERROR (unless code is 0) and CLOSE into the batch (D16).
func (c *Conn) sealClose(code control.ErrorCode, text string) {
	c.closeSent = true
	if code != 0 {
		c.cfg.Counters.ErrorsOut.Add(1)
		c.sealNow(wire.ChannelControl, wire.TypeError, control.AppendErrorReport(nil, code, text))
	}
	c.sealNow(wire.ChannelControl, wire.TypeClose, nil)
}
