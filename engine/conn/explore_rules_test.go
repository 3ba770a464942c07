package conn

// The expected behaviour, as data. An input is named by what it is, the channel it
// comes on and its variant; the first rule that matches it in a state says what
// must come of it, and there must be one. The order is the order in which a
// receiver judges a frame (draft-bubblefish-npamp-02, section 4), and the outcomes
// are those of the fault table (docs/decisions.md).
//
// Patterns: * is anything, | separates alternatives, ! negates. In when, every
// condition must hold. The outcome is a list of
//
//	opened            the frame authenticates and its sequence number is consumed
//	end CODE          we end it: ERROR(CODE) and CLOSE go out unless CLOSE was said
//	end peer          the peer ended it
//	end acked         it ended as we asked   end done   so, but without CLOSE_ACK
//	end lost          the transport ended    end mute   keys are at their end: no word
//	send FRAME        what goes out; "queue" is all that waited, "bye" the ERROR and
//	                  CLOSE that Close asked for
//	event WHAT        what the channels are told
//	count COUNTER     what is counted
//	error NAME        what a command returns
//	epoch, generation the receiving key or root moves on
//	restart DIRECTION a new root: its epochs and sequence numbers start again
//	drop rekem        a REKEM of ours is given up, if there is one
//	FIELD:=VALUE      what changes of the state
//
// What is not listed does not happen. Two things follow from every rule: an opened
// frame sets pings to 0, and with the send sequence at its end nothing can be said:
// whatever would be sent ends the association without a word.
type rule struct {
	kind, channel, variant string
	when                   string
	then                   string
}

