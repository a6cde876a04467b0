package protocol

import (
	"crypto/ed25519"
	"encoding/binary"
)

// linkContext keeps a link signature from ever being taken for a signature over something else.
const linkContext = "agentd-link-v1"

// LinkMessage is what a link's signature is over: four texts, each preceded by its length, so
// that no two different links have the same message.
func LinkMessage(nonce, agentID, serverID string) []byte {
	parts := [...]string{linkContext, nonce, agentID, serverID}
	n := 0
	for _, p := range parts {
		n += 4 + len(p)
	}
	msg := make([]byte, 0, n)
	for _, p := range parts {
		msg = binary.BigEndian.AppendUint32(msg, uint32(len(p)))
		msg = append(msg, p...)
	}
	return msg
}

// SignLink fills in r's public key, nonce and signature. r.AgentID must be set already: it is signed.
func SignLink(r *LinkRequest, key ed25519.PrivateKey, c Challenge) {
	r.PublicKey = []byte(key.Public().(ed25519.PublicKey)) //nolint:forcetypeassert // documented to be one
	r.Nonce = c.Nonce
	r.Signature = ed25519.Sign(key, LinkMessage(c.Nonce, r.AgentID, c.ServerID))
}

// VerifyLink tells whether r was signed by the key it names, for this server. A server checks
// besides that the nonce is one of its own, unused, and was asked for by that key.
func VerifyLink(r LinkRequest, serverID string) bool {
	return len(r.PublicKey) == ed25519.PublicKeySize &&
		ed25519.Verify(r.PublicKey, LinkMessage(r.Nonce, r.AgentID, serverID), r.Signature)
}
