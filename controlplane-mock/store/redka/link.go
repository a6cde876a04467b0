package redka

import (
	"context"
	"crypto/subtle"
	"encoding/hex"
	"maps"
	"slices"
	"time"

	redkadb "github.com/nalgeon/redka"

	"agentd/controlplane-mock/store"
)

// maxKeys bounds the API keys of one agent that is restarted over and over. Over it the oldest goes.
const maxKeys = 64

// Link settles who an agent is.
func (s *Store) Link(ctx context.Context, p store.LinkParams) (store.Linked, error) {
	var out store.Linked
	err := s.state.apply(ctx, 0, func(tx *redkadb.Tx) error {
		now := time.Now()
		old, err := s.identify(tx, &p, now)
		if err != nil {
			return err
		}
		a, err := s.admit(tx, old, &p, now)
		if err != nil {
			return err
		}
		s.over.after = append(s.over.after, func(time.Time) { s.mem.seen[a.ID] = stamp(now) })
		out = store.Linked{Agent: a.Agent, First: p.Token != nil}
		return nil
	})
	if err != nil {
		return store.Linked{}, err
	}
	return out, nil
}

// identify decides which agent links: nil is a new one. A token's use is noted last, so that
// whoever is refused has used nothing.
func (s *Store) identify(tx *redkadb.Tx, p *store.LinkParams, now time.Time) (*agent, error) {
	if p.Token == nil {
		return s.byProof(p)
	}
	t := s.token(*p.Token, now)
	if t == nil {
		return nil, store.ErrDenied
	}
	who, err := s.byToken(p, t)
	if err != nil {
		return nil, err
	}
	if who != nil && who.Revoked {
		return nil, store.ErrRevoked
	}
	id := p.NewAgentID
	if who != nil {
		id = who.ID
	}
	key := hex.EncodeToString(p.PublicKey)
	if t.UsedBy[key] == id {
		return who, nil // the answer was lost: not another use
	}
	if len(t.UsedBy) >= t.MaxUses {
		return nil, store.ErrDenied
	}
	used := *t
	used.UsedBy = maps.Clone(t.UsedBy)
	if used.UsedBy == nil {
		used.UsedBy = map[string]string{}
	}
	used.UsedBy[key] = id
	return who, s.putToken(tx, *p.Token, &used)
}

// byProof is a re-link: a known id with its known key.
func (s *Store) byProof(p *store.LinkParams) (*agent, error) {
	a := s.agent(p.AgentID)
	switch {
	case a == nil:
		return nil, store.ErrDenied
	case subtle.ConstantTimeCompare(a.PublicKey, p.PublicKey) != 1:
		return nil, store.ErrIdentity
	case a.Revoked:
		return nil, store.ErrRevoked
	}
	return a, nil
}

// byToken is a first link, a repeated one, or a take-over.
func (s *Store) byToken(p *store.LinkParams, t *enrolment) (*agent, error) {
	owner := s.owner(p.PublicKey)
	if t.AgentID != "" {
		if owner != nil && owner.ID != t.AgentID || p.AgentID != "" && p.AgentID != t.AgentID {
			return nil, store.ErrDenied
		}
		// A key pair that this token let in and that was since put out doesn't get in by it again.
		if owner == nil && t.UsedBy[hex.EncodeToString(p.PublicKey)] != "" {
			return nil, store.ErrDenied
		}
		return s.agent(t.AgentID), nil
	}
	switch {
	case owner != nil && p.AgentID != "" && p.AgentID != owner.ID:
		if s.agent(p.AgentID) != nil {
			return nil, store.ErrIdentity
		}
		return nil, store.ErrDenied
	case owner != nil:
		return owner, nil
	case p.AgentID != "":
		if s.agent(p.AgentID) != nil {
			return nil, store.ErrIdentity
		}
		return nil, store.ErrDenied
	case t.UsedBy[hex.EncodeToString(p.PublicKey)] != "":
		return nil, store.ErrDenied // as above
	}
	return nil, nil //nolint:nilnil // a new agent
}

// admit writes the linked agent with its new API key.
func (s *Store) admit(tx *redkadb.Tx, old *agent, p *store.LinkParams, now time.Time) (*agent, error) {
	var a agent
	if old == nil {
		s.over.seq++
		a = agent{Seq: s.over.seq, PublicKey: p.PublicKey}
		a.ID, a.CreatedAt = p.NewAgentID, stamp(now)
		if err := put(tx, metaSeq, a.Seq); err != nil {
			return nil, err
		}
		if _, err := tx.ZSet().Add(setAgents, a.ID, float64(a.Seq)); err != nil {
			return nil, broken(err)
		}
	} else {
		a = *old
		a.Keys = slices.Clone(old.Keys)
		if subtle.ConstantTimeCompare(a.PublicKey, p.PublicKey) != 1 {
			a.PublicKey, a.Keys = p.PublicKey, nil // taken over: the old key pair and its API keys end at once
		}
	}
	a.AgentInfo = p.Info
	if p.Start {
		a.ProcessID = p.ProcessID
	}
	for i := range a.Keys {
		// Calls in flight still succeed; another process's keys are none of this one's business.
		if k := &a.Keys[i]; k.ProcessID == p.ProcessID && k.expires.After(now.Add(p.KeyOverlap)) {
			k.life = lives(now, p.KeyOverlap)
		}
	}
	a.Keys = slices.DeleteFunc(a.Keys, func(k apiKey) bool { return k.over(now) || k.Sum == p.Key })
	if len(a.Keys) >= maxKeys {
		a.Keys = slices.Delete(a.Keys, 0, len(a.Keys)-maxKeys+1)
	}
	a.Keys = append(a.Keys, apiKey{life: lives(now, p.KeyTTL), Sum: p.Key, ProcessID: p.ProcessID})
	a.LastSeen = stamp(now)
	return &a, s.putAgent(tx, &a)
}