var rules = []rule{
	// Jumps of the exploration itself.
	{"jump", "*", "credit used up", "", "credit:=none"},
	{"jump", "*", "receive sequence", "", "end:=receive sequence"},
	{"jump", "*", "receive epoch", "", "end:=receive epoch"},
	{"jump", "*", "receive generation", "", "end:=receive generation"},
	{"jump", "*", "send sequence", "", "end:=send sequence"},
	{"jump", "*", "send epoch", "", "end:=send epoch"},
	{"jump", "*", "send generation", "", "end:=send generation"},

	// Commands.
	{"send|UpdateKey|Ratchet|Rekem|GrantStream", "*", "*", "phase=!open", "error ErrClosed"},
	{"send", "*", "on a channel not carried", "", "error ErrChannel"},
	{"send", "*", "on Control|of a common type", "", "error ErrReserved"},
	{"send", "*", "larger than the peer takes", "", "error ErrTooLarge"},
	{"send", "*", "*", "credit=none|waits", "credit:=waits"},
	{"send", "*", "plain", "", "send 0x0100 on Bridge"},
	{"send", "*", "key at its bound", "end=send epoch", "end mute; error ErrExhausted"},
	{"send", "*", "key at its bound", "", "send KEY_UPDATE on Bridge; send 0x0100 on Bridge"},
	{"send", "*", "key at its bound, changed too often", "", "send 0x0100 on Bridge; count KeyChangesPutOff"},
	{"send", "*", "root at its bound", "mode=no ratchet", "send 0x0100 on Bridge"},
	{"send", "*", "root at its bound", "end=send generation", "send 0x0100 on Bridge; end mute"},
	{"send", "*", "root at its bound", "", "send 0x0100 on Bridge; send MASTER_RATCHET; restart send"},
	{"send", "*", "root at its bound, changed too often", "end=send sequence", "end mute; error ErrExhausted"},
	{"send", "*", "root at its bound, changed too often", "mode=no ratchet", "send 0x0100 on Bridge"},
	{"send", "*", "root at its bound, changed too often", "", "send 0x0100 on Bridge; count KeyChangesPutOff"},
	{"UpdateKey", "Stream", "*", "", "error ErrChannel"},
	{"UpdateKey", "Bridge", "*", "credit=none|waits", "error ErrNoCredit"},
	{"UpdateKey", "*", "too often", "", "error ErrRate"},
	{"UpdateKey", "*", "*", "end=send epoch", "end mute; error ErrExhausted"},
	{"UpdateKey", "Control", "*", "", "send KEY_UPDATE on Control"},
	{"UpdateKey", "Bridge", "*", "", "send KEY_UPDATE on Bridge"},
	{"Ratchet|Rekem", "*", "*", "mode=no ratchet", "error ErrNoRatchet"},
	{"Rekem", "*", "*", "rekem=yes", "error ErrRekemPending"},
	{"Ratchet|Rekem", "*", "too often", "", "error ErrRate"},
	{"Ratchet", "*", "*", "end=send generation", "end mute; error ErrGeneration"},
	{"Ratchet", "*", "*", "", "send MASTER_RATCHET; restart send"},
	{"Rekem", "*", "*", "end=receive generation", "error ErrGeneration"},
	{"Rekem", "*", "*", "", "send REKEM; rekem:=yes"},
	{"GrantStream", "*", "*", "mode=no HELLO", ""},
	{"GrantStream", "*", "*", "hello=!credit", ""},
	{"GrantStream", "*", "*", "credit=none|waits", "credit:=waits"},
	{"GrantStream", "*", "*", "", "send FLOW_UPDATE on Bridge"},
	{"Close", "*", "*", "phase=!open", ""},
	{"Close", "*", "*", "credit=waits", "phase:=draining"},
	{"Close", "*", "*", "", "send bye; phase:=closing"},

	// After the end nothing does anything.
	{"*", "*", "*", "phase=ended", ""},

	{"Abort", "*", "*", "", "end internal"},

	// Time and transport.
	{"time", "*", "wait for CLOSE_ACK over", "phase=draining", "send bye; end done"},
	{"time", "*", "wait for CLOSE_ACK over", "phase=closing", "end done"},
	{"time", "*", "wait for CLOSE_ACK over", "", ""},
	{"time", "*", "*", "phase=!open", ""},
	{"time", "*", "silence", "hello=none|late", ""},
	{"time", "*", "silence", "pings=2", "end timeout"},
	{"time", "*", "silence", "pings=1", "send PING on Control; pings:=2"},
	{"time", "*", "silence", "", "send PING on Control; pings:=1"},
	{"time", "*", "no silence", "", ""},
	{"time", "*", "wait for HELLO over", "hello=none credit=waits", "hello:=late; credit:=room; send queue"},
	{"time", "*", "wait for HELLO over", "hello=none", "hello:=late; credit:=room"},
	{"time", "*", "wait for HELLO over", "", ""},
	{"time", "*", "wait for REKEM_ACK over", "rekem=yes", "rekem:=no; count RekemsDropped"},
	{"time", "*", "wait for REKEM_ACK over", "", ""},
	{"transport", "*", "*", "phase=closing", "end done"},
	{"transport", "*", "*", "", "end lost"},
	{"*", "*", "cut in the header, end of file", "phase=closing", "end done"},
	{"*", "Stream|GREASE|unassigned|reserved", "cut in the payload, end of file", "phase=closing", "end done; count SkippedChannel"},
	{"*", "*", "cut in the payload, end of file", "phase=closing", "end done"},
	{"*", "*", "cut in the header, end of file", "", "end lost"},
	{"*", "Stream|GREASE|unassigned|reserved", "cut in the payload, end of file", "", "end lost; count SkippedChannel"},
	{"*", "*", "cut in the payload, end of file", "", "end lost"},

	// "CRC, magic, version, reserved, length over the limit: ERROR, close".
	{"*", "*", "CRC|magic|version|reserved octet", "", "end protocol"},
	{"*", "*", "length over the limit", "", "end limit"},
	// "ENC clear, payload under 16, COMP or FRAG set, type 0: ERROR, close".
	{"*", "*", "ENC clear|COMP set|FRAG set|payload under a tag|type 0", "", "end protocol"},
	{"CLOSE|CLOSE_ACK|HELLO_DONE|0x000b|0x0030|0x0112", "*", "length less by one", "", "end protocol"}, // under 16
	// "channel not advertised, GREASE channel: skipped unopened, counted".
	{"*", "*", "channel not carried|channel GREASE", "", "count SkippedChannel"},
	{"*", "Stream|GREASE|unassigned|reserved", "*", "", "count SkippedChannel"},
	// No memory for what is still arriving (D28).
	{"*", "*", "no memory for a partial frame", "", "end limit"},
	// "wrong sequence or tag: on a CLOSE: dropped, counted, sequence not moved; else
	// ERROR(crypto), close". A sequence number at its end is like a wrong one.
	{"*", "*", "type CLOSE", "", "count BadClose"},
	{"CLOSE", "*", "type PONG", "", "end crypto"},
	{"CLOSE", "*", "URG changed|type PONG|channel another|length less by one|length more by one|sequence below|sequence above (lost, overtaken)|sequence field changed|epoch below|epoch above|generation below|generation above|other direction|payload changed|tag changed|replayed", "", "count BadClose"},
	{"*", "*", "URG changed|type PONG|channel another|length less by one|length more by one|sequence below|sequence above (lost, overtaken)|sequence field changed|epoch below|epoch above|generation below|generation above|other direction|payload changed|tag changed|replayed", "", "end crypto"},
	{"CLOSE", "*", "*", "end=receive sequence", "count BadClose"},
	{"*", "*", "*", "end=receive sequence", "end crypto"},

	// From here on the frame is opened.

	// D6: credit in force is not to be overrun; where it is not, a peer may not know
	// of it.
	{"*", "*", "above its credit", "mode=!no HELLO hello=credit", "opened; end limit"},
	{"application", "*", "above its credit", "mode=!no HELLO hello=none|late phase=closing", "opened; overran:=yes"},
	{"application", "*", "above its credit", "mode=!no HELLO hello=none|late", "opened; event frame; overran:=yes"},
	{"application", "*", "credit just used up", "mode=!no HELLO hello=credit phase=open", "opened; event frame; send FLOW_UPDATE on Control"},
	// After our CLOSE what channels would get is of no use to anyone.
	{"application", "*", "*", "phase=closing", "opened"},
	{"application", "*", "*", "", "opened; event frame"},

	// Types with one meaning on every channel (D13).
	{"PING", "*", "over 64 octets", "", "opened; count PingsIn; end protocol"},
	{"PING", "*", "*", "phase=closing", "opened; count PingsIn"},
	{"PING", "Control", "*", "", "opened; count PingsIn; send PONG on Control"},
	{"PING", "Bridge", "*", "credit=none|waits", "opened; count PingsIn; credit:=waits"},
	{"PING", "Bridge", "*", "", "opened; count PingsIn; send PONG on Bridge"},
	{"PONG", "*", "*", "", "opened"},
	{"CLOSE", "Control", "*", "", "opened; send CLOSE_ACK on Control; end peer"},
	{"CLOSE", "Bridge", "*", "", "opened; send CLOSE_ACK on Bridge; end peer"},
	{"CLOSE_ACK", "*", "*", "phase=closing", "opened; end acked"},
	{"CLOSE_ACK", "*", "*", "", "opened; count StaleAcks"},
	{"ERROR", "*", "without a code", "", "opened; count ErrorsIn; end protocol"},
	{"ERROR", "*", "*", "", "opened; count ErrorsIn; error:=yes"},
	// "bad epoch marker: ERROR(protocol), close"; updates are rate-limited (D1).
	{"KEY_UPDATE", "*", "epoch marker below|epoch marker above|no marker|two markers|short marker|critical TLV", "", "opened; end protocol"},
	{"KEY_UPDATE", "*", "*", "end=receive epoch", "opened; end protocol"},
	{"KEY_UPDATE", "*", "too often", "", "opened; end limit"},
	{"KEY_UPDATE", "*", "*", "phase=closing", "opened; epoch; count KeyUpdatesIn"},
	{"KEY_UPDATE", "Bridge", "*", "credit=none|waits", "opened; epoch; count KeyUpdatesIn; credit:=waits"},
	{"KEY_UPDATE", "Bridge", "*", "", "opened; epoch; count KeyUpdatesIn; send KEY_UPDATE_ACK on Bridge"},
	{"KEY_UPDATE", "Control", "*", "", "opened; epoch; count KeyUpdatesIn; send KEY_UPDATE_ACK on Control"},
	// Acknowledgements of updates are informational and never close.
	{"KEY_UPDATE_ACK", "*", "epoch marker above|no marker", "", "opened; count StaleAcks"},
	{"KEY_UPDATE_ACK", "*", "*", "", "opened"},
	{"PATH_CHALLENGE|PATH_RESPONSE", "*", "*", "", "opened; count PathFrames"},
	{"FLOW_UPDATE", "Control", "malformed", "", "opened; end protocol"},
	{"FLOW_UPDATE", "Control", "*", "mode=no HELLO", "opened; count UnknownType"},
	{"FLOW_UPDATE", "Control", "*", "hello=!credit", "opened; count UnknownType"},
	{"FLOW_UPDATE", "Control", "count below", "", "opened"},
	{"FLOW_UPDATE", "Control", "*", "phase=draining", "opened; credit:=room; send queue; send bye; phase:=closing"},
	{"FLOW_UPDATE", "Control", "*", "credit=waits", "opened; credit:=room; send queue"},
	{"FLOW_UPDATE", "Control", "*", "", "opened; credit:=room"},
	{"FLOW_UPDATE", "Bridge", "*", "mode=no HELLO", "opened; count UnknownType"},
	{"FLOW_UPDATE", "Bridge", "*", "hello=!credit", "opened; count UnknownType"},
	{"FLOW_UPDATE", "Bridge", "malformed", "", "opened; end protocol"},
	{"FLOW_UPDATE", "Bridge", "*", "", "opened; event stream credit"},
	// "unknown type on an advertised channel: opened, its sequence number consumed,
	// dropped, counted". The handshake's messages are that once it is over.
	{"0x000b|0x0030|0x0112|CLIENT_HELLO|SERVER_HELLO|SERVER_AUTH|CLIENT_AUTH", "*", "*", "", "opened; count UnknownType"},

	// "malformed or second HELLO: ERROR(protocol), close".
	{"HELLO|HELLO with credit", "*", "malformed|with a negative key|below the floor", "", "opened; end protocol"},
	{"HELLO|HELLO with credit", "*", "*", "hello=credit|free", "opened; end protocol"},
	{"HELLO with credit", "*", "*", "mode=!no HELLO overran=yes", "opened; end limit"},
	{"HELLO with credit", "*", "*", "phase=draining", "opened; event HELLO; hello:=credit; overran:=no; credit:=room; send queue; send bye; phase:=closing"},
	{"HELLO with credit", "*", "*", "credit=waits", "opened; event HELLO; hello:=credit; overran:=no; credit:=room; send queue"},
	{"HELLO with credit", "*", "*", "", "opened; event HELLO; hello:=credit; overran:=no; credit:=room"},
	{"HELLO", "*", "*", "phase=draining", "opened; event HELLO; hello:=free; overran:=no; credit:=room; send queue; send bye; phase:=closing"},
	{"HELLO", "*", "*", "credit=waits", "opened; event HELLO; hello:=free; overran:=no; credit:=room; send queue"},
	{"HELLO", "*", "*", "", "opened; event HELLO; hello:=free; overran:=no; credit:=room"},
	{"HELLO_DONE", "*", "with a payload", "", "opened; end protocol"},
	{"HELLO_DONE", "*", "*", "hello=none|late", "opened; end protocol"},
	{"HELLO_DONE", "*", "*", "done=yes", "opened; end protocol"},
	{"HELLO_DONE", "*", "*", "", "opened; done:=yes"},

	// "bad generation: ERROR(protocol), close" (section 3; D29).
	{"MASTER_RATCHET|REKEM", "*", "*", "mode=no ratchet", "opened; end protocol"},
	{"MASTER_RATCHET", "*", "target below|target above|malformed|with octets after it", "", "opened; end protocol"},
	{"MASTER_RATCHET", "*", "*", "end=receive generation", "opened; end protocol"},
	{"MASTER_RATCHET", "*", "too often", "", "opened; end limit"},
	{"MASTER_RATCHET", "*", "*", "phase=closing", "opened; generation; count RatchetsIn; drop rekem; restart receive"},
	{"MASTER_RATCHET", "*", "*", "", "opened; generation; count RatchetsIn; drop rekem; restart receive; send MASTER_RATCHET_ACK"},
	{"MASTER_RATCHET_ACK", "*", "target above|malformed", "", "opened; count StaleAcks"},
	{"MASTER_RATCHET_ACK", "*", "*", "", "opened"},
	// "a stale REKEM (it may cross a MASTER_RATCHET) is ignored and counted".
	{"REKEM", "*", "malformed|share of another size|with octets after it", "", "opened; end protocol"},
	{"REKEM", "*", "too often", "", "opened; end limit"},
	{"REKEM", "*", "*", "phase=!open", "opened; count StaleRekems"},
	{"REKEM", "*", "target below", "", "opened; count StaleRekems"},
	{"REKEM", "*", "*", "end=send generation", "opened; count StaleRekems"},
	{"REKEM", "*", "target above", "", "opened; end protocol"},
	{"REKEM", "*", "unusable share", "", "opened; end crypto"},
	{"REKEM", "*", "*", "end=send sequence", "opened; end mute"},
	{"REKEM", "*", "*", "", "opened; count RekemsIn; send REKEM_ACK; restart send"},
	// "a MASTER_RATCHET or REKEM_ACK that is not [exactly +1] closes".
	{"REKEM_ACK", "*", "*", "rekem=no", "opened; end protocol"},
	{"REKEM_ACK", "*", "target below|target above|malformed|ciphertext of another size|with octets after it", "", "opened; end protocol"},
	{"REKEM_ACK", "*", "*", "end=receive generation", "opened; end protocol"},
	{"REKEM_ACK", "*", "unusable ciphertext", "", "opened; end crypto"},
	{"REKEM_ACK", "*", "*", "", "opened; generation; count RekemsOut; rekem:=no; restart receive"},
}
