package identity_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/agent/protocol"
)

// control is a control plane that keeps protocol §2, as far as one agent after the other needs it.
type control struct {
	t   *testing.T
	url string

	mu       sync.Mutex
	life     time.Duration     // of API keys
	nonces   map[string]string // nonce → public key
	tokens   map[string]string // token → bound agent id or ""
	used     map[string]string // token → public key
	agents   map[string]string // agent id → public key
	keys     map[string]string // API key → process id
	revoked  bool
	drop     int // so many link answers are lost after they took effect
	current  string
	links    []protocol.LinkRequest
	attempts int // links asked for, refused ones included
	n        int
}

func newControl(t *testing.T) *control {
	c := unserved(t)
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

func unserved(t *testing.T) *control {
	return &control{
		t: t, life: time.Hour, nonces: map[string]string{}, tokens: map[string]string{"good": ""},
		used: map[string]string{}, agents: map[string]string{}, keys: map[string]string{},
	}
}

func (c *control) next(prefix string) string { c.n++; return fmt.Sprintf("%s_%d", prefix, c.n) }

func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	bearer := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case c.revoked:
		refuse(w, 403, protocol.CodeRevoked)
	case r.URL.Path == "/agent/v1/link/challenge":
		var q protocol.ChallengeRequest
		if err := protocol.Decode(body, &q); err != nil {
			c.t.Error(err)
		}
		nonce := c.next("nonce")
		c.nonces[nonce] = string(q.PublicKey)
		answer(w, 200, protocol.Challenge{Nonce: nonce, ServerID: "srv_1", ExpiresIn: 60000})
	case r.URL.Path == "/agent/v1/link":
		c.link(w, body, bearer)
	case c.keys[bearer] == "":
		refuse(w, 401, protocol.CodeUnauthenticated)
	case r.URL.Path == "/agent/v1/jobs/next" && r.Header.Get("Agentd-Process-Id") != c.current:
		refuse(w, 409, protocol.CodeIdentityConflict)
	case r.URL.Path == "/agent/v1/jobs/next":
		w.WriteHeader(http.StatusNoContent)
	default:
		answer(w, 200, protocol.Next{})
	}
}

func (c *control) link(w http.ResponseWriter, body []byte, token string) {
	var q protocol.LinkRequest
	if err := protocol.Decode(body, &q); err != nil {
		c.t.Error(err)
	}
	c.attempts++
	known, fresh := c.nonces[q.Nonce]
	delete(c.nonces, q.Nonce)
	if !fresh || known != string(q.PublicKey) || !protocol.VerifyLink(q, "srv_1") {
		refuse(w, 401, protocol.CodeUnauthenticated)
		return
	}
	id, status := q.AgentID, 200
	if token != "" {
		bound, good := c.tokens[token]
		by, used := c.used[token]
		if !good || used && by != string(q.PublicKey) || q.AgentID != "" {
			refuse(w, 401, protocol.CodeUnauthenticated)
			return
		}
		c.used[token], status = string(q.PublicKey), 201
		for known, key := range c.agents {
			if key == string(q.PublicKey) {
				id = known
			}
		}
		if id == "" {
			id = bound
		}
		if id == "" {
			id = c.next("agt")
		}
		c.agents[id] = string(q.PublicKey)
	}
	switch key, known := c.agents[id]; {
	case !known:
		refuse(w, 401, protocol.CodeUnauthenticated)
		return
	case key != string(q.PublicKey):
		refuse(w, 409, protocol.CodeIdentityConflict)
		return
	}
	c.links = append(c.links, q)
	if q.Start {
		c.current = q.ProcessID
	}
	key := c.next("key")
	c.keys[key] = q.ProcessID
	if c.drop > 0 {
		c.drop--
		panic(http.ErrAbortHandler)
	}
	answer(w, status, protocol.Link{
		AgentID: id, APIKey: key, KeyExpiresIn: protocol.ToMillis(c.life), LeaseTTL: 10000, Heartbeat: 3000, PollWait: 30000,
		MaxLogBody: 1 << 20, LogEncodings: []string{"zstd"}, ServerID: "srv_1",
	})
}

// set changes the control plane under its mutex.
func (c *control) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// seen is how many links succeeded, and how many were asked for.
func (c *control) seen() (links, attempts int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.links), c.attempts
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, status int, code protocol.Code) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(protocol.Problem{Status: status, Code: code})
}

func storedKey(t *testing.T, data []byte) ed25519.PrivateKey {
	t.Helper()
	var file struct {
		PrivateKey string `json:"privateKey"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	seed, err := base64.StdEncoding.DecodeString(file.PrivateKey)
	if err != nil || len(seed) != ed25519.SeedSize {
		t.Fatalf("seed of %d bytes, %v", len(seed), err)
	}
	return ed25519.NewKeyFromSeed(seed)
}
