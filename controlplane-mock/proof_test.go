package controlplane

import (
	"crypto/ed25519"
	"testing"
)

// FuzzProof: a proof is good for the very nonce, agent and server it was made for. Texts that run together
// (nonce "a" of agent "bc" against "ab" of "c") are different messages.
func FuzzProof(f *testing.F) {
	f.Add("nonce", "agt_1", "srv_1", "nonce", "agt_1", "srv_2")
	f.Add("ab", "c", "", "a", "bc", "")
	f.Add("", "", "", "\x00\x00\x00\x00", "", "")
	f.Add("x", "\x00\x00\x00\x01y", "z", "x\x00\x00\x00\x01y", "", "z")
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, nonce, agent, server, nonce2, agent2, server2 string) {
		same := nonce == nonce2 && agent == agent2 && server == server2
		proof := ed25519.Sign(key, linkMessage(nonce, agent, server))
		if got := ed25519.Verify(pub, linkMessage(nonce2, agent2, server2), proof); got != same {
			t.Fatalf("a proof of (%q, %q, %q) is good for (%q, %q, %q): %v", nonce, agent, server, nonce2, agent2, server2, got)
		}
	})
}
