package handshake

import (
	"fmt"

	"github.com/trestle-npamp/trestle/crypto/identity"
	"github.com/trestle-npamp/trestle/crypto/kem"
	"github.com/trestle-npamp/trestle/crypto/record"
	"github.com/trestle-npamp/trestle/crypto/schedule"
	"github.com/trestle-npamp/trestle/profiles"
	"github.com/trestle-npamp/trestle/wire"
	messages "github.com/trestle-npamp/trestle/wire/handshake"
)

// state is what the machine waits for.
//
//	client: awaitServerHello -> awaitServerAuth -> done
//	server: awaitClientHello -> awaitClientAuth -> done
//	both:   any -> failed
type state uint8

const (
	failed state = iota
	awaitClientHello
	awaitServerHello
	awaitServerAuth
	awaitClientAuth
	done
)

// step is what a state accepts and who takes it on.
type step struct {
	typ    wire.FrameType
	flags  wire.Flags
	handle func(*Machine, wire.Frame) error
}

var steps = map[state]step{
	awaitClientHello: {wire.TypeClientHello, 0, (*Machine).handleClientHello},
	awaitServerHello: {wire.TypeServerHello, 0, (*Machine).handleServerHello},
	awaitServerAuth:  {wire.TypeServerAuth, wire.FlagENC, (*Machine).handleServerAuth},
	awaitClientAuth:  {wire.TypeClientAuth, wire.FlagENC, (*Machine).handleClientAuth},
}

// authType is the type of the AUTH frame that travels in a direction.
func authType(dir wire.Direction) wire.FrameType {
	if dir == wire.ClientToServer {
		return wire.TypeClientAuth
	}
	return wire.TypeServerAuth
}

// Machine is one side of one handshake. It belongs to one goroutine. Make it
// with NewClient or NewServer, and Wipe it when it is no longer needed, however
// it ended.
type Machine struct {
	cfg   Config
	role  Role
	state state
	out   []byte // not yet handed out

	// While in progress.
	hello      []byte       // client: the TLVs of our CLIENT_HELLO
	keys       *kem.KeyPair // client: until SERVER_HELLO
	choice     choice
	transcript *schedule.Transcript
	secrets    *schedule.Secrets
	signing    [signingLen]byte // what is signed or verified; public

	result Result
	taken  bool // the roots in result belong to the caller
}

