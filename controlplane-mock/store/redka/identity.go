package redka

import (
	"context"
	"crypto/subtle"
	"time"

	redkadb "github.com/nalgeon/redka"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/rules"
)

// life is the span of something that ends by itself. In memory it ends on the monotonic clock. What is
// stored is for the next start, which can only go by the wall clock, and never grants more than TTL.
type life struct {
	TTL     time.Duration `json:"ttl"`
	Ends    time.Time     `json:"ends"` // wall clock
	expires time.Time     // with its monotonic reading; set by lives and wake
}

func lives(now time.Time, ttl time.Duration) life {
	return life{TTL: ttl, Ends: stamp(now.Add(ttl)), expires: now.Add(ttl)}
}

// wake gives a life that was read from disk its monotonic end.
func (l *life) wake(now time.Time) {
	left := min(max(l.Ends.Sub(now.Round(0)), 0), l.TTL)
	l.expires = now.Add(left)
}

func (l *life) over(now time.Time) bool { return !now.Before(l.expires) }

// nonce is the value of nonce/<sum>.
type nonce struct {
	life
	PublicKey []byte `json:"publicKey"`
}

// enrolment is the value of token/<sum>. Never changed once others can see it.
type enrolment struct {
	life
	rules.Enrolment
}

func nonceKey(s store.Sum) string { return "nonce/" + s.String() }
func tokenKey(s store.Sum) string { return "token/" + s.String() }

// maxNonces bounds what anybody without a credential can make us keep. Over it the oldest go first.
const maxNonces = 1 << 16

// PutNonce stores a nonce, and drops those that ended.
func (s *Store) PutNonce(ctx context.Context, sum store.Sum, publicKey []byte, ttl time.Duration) error {
	return s.state.apply(ctx, 0, func(tx *redkadb.Tx) error {
		now := time.Now()
		if err := s.dropNonces(tx, now); err != nil {
			return err
		}
		n := &nonce{life: lives(now, ttl), PublicKey: publicKey}
		if err := put(tx, nonceKey(sum), n); err != nil {
			return err
		}
		if _, err := tx.ZSet().Add(setNonces, sum.String(), float64(n.Ends.UnixMilli())); err != nil {
			return broken(err)
		}
		s.over.nonces[sum] = n
		return nil
	})
}

// dropNonces removes some of the oldest nonces if they ended or are too many. Two for each new
// one is enough to keep up.
func (s *Store) dropNonces(tx *redkadb.Tx, now time.Time) error {
	dropped := 0
	for _, sum := range s.mem.nonceAge {
		n := s.mem.nonces[sum]
		if _, changed := s.over.nonces[sum]; n == nil || changed {
			continue
		}
		if dropped == 2 || !n.over(now) && len(s.mem.nonces) < maxNonces {
			return nil
		}
		if err := s.dropNonce(tx, sum); err != nil {
			return err
		}
		dropped++
	}
	return nil
}

func (s *Store) dropNonce(tx *redkadb.Tx, sum store.Sum) error {
	if _, err := tx.Key().Delete(nonceKey(sum)); err != nil {
		return broken(err)
	}
	if _, err := tx.ZSet().Delete(setNonces, sum.String()); err != nil {
		return broken(err)
	}
	s.over.nonces[sum] = nil
	return nil
}

// publishNonce makes a new or taken nonce visible. Called with mu held.
func (s *Store) publishNonce(sum store.Sum, n *nonce) {
	m := &s.mem
	if n != nil {
		m.nonces[sum] = n
		m.nonceAge = append(m.nonceAge, sum)
		return
	}
	delete(m.nonces, sum)
	for len(m.nonceAge) > 0 && m.nonces[m.nonceAge[0]] == nil {
		m.nonceAge = m.nonceAge[1:]
	}
}

// TakeNonce uses a nonce up.
func (s *Store) TakeNonce(ctx context.Context, sum store.Sum, publicKey []byte) (bool, error) {
	taken := false
	err := s.state.apply(ctx, 0, func(tx *redkadb.Tx) error {
		n, changed := s.over.nonces[sum]
		if !changed {
			n = s.mem.nonces[sum]
		}
		// Another's attempt to use it must not use it up.
		if n == nil || n.over(time.Now()) || subtle.ConstantTimeCompare(n.PublicKey, publicKey) != 1 {
			return nil
		}
		taken = true
		return s.dropNonce(tx, sum)
	})
	return taken && err == nil, err
}

// PutToken stores an enrolment token, and drops those that ended.
func (s *Store) PutToken(ctx context.Context, t store.Token) error {
	return s.state.apply(ctx, 0, func(tx *redkadb.Tx) error {
		if t.AgentID != "" && s.agent(t.AgentID) == nil {
			return store.ErrNotFound
		}
		now := time.Now()
		for sum, old := range s.mem.tokens {
			if !old.over(now) {
				continue
			}
			if err := s.dropToken(tx, sum); err != nil {
				return err
			}
		}
		return s.putToken(tx, t.Sum, &enrolment{lives(now, t.TTL), rules.Enrolment{MaxUses: t.MaxUses, AgentID: t.AgentID}})
	})
}

func (s *Store) putToken(tx *redkadb.Tx, sum store.Sum, e *enrolment) error {
	if err := put(tx, tokenKey(sum), e); err != nil {
		return err
	}
	if _, err := tx.ZSet().Add(setTokens, sum.String(), float64(e.Ends.UnixMilli())); err != nil {
		return broken(err)
	}
	s.over.tokens[sum] = e
	return nil
}

func (s *Store) dropToken(tx *redkadb.Tx, sum store.Sum) error {
	if _, err := tx.Key().Delete(tokenKey(sum)); err != nil {
		return broken(err)
	}
	if _, err := tx.ZSet().Delete(setTokens, sum.String()); err != nil {
		return broken(err)
	}
	s.over.after = append(s.over.after, func(time.Time) { delete(s.mem.tokens, sum) })
	return nil
}

// token is the enrolment token as the changes so far have left it, or nil. For the leader.
func (s *Store) token(sum store.Sum, now time.Time) *enrolment {
	e := s.over.tokens[sum]
	if e == nil {
		e = s.mem.tokens[sum]
	}
	if e == nil || e.over(now) {
		return nil
	}
	return e
}
