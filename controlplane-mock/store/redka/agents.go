package redka

import (
	"cmp"
	"context"
	"crypto/subtle"
	"maps"
	"slices"
	"strconv"
	"time"

	redkadb "github.com/nalgeon/redka"

	"agentd/controlplane-mock/store"
)

// agent is the value of agent/<id>. Never changed once others can see it.
type agent struct {
	store.Agent
	Seq       int64    `json:"seq"`
	PublicKey []byte   `json:"publicKey"`
	Keys      []apiKey `json:"keys,omitempty"` // oldest first
}

// apiKey is one of an agent's API keys. It belongs to the process that linked for it.
type apiKey struct {
	life
	Sum       store.Sum `json:"sum"`
	ProcessID string    `json:"processId"`
	agentID   string
}

func agentKey(id string) string { return "agent/" + id }

// agent is the agent as the changes so far have left it, or nil. For the leader.
func (s *Store) agent(id string) *agent {
	if a := s.over.agents[id]; a != nil {
		return a
	}
	return s.mem.agents[id]
}

// owner is the agent whose public key that is now, or nil. For the leader.
func (s *Store) owner(publicKey []byte) *agent {
	for _, a := range s.over.agents { // of this group: few
		if subtle.ConstantTimeCompare(a.PublicKey, publicKey) == 1 {
			return a
		}
	}
	a := s.agent(s.mem.publicKey[string(publicKey)])
	if a == nil || subtle.ConstantTimeCompare(a.PublicKey, publicKey) != 1 {
		return nil // taken over in this group
	}
	return a
}

// putAgent writes a, and tells. For the leader.
func (s *Store) putAgent(tx *redkadb.Tx, a *agent) error {
	if seen, ok := s.lastSeen(a.ID); ok {
		a.LastSeen = seen
	}
	if err := put(tx, agentKey(a.ID), a); err != nil {
		return err
	}
	s.over.agents[a.ID] = a
	s.over.events = append(s.over.events, store.Event{Kind: store.EventAgentChanged, AgentID: a.ID})
	return nil
}

// publishAgent makes a changed agent visible. Called with mu held.
func (s *Store) publishAgent(a *agent) {
	m := &s.mem
	if old := m.agents[a.ID]; old != nil {
		delete(m.publicKey, string(old.PublicKey))
		for i := range old.Keys {
			delete(m.keys, old.Keys[i].Sum)
		}
	}
	m.agents[a.ID] = a
	m.publicKey[string(a.PublicKey)] = a.ID
	for i := range a.Keys {
		k := &a.Keys[i]
		k.agentID = a.ID
		m.keys[k.Sum] = k
	}
}

func (s *Store) lastSeen(id string) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.mem.seen[id]
	return t, ok
}

// Authenticate finds the agent of an API key.
func (s *Store) Authenticate(_ context.Context, key store.Sum) (store.Auth, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.Auth{}, store.ErrStopped
	}
	k := s.mem.keys[key]
	// The map compares sums of secrets, which tells an attacker's clock nothing of a secret; the
	// comparison that decides takes the same time anyway.
	if k == nil || subtle.ConstantTimeCompare(k.Sum[:], key[:]) != 1 || k.over(time.Now()) {
		return store.Auth{}, store.ErrNotFound
	}
	return store.Auth{Agent: s.show(s.mem.agents[k.agentID]), ProcessID: k.ProcessID}, nil
}

// show is an agent for people to read. Called with mu held.
func (s *Store) show(a *agent) store.Agent {
	out := a.Agent
	if t, ok := s.mem.seen[a.ID]; ok {
		out.LastSeen = t
	}
	return out
}

// Touch notes that the agent was seen. It reaches the disk with the agent's next change and at Close.
func (s *Store) Touch(_ context.Context, agentID string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mem.agents[agentID] == nil {
		return store.ErrNotFound
	}
	s.mem.seen[agentID] = stamp(time.Now())
	return nil
}

// Agent finds an agent by id.
func (s *Store) Agent(_ context.Context, id string) (store.Agent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.mem.agents[id]
	if a == nil {
		return store.Agent{}, store.ErrNotFound
	}
	return s.show(a), nil
}

// Agents lists agents, oldest first. The cursor is the last one's number.
func (s *Store) Agents(_ context.Context, after string, limit int) ([]store.Agent, string, error) {
	from := int64(0)
	if after != "" {
		var err error
		if from, err = strconv.ParseInt(after, 10, 64); err != nil {
			return nil, "", store.ErrNotFound
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.SortedFunc(maps.Values(s.mem.agents), func(a, b *agent) int { return cmp.Compare(a.Seq, b.Seq) })
	i, _ := slices.BinarySearchFunc(all, from+1, func(a *agent, n int64) int { return cmp.Compare(a.Seq, n) })
	var items []store.Agent
	for n, a := range all[i:] {
		if limit > 0 && n == limit {
			return items, strconv.FormatInt(all[i+n-1].Seq, 10), nil
		}
		items = append(items, s.show(a))
	}
	return items, "", nil
}

// SetRevoked shuts an agent out, or lets it in again.
func (s *Store) SetRevoked(ctx context.Context, id string, revoked bool) (store.Agent, error) {
	return s.changeAgent(ctx, id, func(a *agent) { a.Revoked = revoked })
}

// ExpireKeys ends all API keys of an agent.
func (s *Store) ExpireKeys(ctx context.Context, id string) (store.Agent, error) {
	return s.changeAgent(ctx, id, func(a *agent) { a.Keys = nil })
}

func (s *Store) changeAgent(ctx context.Context, id string, f func(a *agent)) (store.Agent, error) {
	err := s.state.apply(ctx, 0, func(tx *redkadb.Tx) error {
		old := s.agent(id)
		if old == nil {
			return store.ErrNotFound
		}
		a := *old
		a.Keys = slices.Clone(old.Keys)
		f(&a)
		return s.putAgent(tx, &a)
	})
	if err != nil {
		return store.Agent{}, err
	}
	return s.Agent(ctx, id)
}
