package wire

import "strconv"

// Sizes, in octets.
const (
	HeaderLen = 36 // the frame header
	PrefixLen = 21 // the header's start that the CRC covers and the AEAD authenticates
	TagLen    = 16 // the AEAD tag that ends the payload of a sealed frame

	// MaxFrameLen is the largest frame there may be, header included (D4).
	MaxFrameLen = 16 << 20
	// DefaultFrameLen is the limit without another agreement, header included (D4).
	DefaultFrameLen = 4 << 20
	// FloorFrameLen is the frame length that every peer accepts, header included (D3).
	FloorFrameLen = 1 << 20
)

// Version is the wire version, the high nibble of the header's octet 4.
const Version = 2

// Channel is a channel identifier.
type Channel uint16

// The channels of draft-bubblefish-npamp-02, section 5.
const (
	ChannelControl     Channel = 0x0000
	ChannelMemory      Channel = 0x0001
	ChannelCapability  Channel = 0x0002
	ChannelIdentity    Channel = 0x0003
	ChannelGovernance  Channel = 0x0004
	ChannelImmune      Channel = 0x0005
	ChannelFederation  Channel = 0x0006
	ChannelSettlement  Channel = 0x0007
	ChannelCompliance  Channel = 0x0008
	ChannelSensory     Channel = 0x0009
	ChannelTelemetry   Channel = 0x000A
	ChannelAudit       Channel = 0x000B
	ChannelStream      Channel = 0x000C
	ChannelBridge      Channel = 0x000D
	ChannelCommerce    Channel = 0x000E
	ChannelInteraction Channel = 0x000F
	ChannelDiscovery   Channel = 0x0010
	ChannelWorkflow    Channel = 0x0011
	ChannelKnowledge   Channel = 0x0012
	ChannelSpatial     Channel = 0x0013

	// FirstGREASEChannel to LastGREASEChannel mean nothing and are ignored.
	FirstGREASEChannel Channel = 0xF000
	LastGREASEChannel  Channel = 0xFFFE
	// ChannelReserved never appears on the wire.
	ChannelReserved Channel = 0xFFFF

	// ChannelCount is the number of assigned channels, which are numbered from 0.
	ChannelCount = 0x14
)

var channelNames = [ChannelCount]string{
	"Control", "Memory", "Capability", "Identity", "Governance", "Immune", "Federation",
	"Settlement", "Compliance", "Sensory", "Telemetry", "Audit", "Stream", "Bridge",
	"Commerce", "Interaction", "Discovery", "Workflow", "Knowledge", "Spatial",
}

// String returns the channel's name, or its number in hexadecimal.
func (c Channel) String() string {
	if int(c) < len(channelNames) {
		return channelNames[c]
	}
	return "channel(" + hex16(uint16(c)) + ")"
}

// IsGREASE reports whether c is one of the numbers that exist to be ignored.
func (c Channel) IsGREASE() bool {
	return c >= FirstGREASEChannel && c <= LastGREASEChannel
}

// IsAssigned reports whether the documents give c a meaning.
func (c Channel) IsAssigned() bool {
	return c < ChannelCount
}

// FrameType is a frame type. Below FirstChannelType it means the same on every
// channel; from there on each channel has numbers of its own.
type FrameType uint16

// The types with one meaning on every channel, section 4 of
// draft-bubblefish-npamp-02. TypeNone is illegal on the wire.
const (
	TypeNone          FrameType = 0x0000
	TypePing          FrameType = 0x0001
	TypePong          FrameType = 0x0002
	TypeClose         FrameType = 0x0003
	TypeCloseAck      FrameType = 0x0004
	TypeError         FrameType = 0x0005
	TypeKeyUpdate     FrameType = 0x0006
	TypeKeyUpdateAck  FrameType = 0x0007
	TypePathChallenge FrameType = 0x0008
	TypePathResponse  FrameType = 0x0009
	TypeFlowUpdate    FrameType = 0x000A

	// FirstCompanionType to FirstChannelType-1 are kept for companion documents.
	FirstCompanionType FrameType = 0x0030
	// FirstChannelType is the first type that belongs to its channel.
	FirstChannelType FrameType = 0x0100
)

// Types of the Control channel: the handshake, the ratchet, HELLO.
const (
	TypeClientHello      FrameType = 0x0100
	TypeServerHello      FrameType = 0x0101
	TypeServerAuth       FrameType = 0x0102
	TypeClientAuth       FrameType = 0x0103
	TypeMasterRatchet    FrameType = 0x0104
	TypeMasterRatchetAck FrameType = 0x0105
	TypeRekem            FrameType = 0x0106
	TypeRekemAck         FrameType = 0x0107
	TypeHello            FrameType = 0x0110
	TypeHelloDone        FrameType = 0x0111
)

var commonTypeNames = [...]string{
	"NONE", "PING", "PONG", "CLOSE", "CLOSE_ACK", "ERROR", "KEY_UPDATE", "KEY_UPDATE_ACK",
	"PATH_CHALLENGE", "PATH_RESPONSE", "FLOW_UPDATE",
}

// IsCommon reports whether t means the same on every channel (assigned or not).
func (t FrameType) IsCommon() bool { return t < FirstChannelType }

// String returns the name of a type that is common to all channels, or the
// number in hexadecimal.
func (t FrameType) String() string {
	if int(t) < len(commonTypeNames) {
		return commonTypeNames[t]
	}
	return "type(" + hex16(uint16(t)) + ")"
}

// Flags is the low nibble of the header's octet 4.
type Flags uint8

// The header's flags. COMP and FRAG are never sent (D5).
const (
	FlagURG  Flags = 1 // goes before other frames
	FlagENC  Flags = 2 // the payload is sealed
	FlagCOMP Flags = 4 // compressed
	FlagFRAG Flags = 8 // a fragment

	flagsMask Flags = 0x0F
)

// Seq is a sequence number: per channel, direction and epoch, from 0.
type Seq uint64

// Epoch counts the keys of one channel and direction, from 0.
type Epoch uint64

// Direction says who sends.
type Direction uint8

// The two directions, numbered as in the key schedule.
const (
	ClientToServer Direction = 0
	ServerToClient Direction = 1
)

// String returns "client to server" or "server to client".
func (d Direction) String() string {
	if d == ClientToServer {
		return "client to server"
	}
	return "server to client"
}

// Reverse returns the other direction.
func (d Direction) Reverse() Direction { return d ^ 1 }

func hex16(v uint16) string {
	s := strconv.FormatUint(uint64(v)|0x10000, 16)
	return "0x" + s[1:]
}
