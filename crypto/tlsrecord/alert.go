package tlsrecord

import "strconv"

// Alert is the code of an alert (RFC 8446 section 6).
type Alert uint8

// The alerts this package sends or knows.
const (
	AlertCloseNotify       Alert = 0
	AlertUnexpectedMessage Alert = 10
	AlertBadRecordMAC      Alert = 20
	AlertRecordOverflow    Alert = 22
	AlertIllegalParameter  Alert = 47
	AlertDecodeError       Alert = 50
	AlertProtocolVersion   Alert = 70
	AlertInternalError     Alert = 80
	AlertUserCanceled      Alert = 90
)

// String is the alert's name in RFC 8446, or its number.
func (a Alert) String() string {
	switch a {
	case AlertCloseNotify:
		return "close_notify"
	case AlertUnexpectedMessage:
		return "unexpected_message"
	case AlertBadRecordMAC:
		return "bad_record_mac"
	case AlertRecordOverflow:
		return "record_overflow"
	case AlertIllegalParameter:
		return "illegal_parameter"
	case AlertDecodeError:
		return "decode_error"
	case AlertProtocolVersion:
		return "protocol_version"
	case AlertInternalError:
		return "internal_error"
	case AlertUserCanceled:
		return "user_canceled"
	}
	return strconv.Itoa(int(a))
}

// level is the octet before the code: warning for an orderly end, fatal
// otherwise. Receivers go by the code alone (RFC 8446 section 6).
func (a Alert) level() byte {
	if a == AlertCloseNotify || a == AlertUserCanceled {
		return 1
	}
	return 2
}

// RemoteAlert is the error that ends a connection when the peer sent this alert.
type RemoteAlert Alert

// Error names the alert.
func (a RemoteAlert) Error() string { return "tlsrecord: peer sent alert " + Alert(a).String() }

// Fault is an error that ends a connection because of what arrived, together with
// the alert the peer gets for it. The faults are the variables below.
type Fault struct {
	Alert Alert
	text  string
}

// Error tells what was wrong.
func (f *Fault) Error() string { return "tlsrecord: " + f.text }

// The faults, by the section of RFC 8446 that makes them one.
var (
	// ErrContentType: a record that is not protected, after the handshake
	// (section 5.2: opaque_type is always application_data).
	ErrContentType = &Fault{AlertUnexpectedMessage, "record is not of type application_data"}
	// ErrChangeCipherSpec: change_cipher_spec after the peer's Finished (section
	// 5).
	ErrChangeCipherSpec = &Fault{AlertUnexpectedMessage, "change_cipher_spec after the handshake"}
	// ErrVersion: legacy_record_version is not 0x0303 (section 5.2).
	ErrVersion = &Fault{AlertProtocolVersion, "record version is not 0x0303"}
	// ErrTooLong: a record of more than 2^14+256 octets (section 5.2).
	ErrTooLong = &Fault{AlertRecordOverflow, "record too long"}
	// ErrTooShort: a record too short for a tag.
	ErrTooShort = &Fault{AlertBadRecordMAC, "record too short to authenticate"}
	// ErrTag: a record that doesn't authenticate (section 5.2).
	ErrTag = &Fault{AlertBadRecordMAC, "record does not authenticate"}
	// ErrInnerTooLong: more than 2^14 octets of content and padding in a record
	// (section 5.4).
	ErrInnerTooLong = &Fault{AlertRecordOverflow, "content and padding too long"}
	// ErrNoContent: a record of nothing but padding (section 5.4).
	ErrNoContent = &Fault{AlertUnexpectedMessage, "record without a content type"}
	// ErrInnerType: a protected record of another content than alert, handshake
	// and application_data (section 5).
	ErrInnerType = &Fault{AlertUnexpectedMessage, "unexpected content type"}
	// ErrEmpty: an alert or handshake record without content (section 5.1).
	ErrEmpty = &Fault{AlertUnexpectedMessage, "empty alert or handshake record"}
	// ErrFlood: too many records in a row that brought nothing.
	ErrFlood = &Fault{AlertUnexpectedMessage, "too many records without data"}
	// ErrAlert: an alert record that is not exactly one alert (section 5.1).
	ErrAlert = &Fault{AlertDecodeError, "malformed alert"}
	// ErrInterleaved: another record in the middle of a handshake message
	// (section 5.1).
	ErrInterleaved = &Fault{AlertUnexpectedMessage, "record in the middle of a handshake message"}
	// ErrMessageType: a handshake message that may not follow the handshake
	// (section 4.6), among them a ticket for a server, and the certificate
	// request that we never offered to answer.
	ErrMessageType = &Fault{AlertUnexpectedMessage, "unexpected handshake message"}
	// ErrMessageTooLong: a handshake message above MaxMessage.
	ErrMessageTooLong = &Fault{AlertIllegalParameter, "handshake message too long"}
	// ErrMessage: a handshake message that can't be parsed.
	ErrMessage = &Fault{AlertDecodeError, "malformed handshake message"}
	// ErrKeyUpdateValue: a KeyUpdate that neither asks nor doesn't (section
	// 4.6.3).
	ErrKeyUpdateValue = &Fault{AlertIllegalParameter, "unknown request in a KeyUpdate"}
	// ErrKeyUpdateNotLast: octets behind a KeyUpdate in its record, although the
	// key changes there (section 5.1).
	ErrKeyUpdateNotLast = &Fault{AlertUnexpectedMessage, "KeyUpdate is not the last of its record"}
	// ErrKeyUpdates: more KeyUpdates than the data between them excuses.
	ErrKeyUpdates = &Fault{AlertUnexpectedMessage, "too many KeyUpdates"}
	// ErrBudget: no memory left for a partial record or message.
	ErrBudget = &Fault{AlertInternalError, "no memory left for partial records"}
)
