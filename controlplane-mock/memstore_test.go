package controlplane

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/rules"
)

// memStore keeps everything in memory, so that tests about time can run in a bubble.
// fail, when set, is what every method answers.
type memStore struct {
	mu       sync.Mutex
	fail     error
	leases   int // calls of Lease: what a herd would show in
	nonces   map[store.Sum]string
	tokens   map[store.Sum]*memToken
	agents   map[string]*memAgent
	keys     map[store.Sum]*memKey
	jobs     []*memJob
	watchers map[int]func(store.Event)
	seq      int
	rest     time.Time
	deaf     bool // no events
}

type memToken struct {
	store.Token
	used int
	by   map[string]bool // public keys that used it
	ends time.Time
}

type memAgent struct {
	store.Agent
	pub []byte
}

type memKey struct {
	agent, process string
	ends           time.Time
}

type memJob struct {
	n       store.NewJob
	s       rules.State
	ends    time.Time
	created time.Time
	logs    map[int64][]store.LogBatch
}

func newMemStore() *memStore {
	return &memStore{nonces: map[store.Sum]string{}, tokens: map[store.Sum]*memToken{}, agents: map[string]*memAgent{}, keys: map[store.Sum]*memKey{}, watchers: map[int]func(store.Event){}}
}

func (m *memStore) ServerID(context.Context) (string, error) { return "srv_1", m.fault() }
func (m *memStore) Secret(context.Context, string) ([]byte, error) {
	return bytes.Repeat([]byte{7}, 32), m.fault()
}
func (m *memStore) Ping(context.Context) error { return m.fault() }
func (m *memStore) Close() error               { return nil }
func (m *memStore) Rest(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rest = time.Now().Add(d)
}

func (m *memStore) fault() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fail
}

func (m *memStore) setFault(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = err
}

func (m *memStore) leaseCalls() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leases
}

// Watch: events are called with mu held; onEvent must not come back to the store, and doesn't block.
func (m *memStore) Watch(ctx context.Context, f func(store.Event)) error {
	m.mu.Lock()
	m.seq++
	id := m.seq
	m.watchers[id] = f
	m.mu.Unlock()
	<-ctx.Done()
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.watchers, id)
	return nil
}

func (m *memStore) tell(e store.Event) {
	if m.deaf {
		return
	}
	for _, f := range m.watchers {
		f(e)
	}
}

func (m *memStore) PutNonce(_ context.Context, nonce store.Sum, pub []byte, _ time.Duration) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nonces[nonce] = string(pub)
	return m.fail
}

func (m *memStore) TakeNonce(_ context.Context, nonce store.Sum, pub []byte) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	got, ok := m.nonces[nonce]
	delete(m.nonces, nonce)
	return ok && got == string(pub), m.fail
}

func (m *memStore) PutToken(_ context.Context, t store.Token) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.AgentID != "" && m.agents[t.AgentID] == nil {
		return store.ErrNotFound
	}
	m.tokens[t.Sum] = &memToken{Token: t, by: map[string]bool{}, ends: time.Now().Add(t.TTL)}
	return m.fail
}

func (m *memStore) Link(_ context.Context, p store.LinkParams) (store.Linked, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var a *memAgent
	for _, x := range m.agents {
		if bytes.Equal(x.pub, p.PublicKey) {
			a = x
		}
	}
	first := false
	if p.Token != nil {
		t := m.tokens[*p.Token]
		switch {
		case t == nil, time.Now().After(t.ends), t.used >= t.MaxUses && !t.by[string(p.PublicKey)]:
			return store.Linked{}, store.ErrDenied
		case a != nil && t.AgentID != "" && t.AgentID != a.ID:
			return store.Linked{}, store.ErrDenied
		}
		if !t.by[string(p.PublicKey)] {
			t.by[string(p.PublicKey)] = true
			t.used++
		}
		if t.AgentID != "" && a == nil {
			a = m.agents[t.AgentID]
			a.pub = p.PublicKey
			maps.DeleteFunc(m.keys, func(_ store.Sum, k *memKey) bool { return k.agent == a.ID })
		}
		if a == nil {
			a = &memAgent{Agent: store.Agent{ID: p.NewAgentID, CreatedAt: time.Now()}, pub: p.PublicKey}
			m.agents[a.ID] = a
		}
		first = true
	} else {
		known := m.agents[p.AgentID]
		switch {
		case known == nil:
			return store.Linked{}, store.ErrDenied
		case a != known:
			return store.Linked{}, store.ErrIdentity
		}
	}
	if a.Revoked {
		return store.Linked{}, store.ErrRevoked
	}
	a.AgentInfo = p.Info
	if p.Start {
		a.ProcessID = p.ProcessID
	}
	for _, k := range m.keys {
		if end := time.Now().Add(p.KeyOverlap); k.agent == a.ID && k.process == p.ProcessID && k.ends.After(end) {
			k.ends = end
		}
	}
	m.keys[p.Key] = &memKey{agent: a.ID, process: p.ProcessID, ends: time.Now().Add(p.KeyTTL)}
	m.tell(store.Event{Kind: store.EventAgentChanged, AgentID: a.ID})
	return store.Linked{Agent: a.Agent, First: first}, m.fail
}

func (m *memStore) Authenticate(_ context.Context, key store.Sum) (store.Auth, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.keys[key]
	if m.fail != nil {
		return store.Auth{}, m.fail
	}
	if k == nil || time.Now().After(k.ends) {
		return store.Auth{}, store.ErrNotFound
	}
	return store.Auth{Agent: m.agents[k.agent].Agent, ProcessID: k.process}, nil
}

func (m *memStore) Touch(_ context.Context, id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.agents[id].LastSeen = time.Now()
	return m.fail
}

func (m *memStore) Agent(_ context.Context, id string) (store.Agent, error) {
	return m.changeAgent(id, func(*memAgent) {})
}

func (m *memStore) changeAgent(id string, f func(*memAgent)) (store.Agent, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	a := m.agents[id]
	if a == nil {
		return store.Agent{}, store.ErrNotFound
	}
	f(a)
	return a.Agent, m.fail
}

func (m *memStore) Agents(_ context.Context, after string, limit int) ([]store.Agent, string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var items []store.Agent
	for _, id := range slices.Sorted(maps.Keys(m.agents)) {
		if id <= after {
			continue
		}
		if len(items) == limit {
			return items, items[limit-1].ID, nil
		}
		items = append(items, m.agents[id].Agent)
	}
	return items, "", m.fail
}

func (m *memStore) SetRevoked(_ context.Context, id string, revoked bool) (store.Agent, error) {
	return m.changeAgent(id, func(a *memAgent) {
		a.Revoked = revoked
		m.tell(store.Event{Kind: store.EventAgentChanged, AgentID: id})
	})
}

func (m *memStore) ExpireKeys(_ context.Context, id string) (store.Agent, error) {
	return m.changeAgent(id, func(a *memAgent) {
		maps.DeleteFunc(m.keys, func(_ store.Sum, k *memKey) bool { return k.agent == id })
		m.tell(store.Event{Kind: store.EventAgentChanged, AgentID: id})
	})
}
