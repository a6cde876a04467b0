package postgres

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"agentd/controlplane-mock/store"
)

// keyCache remembers whose API keys are, so that a heartbeat needs no statement for that. It does so only while changes
// of agents are heard: each change makes it forget that agent, and a lost connection everything. What it can be late by is a
// notification's way, or, when the connection dies silently, slowPoll and connectTime.
type keyCache struct {
	mu      sync.Mutex
	heard   int                   // guarded by mu: listening connections
	changes int64                 // guarded by mu: counts what was forgotten
	byKey   map[store.Sum]keyInfo // guarded by mu
	byAgent map[string][]store.Sum
}

type keyInfo struct {
	auth  store.Auth
	until time.Time // monotonic: the key expires
}

// maxKeyCache is how many keys are remembered: those of more agents than one instance has.
const maxKeyCache = 1 << 16

// keep says that changes are heard until the returned function is called.
func (c *keyCache) keep() (end func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heard++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.heard--
		c.forgetAll()
	}
}

func (c *keyCache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgetAll()
}

// forgetAll is called with mu held.
func (c *keyCache) forgetAll() {
	c.changes++
	c.byKey, c.byAgent = nil, nil
}

func (c *keyCache) forget(agentID string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
	for _, key := range c.byAgent[agentID] {
		delete(c.byKey, key)
	}
	delete(c.byAgent, agentID)
}

// get finds a key. Without one, version is what put wants.
func (c *keyCache) get(key store.Sum) (auth store.Auth, version int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.byKey[key]
	return k.auth, c.changes, ok && time.Now().Before(k.until)
}

// put remembers a key that was read after version was got: if anything changed since, what was read may be old.
func (c *keyCache) put(key store.Sum, auth store.Auth, until time.Time, version int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heard == 0 || version != c.changes {
		return
	}
	if len(c.byKey) >= maxKeyCache {
		c.forgetAll()
	}
	if c.byKey == nil {
		c.byKey, c.byAgent = map[store.Sum]keyInfo{}, map[string][]store.Sum{}
	}
	if _, known := c.byKey[key]; !known {
		c.byAgent[auth.Agent.ID] = append(c.byAgent[auth.Agent.ID], key)
	}
	c.byKey[key] = keyInfo{auth, until}
}

// Authenticate finds the agent of an API key. The index compares sums of secrets, which tells an attacker's
// clock nothing of a secret.
func (s *Store) Authenticate(ctx context.Context, key store.Sum) (store.Auth, error) {
	ctx, ended, err := s.begin(ctx)
	if err != nil {
		return store.Auth{}, err
	}
	defer ended()
	auth, version, ok := s.keys.get(key)
	if ok {
		return auth, nil
	}
	var a agent
	var life int64
	asked := time.Now()
	err = a.scan(s.pool.QueryRow(ctx, "select "+agentColumns+`, k.process_id, (extract(epoch from k.expires - clock_timestamp()) * 1000000)::bigint
		from api_keys k join agents a on a.id = k.agent_id where k.sum = $1 and k.expires > clock_timestamp()`, key[:]), &auth.ProcessID, &life)
	if err != nil {
		return store.Auth{}, wrap(err)
	}
	auth.Agent = a.Agent
	s.keys.put(key, auth, asked.Add(time.Duration(life)*time.Microsecond), version)
	return auth, nil
}

const (
	// touchEvery is how old a stamp for people to read may be: each is a row written, and whoever polls is quiet for a
	// minute anyway.
	touchEvery = 10 * time.Second
	// maxTouched is how many agents' stamps are remembered.
	maxTouched = 1 << 16
)

// touched remembers who was stamped when.
type touched struct {
	mu     sync.Mutex
	at     map[string]time.Time // guarded by mu
	queued map[string]struct{}  // guarded by mu: not yet written
}

// Touch notes that the agent was seen. It is written a second later, together with others.
func (s *Store) Touch(ctx context.Context, agentID string) error {
	_, ended, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer ended()
	t := &s.seen
	t.mu.Lock()
	defer t.mu.Unlock()
	if at, ok := t.at[agentID]; ok && time.Since(at) < touchEvery {
		return nil
	}
	if t.at == nil || len(t.at) >= maxTouched {
		t.at = map[string]time.Time{}
	}
	if t.queued == nil {
		t.queued = map[string]struct{}{}
	}
	t.at[agentID], t.queued[agentID] = time.Now(), struct{}{}
	s.stamps.add(agentID, false)
	return nil
}

// stamp writes when agents were seen. It may fail: the next call of each comes soon.
func (s *Store) stamp([]string) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	_ = s.writeStamps(ctx)
}

// writeStamps writes those that are queued.
func (s *Store) writeStamps(ctx context.Context) error {
	s.seen.mu.Lock()
	ids := slices.Collect(maps.Keys(s.seen.queued))
	s.seen.queued = nil
	s.seen.mu.Unlock()
	if len(ids) == 0 {
		return nil
	}
	// In order, as everywhere that several rows are taken.
	_, err := s.lazy.Exec(ctx, `with seen as (select id from agents where id = any ($1) order by id for no key update)
		update agents a set last_seen = clock_timestamp() from seen where a.id = seen.id`, ids)
	return err
}