// NewClient returns the side that speaks first; AppendOutput has its
// CLIENT_HELLO at once. The errors are ErrNoVerifier, ErrNoIdentity, ErrConfig
// and Rand's.
func NewClient(cfg Config) (*Machine, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	scheme := cfg.shareKEM()
	if scheme == nil {
		return nil, fmt.Errorf("%w: no key exchange suits all profiles", ErrConfig)
	}
	m := &Machine{cfg: cfg, role: Client, state: awaitServerHello}
	if m.keys, err = scheme.Generate(cfg.Rand); err != nil {
		return nil, err
	}
	offer := messages.ClientHello{
		KEMs:    messages.AppendCodePoints(nil, scheme.ID()),
		Schemes: messages.AppendCodePoints(nil, cfg.Identity.Public().Scheme()),
		AEADs:   messages.AppendCodePoints(nil, cfg.Suites...),
		Share:   m.keys.Share(),
	}
	for _, p := range cfg.Profiles {
		offer.Profiles = append(offer.Profiles, p.Code)
	}
	m.out = make([]byte, 0, wire.HeaderLen+offer.Size())
	if err := m.putHello(wire.TypeClientHello, &offer); err != nil {
		m.keys.Wipe()
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	m.hello = append([]byte(nil), m.out[wire.HeaderLen:]...)
	return m, nil
}

// NewServer returns the side that waits for a CLIENT_HELLO. The errors are
// ErrNoVerifier, ErrNoIdentity and ErrConfig.
func NewServer(cfg Config) (*Machine, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	return &Machine{cfg: cfg, role: Server, state: awaitClientHello}, nil
}

// CheckHeader judges a frame by its header, before its payload is waited for:
// channel, type, sequence number, flags and length must be those of the message
// that is due. HandleFrame makes the same check. The machine does not change;
// the errors are ErrOver, ErrChannel, ErrUnexpected, ErrSequence, ErrFlags and
// ErrLength, and after one of them the handshake can only be given up.
func (m *Machine) CheckHeader(h wire.Header) error {
	due, ok := steps[m.state]
	switch {
	case !ok:
		return ErrOver
	case h.Channel() != wire.ChannelControl:
		return ErrChannel
	case h.Type() != due.typ:
		return ErrUnexpected
	case h.Seq() != 0:
		return ErrSequence
	// The header of a hello is bound by nothing, so it has no freedom.
	case h.Flags() != due.flags:
		return ErrFlags
	}
	n := h.PayloadLen()
	if due.flags&wire.FlagENC == 0 {
		if n > messages.MaxPayloadLen {
			return ErrLength
		}
		return nil
	}
	// What was negotiated fixes the size of an AUTH.
	if want, _ := messages.AuthLen(uint16(m.choice.scheme), m.choice.profile.Hash.Size()); n != want+wire.TagLen {
		return ErrLength
	}
	return nil
}

// HandleFrame takes the peer's next frame; an AUTH is opened in place, so its
// octets change. Any error is terminal: every secret is erased, output that was
// not taken is dropped, and every further frame is ErrOver.
func (m *Machine) HandleFrame(f wire.Frame) error {
	err := m.CheckHeader(f.Header())
	if err == nil {
		err = steps[m.state].handle(m, f)
	}
	if err != nil {
		m.Wipe()
	}
	return err
}

// AppendOutput appends the frames that are to be sent now. A machine may have
// some when it was made and after each HandleFrame, also when it is done.
func (m *Machine) AppendOutput(dst []byte) []byte {
	dst = append(dst, m.out...)
	m.out = nil
	return dst
}

// Done tells that the handshake is complete. The client is done before the
// server: its last message is then still in AppendOutput, and the server may
// yet refuse it.
func (m *Machine) Done() bool { return m.state == done }

// Result gives what the handshake agreed on, and the roots into the caller's
// keeping: from then on Wipe leaves them alone. Before Done, and after a
// failure, it is zero.
func (m *Machine) Result() Result {
	m.taken = m.taken || m.state == done
	return m.result
}

// Wipe ends the machine in any state: every secret it still owns is erased and
// output not taken is dropped.
func (m *Machine) Wipe() {
	if m.state == done && !m.taken {
		m.result.Send.Wipe()
		m.result.Recv.Wipe()
	}
	m.wipeProgress()
	m.result = Result{}
	m.out = nil
	m.state = failed
}

func (m *Machine) wipeProgress() {
	if m.keys != nil {
		m.keys.Wipe()
		m.keys = nil
	}
	if m.secrets != nil {
		m.secrets.Wipe()
		m.secrets = nil
	}
	m.transcript = nil
	m.hello = nil
}

// Format prints the role and no secret, whatever the verb.
func (m *Machine) Format(f fmt.State, _ rune) {
	fmt.Fprintf(f, "handshake.Machine(%s, redacted)", m.role)
}

// hello is either of the two cleartext messages.
type hello interface {
	Append(dst []byte) ([]byte, error)
	Size() int
}

// putHello adds a cleartext frame to the output.
func (m *Machine) putHello(t wire.FrameType, msg hello) (err error) {
	m.out = wire.AppendHeader(m.out, 0, t, wire.ChannelControl, 0, msg.Size())
	m.out, err = msg.Append(m.out)
	return err
}

// handleClientHello, server: choose from the offer and answer the share.
func (m *Machine) handleClientHello(f wire.Frame) error {
	offer, err := messages.ParseClientHello(f.Payload())
	if err != nil {
		return err
	}
	ch, err := m.cfg.choose(&offer)
	if err != nil {
		return err
	}
	ciphertext, secret, err := ch.kem.Encapsulate(m.cfg.Rand, offer.Share)
	if err != nil {
		return err
	}
	defer secret.Wipe()
	return m.sendServerFlight(&offer, ch, ciphertext, secret)
}

// sendServerFlight, server: SERVER_HELLO in clear and SERVER_AUTH sealed.
func (m *Machine) sendServerFlight(offer *messages.ClientHello, ch choice, ciphertext []byte, secret *kem.Secret) error {
	answer := messages.ServerHello{
		Profile:    ch.profile.Code,
		KEM:        uint16(ch.kem.ID()),
		Scheme:     uint16(ch.scheme),
		AEAD:       uint16(ch.suite),
		Ciphertext: ciphertext,
	}
	auth, _ := messages.AuthLen(uint16(ch.scheme), ch.profile.Hash.Size())
	m.out = make([]byte, 0, 2*wire.HeaderLen+answer.Size()+auth+wire.TagLen)
	if err := m.putHello(wire.TypeServerHello, &answer); err != nil {
		return err
	}
	m.agree(ch, offer.Raw(), m.out[wire.HeaderLen:], secret)
	if _, err := m.sendAuth(); err != nil {
		return err
	}
	m.state = awaitClientAuth
	return nil
}

// handleServerHello, client: check the selections and open the ciphertext.
func (m *Machine) handleServerHello(f wire.Frame) error {
	answer, err := messages.ParseServerHello(f.Payload())
	if err != nil {
		return err
	}
	ch, err := m.cfg.accepts(&answer, m.keys.Scheme())
	if err != nil {
		return err
	}
	secret, err := m.keys.Decapsulate(answer.Ciphertext)
	if err != nil {
		return err
	}
	defer secret.Wipe()
	m.keys.Wipe()
	m.keys = nil
	m.agree(ch, m.hello, answer.Raw(), secret)
	m.hello = nil
	m.state = awaitServerAuth
	return nil
}

// handleServerAuth, client: know the server before it gets our identity.
func (m *Machine) handleServerAuth(f wire.Frame) error {
	peer, _, err := m.receiveAuth(f)
	if err != nil {
		return err
	}
	// A pinned key is checked here, before CLIENT_AUTH exists (binding 1).
	if err := m.admit(peer); err != nil {
		return err
	}
	thCCV, err := m.sendAuth()
	if err != nil {
		return err
	}
	m.complete(peer, &thCCV)
	return nil
}

// handleClientAuth, server: established only now.
func (m *Machine) handleClientAuth(f wire.Frame) error {
	peer, thCCV, err := m.receiveAuth(f)
	if err != nil {
		return err
	}
	if err := m.admit(peer); err != nil {
		return err
	}
	m.complete(peer, &thCCV)
	return nil
}

// agree fixes the choice and starts transcript and secrets: TH_kem is over both
// hellos.
func (m *Machine) agree(ch choice, clientHello, serverHello []byte, secret *kem.Secret) {
	m.choice = ch
	m.transcript = schedule.NewTranscript(ch.profile.Hash)
	m.transcript.AddFrameType(wire.TypeClientHello)
	m.transcript.AddTLVs(clientHello)
	m.transcript.AddFrameType(wire.TypeServerHello)
	m.transcript.AddTLVs(serverHello)
	thKEM := m.transcript.Sum()
	m.secrets = schedule.NewSecrets(ch.profile.Hash, secret.Bytes(), &thKEM)
}

// sendAuth adds our AUTH frame to the output and returns the transcript through
// our CertVerify.
func (m *Machine) sendAuth() (thCV schedule.Point, err error) {
	dir := m.role.Sends()
	typ := authType(dir)
	scheme, hashLen := uint16(m.choice.scheme), m.choice.profile.Hash.Size()
	n, _ := messages.AuthLen(scheme, hashLen)
	frame := make([]byte, wire.HeaderLen, wire.HeaderLen+n+wire.TagLen)
	m.transcript.AddFrameType(typ)

	mark := len(frame)
	absorb := func() schedule.Point {
		m.transcript.AddTLVs(frame[mark:])
		mark = len(frame)
		return m.transcript.Sum()
	}
	public := m.cfg.Identity.Public()
	if frame, err = messages.AppendIdentityKey(frame, scheme, public.Append(m.signing[:0])); err != nil {
		return thCV, err
	}
	thID := absorb()
	signature, err := m.cfg.Identity.Sign(signingInput(m.signing[:0], dir, thID.Bytes()))
	if err != nil {
		return thCV, fmt.Errorf("handshake: signing: %w", err)
	}
	if frame, err = messages.AppendCertVerify(frame, scheme, signature); err != nil {
		return thCV, err
	}
	thCV = absorb()
	mac := m.secrets.Finished(dir, &thCV)
	if frame, err = messages.AppendFinished(frame, mac.Bytes(), hashLen); err != nil {
		return thCV, err
	}
	absorb()

	root := m.secrets.AuthRoot(dir)
	defer root.Wipe()
	sealer := record.NewSealer(root, m.choice.profile, m.choice.suite, wire.ChannelControl)
	defer sealer.Wipe()
	if frame, err = sealer.Seal(frame, 0, 0, typ); err != nil {
		return thCV, err
	}
	m.out = append(m.out, frame...)
	return thCV, nil
}

// receiveAuth opens the peer's AUTH frame and verifies signature and Finished.
// It returns the proved key and the transcript through the peer's CertVerify.
func (m *Machine) receiveAuth(f wire.Frame) (peer identity.PublicKey, thCV schedule.Point, err error) {
	dir := m.role.Sends().Reverse()
	root := m.secrets.AuthRoot(dir)
	defer root.Wipe()
	opener := record.NewOpener(root, m.choice.profile, m.choice.suite, wire.ChannelControl)
	defer opener.Wipe()
	plain, err := opener.Open(f)
	if err != nil {
		return peer, thCV, ErrSealed
	}
	auth, err := messages.ParseAuth(plain, m.choice.profile.Hash.Size())
	if err != nil {
		return peer, thCV, err
	}
	if auth.Scheme != uint16(m.choice.scheme) {
		return peer, thCV, ErrScheme
	}
	peer, err = identity.NewPublicKey(m.choice.scheme, auth.IdentityKey)
	if err != nil {
		return peer, thCV, err
	}
	m.transcript.AddFrameType(authType(dir))
	m.transcript.AddTLVs(auth.RawIdentityKey())
	thID := m.transcript.Sum()
	if !peer.Verify(signingInput(m.signing[:0], dir, thID.Bytes()), auth.Signature) {
		return peer, thCV, ErrCertVerify
	}
	m.transcript.AddTLVs(auth.RawCertVerify())
	thCV = m.transcript.Sum()
	if !m.secrets.VerifyFinished(dir, &thCV, auth.Finished) {
		return peer, thCV, ErrFinished
	}
	m.transcript.AddTLVs(auth.RawFinished())
	return peer, thCV, nil
}

// admit asks VerifyPeer.
func (m *Machine) admit(peer identity.PublicKey) error {
	if err := m.cfg.VerifyPeer(peer); err != nil {
		return fmt.Errorf("%w (%s): %w", ErrPeerRefused, peer.Handle(), err)
	}
	return nil
}

// complete derives the roots and erases the rest.
func (m *Machine) complete(peer identity.PublicKey, thCCV *schedule.Point) {
	c2s, s2c := m.secrets.Master(thCCV)
	m.result = Result{
		Role:    m.role,
		Profile: m.choice.profile,
		Suite:   m.choice.suite,
		KEM:     m.choice.kem.ID(),
		Send:    c2s,
		Recv:    s2c,
		PeerKey: peer,
	}
	if m.role == Server {
		m.result.Send, m.result.Recv = s2c, c2s
	}
	m.wipeProgress()
	m.state = done
}

// signingInput appends what CertVerify signs (binding 6.1): 64 spaces, the
// signer's context, a zero, the transcript through the signer's IdentityKey. It
// has signingLen octets at most.
func signingInput(dst []byte, signer wire.Direction, th []byte) []byte {
	context := "N-PAMP/2, server CertificateVerify"
	if signer == wire.ClientToServer {
		context = "N-PAMP/2, client CertificateVerify"
	}
	for range signingSpaces {
		dst = append(dst, ' ')
	}
	dst = append(dst, context...)
	dst = append(dst, 0)
	return append(dst, th...)
}

const (
	signingSpaces = 64
	signingLen    = signingSpaces + len("N-PAMP/2, server CertificateVerify") + 1 + profiles.MaxHashSize
)
