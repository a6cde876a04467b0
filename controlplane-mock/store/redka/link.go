package redka

import (
	"cmp"
	"context"
	"crypto/subtle"
	"slices"
	"time"

	redkadb "github.com/nalgeon/redka"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/rules"
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

// identify decides which agent links: nil is a new one.
func (s *Store) identify(tx *redkadb.Tx, p *store.LinkParams, now time.Time) (*agent, error) {
	facts := rules.LinkFacts{Owner: s.owner(p.PublicKey).party(), Named: s.agent(p.AgentID).party()}
	var t *enrolment
	if p.Token != nil {
		if t = s.token(*p.Token, now); t != nil {
			facts.Token, facts.Bound = &t.Enrolment, s.agent(t.AgentID).party()
		}
	}
	id, use, err := rules.Identify(p, facts)
	if err != nil {
		return nil, err
	}
	if use {
		used := *t
		used.Enrolment = t.Use(p, cmp.Or(id, p.NewAgentID))
		if err := s.putToken(tx, *p.Token, &used); err != nil {
			return nil, err
		}
	}
	return s.agent(id), nil
}

func (a *agent) party() *rules.Party {
	if a == nil {
		return nil
	}
	return &rules.Party{ID: a.ID, PublicKey: a.PublicKey, Revoked: a.Revoked}
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
