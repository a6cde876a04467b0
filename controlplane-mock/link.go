package controlplane

import (
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"net/http"
	"time"

	"go.uber.org/zap"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

// keyOverlap is how long a process's older key stays valid after a re-link, so that calls in flight succeed:
// longer than the longest poll.
const keyOverlap = 60 * time.Second

// linkPurpose starts every signed message, so that a signature made for something else is never a proof.
const linkPurpose = "agentd-link-v1"

// challenge hands out a nonce, to anyone: it is worth nothing without the private key.
func (s *Server) challenge(c *call) error {
	o, err := c.object(false)
	if err != nil {
		return err
	}
	pub := publicKey(o)
	o.id("agentId", false)
	if err := o.err(); err != nil {
		return err
	}
	secrets, err := s.secrets(c.ctx())
	if err != nil {
		return err
	}
	nonce := newSecret("")
	if err := s.store.PutNonce(c.ctx(), SumOf(nonce), pub, s.cfg.NonceTTL); err != nil {
		return err
	}
	return c.answer(http.StatusOK, protocol.Challenge{
		Nonce: nonce, ServerID: secrets.serverID, ExpiresIn: protocol.ToMillis(s.cfg.NonceTTL),
	})
}

func publicKey(o *object) ed25519.PublicKey {
	pub := o.bytes("publicKey", true)
	if o.fault == nil && len(pub) != ed25519.PublicKeySize {
		o.fail("publicKey", "is not an Ed25519 public key (32 bytes)")
	}
	return pub
}

func (s *Server) linkRequest(c *call) (protocol.LinkRequest, error) {
	o, err := c.object(false)
	if err != nil {
		return protocol.LinkRequest{}, err
	}
	return s.linkFields(o)
}

func (s *Server) linkFields(o *object) (protocol.LinkRequest, error) {
	name := s.cfg.Limits.Name
	const maxLabels = 64 // labels say where a host stands, and there are few words for it
	req := protocol.LinkRequest{
		AgentID:    o.id("agentId", false),
		PublicKey:  publicKey(o),
		Name:       o.str("name", false, name),
		Labels:     o.strMap("labels", maxLabels, name),
		Types:      o.strs("types", maxTypes, name),
		Connectors: o.strs("connectors", maxTypes, name),
		Version:    o.str("version", false, name),
		OS:         o.str("os", false, name),
		Arch:       o.str("arch", false, name),
		ProcessID:  o.str("processId", true, 0),
		Nonce:      o.str("nonce", true, 0),
		Signature:  o.bytes("signature", true),
	}
	if _, ok := o.get("start", true); ok {
		req.Start = o.bool("start", true)
	}
	if o.fault == nil && !validProcessID(req.ProcessID) {
		o.fail("processId", "is not a process id (1 to 128 characters from A-Z a-z 0-9 _ - .)")
	}
	return req, o.err()
}

// link settles who an agent is: the proof here, everything else in one transaction of the store.
func (s *Server) link(c *call) error {
	req, err := s.linkRequest(c)
	if err != nil {
		return err
	}
	var token *store.Sum
	if c.key != (store.Sum{}) {
		token = &c.key
	}
	if token == nil && req.AgentID == "" {
		return invalid("agentId: is required without an enrolment token")
	}
	secrets, err := s.secrets(c.ctx())
	if err != nil {
		return err
	}
	refuse := func(why string) error {
		s.log.Warn("link refused", zap.String("audit", "link"), zap.String("agent", req.AgentID),
			zap.Stringer("address", address(c.Request)), zap.String("why", why))
		return c.refuse()
	}
	// The signature before the nonce: whoever can't sign can't use nonces up.
	if !ed25519.Verify(req.PublicKey, linkMessage(req.Nonce, req.AgentID, secrets.serverID), req.Signature) {
		return refuse("signature")
	}
	fresh, err := s.store.TakeNonce(c.ctx(), SumOf(req.Nonce), req.PublicKey)
	switch {
	case err != nil:
		return err
	case !fresh:
		return refuse("nonce")
	}
	key := newSecret(apiKeyPrefix)
	linked, err := s.store.Link(c.ctx(), store.LinkParams{
		Token: token, AgentID: req.AgentID, NewAgentID: newID("ag_"), PublicKey: req.PublicKey,
		ProcessID: req.ProcessID, Start: req.Start, Key: SumOf(key), KeyTTL: s.cfg.KeyTTL, KeyOverlap: keyOverlap,
		Info: store.AgentInfo{
			Name: req.Name, Labels: req.Labels, Types: req.Types, Connectors: req.Connectors,
			Version: req.Version, OS: req.OS, Arch: req.Arch,
		},
	})
	switch {
	case errors.Is(err, store.ErrDenied):
		return refuse("token or id")
	case errors.Is(err, store.ErrIdentity), errors.Is(err, store.ErrRevoked):
		s.log.Warn("link refused", zap.String("audit", "link"), zap.String("agent", req.AgentID),
			zap.Stringer("address", address(c.Request)), zap.Error(err))
		return err
	case err != nil:
		return err
	}
	s.log.Info("agent linked", zap.String("audit", "link"), zap.String("agent", linked.Agent.ID), zap.String("name", req.Name),
		zap.Bool("first", linked.First), zap.Bool("start", req.Start), zap.String("process", req.ProcessID),
		zap.Stringer("address", address(c.Request)))
	if err := s.store.Touch(c.ctx(), linked.Agent.ID); err != nil {
		return err
	}
	status := http.StatusOK
	if linked.First {
		status = http.StatusCreated
	}
	return c.answer(status, protocol.Link{
		AgentID: linked.Agent.ID, APIKey: key, KeyExpiresIn: protocol.ToMillis(s.cfg.KeyTTL),
		LeaseTTL: protocol.ToMillis(s.leaseTTL()), Heartbeat: protocol.ToMillis(s.heartbeatPace()), PollWait: protocol.ToMillis(s.cfg.PollWait),
		MaxLogBody: s.cfg.Limits.LogBody, LogEncodings: s.cfg.Encodings, ServerID: secrets.serverID,
	})
}

// linkMessage is what a link's signature is over: each part preceded by its length, so that no two quadruples make the same bytes.
func linkMessage(nonce, agentID, serverID string) []byte {
	var msg []byte
	for _, part := range []string{linkPurpose, nonce, agentID, serverID} {
		msg = binary.BigEndian.AppendUint32(msg, uint32(len(part)))
		msg = append(msg, part...)
	}
	return msg
}
