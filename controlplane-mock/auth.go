package controlplane

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"time"

	"agentd/controlplane-mock/store"
)

// Every credential says of which kind it is, so that one of the wrong kind is refused without a look at the store,
// and so that secret scanners can find one that leaked. What follows is 256 random bits.
const (
	apiKeyPrefix = "agk_"
	enrolPrefix  = "age_"
)

func newSecret(prefix string) string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the process instead
	return prefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// newID makes an id: a prefix for people, and 120 random bits, which no two ids will share.
func newID(prefix string) string {
	var b [15]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the process instead
	return prefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// bearer takes the credential out of a request. present: there is an Authorization header at all.
func bearer(r *http.Request) (credential string, present bool) {
	all := r.Header.Values("Authorization")
	if len(all) == 0 {
		return "", false
	}
	scheme, rest, _ := strings.Cut(all[0], " ")
	rest = strings.TrimSpace(rest)
	if len(all) > 1 || !strings.EqualFold(scheme, "Bearer") || strings.ContainsAny(rest, " ,") {
		return "", true
	}
	return rest, true
}

// refuse answers a wrong credential. Once an address has failed too often it is told to wait instead; those
// with a right credential at the same address never notice.
func (c *call) refuse() error {
	if wait, ok := c.s.failures.take(address(c.Request)); !ok {
		return throttled(wait, "too many refused credentials from this address")
	}
	return unauthenticated()
}

// asAgent lets an agent's API key through, and nothing else. Decided before the body is read.
func asAgent(e endpoint) endpoint {
	return func(c *call) error {
		key, _ := bearer(c.Request)
		if !strings.HasPrefix(key, apiKeyPrefix) {
			return c.refuse()
		}
		c.key = SumOf(key)
		if err := c.authenticate(); err != nil {
			return err
		}
		if wait, ok := c.s.perCredential.take(c.key); !ok {
			return throttled(wait, "too many calls with this credential")
		}
		if err := c.s.store.Touch(c.ctx(), c.auth.Agent.ID); err != nil {
			return err
		}
		return e(c)
	}
}

// authenticate looks the key up; holds call it again when something about their agent changed.
func (c *call) authenticate() error {
	auth, err := c.s.store.Authenticate(c.ctx(), c.key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return c.refuse()
	case err != nil:
		return err
	}
	if auth.Agent.Revoked {
		return revoked()
	}
	c.auth = auth
	return nil
}

// asAdmin lets the admin token through, and nothing else. Decided before the body is read.
func asAdmin(e endpoint) endpoint {
	return func(c *call) error {
		token, _ := bearer(c.Request)
		c.key = SumOf(token)
		if token == "" || c.s.cfg.AdminToken == (store.Sum{}) || subtle.ConstantTimeCompare(c.key[:], c.s.cfg.AdminToken[:]) != 1 {
			return c.refuse()
		}
		if wait, ok := c.s.perCredential.take(c.key); !ok {
			return throttled(wait, "too many calls with this credential")
		}
		return e(c)
	}
}

// forLink passes what may link: an enrolment token, or no credential for a re-link by proof.
func forLink(e endpoint) endpoint {
	return func(c *call) error {
		if wait, ok := c.s.links.take(address(c.Request)); !ok {
			return throttled(wait, "too many links from this address")
		}
		token, present := bearer(c.Request)
		if present {
			if !strings.HasPrefix(token, enrolPrefix) {
				return c.refuse()
			}
			c.key = SumOf(token)
		}
		return e(c)
	}
}

// forChallenge needs no credential, so it is limited by address only.
func forChallenge(e endpoint) endpoint {
	return func(c *call) error {
		if wait, ok := c.s.links.take(address(c.Request)); !ok {
			return throttled(wait, "too many links from this address")
		}
		return e(c)
	}
}

// RequireAdmin lets only requests with the admin token through to h; others get their 401.
func (s *Server) RequireAdmin(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.serve(w, r, "mock", asAdmin(func(c *call) error {
			c.wrote = true
			h.ServeHTTP(c.w, r)
			return nil
		}), true)
	})
}

// processID is the header that says which process polls.
func (c *call) processID() (string, error) {
	p := c.Header.Get("Agentd-Process-Id")
	if !validProcessID(p) {
		return "", invalid("Agentd-Process-Id: is required (at most 128 characters from A-Z a-z 0-9 _ - .)")
	}
	return p, nil
}

// currentProcess refuses every process but the one that linked with start last: two of them mean a copied identity,
// or an old process that hasn't noticed its successor.
func (c *call) currentProcess(process string) error {
	if cur := c.auth.Agent.ProcessID; cur != "" && cur != process {
		return identityConflict("another process has started with this identity and takes its work; " +
			"if that is another machine, its state directory is a copy: give one of them an identity of its own")
	}
	return nil
}

// retryHold is the pause asked for when there are too many holds: short, since holds end all the time.
const retryHold = 5 * time.Second
