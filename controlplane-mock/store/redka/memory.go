package redka

import (
	"maps"
	"slices"
	"time"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/rules"
)

// memory is what the store holds of state.db beside the file. Everything in it is what the last
// commit left, but for leases, which live here only. Store.mu guards it; only the leader of a group of
// changes writes to anything but leases, and may therefore read the rest without the lock.
type memory struct {
	seq     int64
	jobs    map[string]*job // those not settled
	pending pending
	leases  map[string]*lease // by job: of its live attempt
	offers  map[poll]string   // job offered to a poll and not yet accepted

	agents    map[string]*agent
	publicKey map[string]string     // agent id by public key
	keys      map[store.Sum]*apiKey // all agents'
	seen      map[string]time.Time  // when an agent was last seen, by id
	tokens    map[store.Sum]*enrolment
	nonces    map[store.Sum]*nonce
	nonceAge  []store.Sum // oldest first; may hold some that were taken
}

func newMemory() memory {
	return memory{
		jobs: map[string]*job{}, pending: pending{}, leases: map[string]*lease{}, offers: map[poll]string{},
		agents: map[string]*agent{}, publicKey: map[string]string{}, keys: map[store.Sum]*apiKey{},
		seen: map[string]time.Time{}, tokens: map[store.Sum]*enrolment{}, nonces: map[store.Sum]*nonce{},
	}
}

// poll identifies one poll of one agent.
type poll struct{ agentID, pollID string }

// job is never changed once others can see it: a change makes a new one.
type job struct {
	spec      *store.NewJob // without Payload and Env, which may be large
	seq       int64
	createdAt time.Time
	state     rules.State
	bucket    bucketKey
}

// with is j with its state replaced.
func (j *job) with(st rules.State) *job {
	c := *j
	c.state = st
	return &c
}

// lease is the end of a live attempt's lease on the monotonic clock.
type lease struct {
	attempt int64
	until   time.Time // zero after a start: what counts then is Store.spareFrom
	spooled int64
}

// overlay is what the changes of the group under way have made so far: those behind them see it,
// the others don't until it is committed. Owned by the leader.
type overlay struct {
	seq    int64
	jobs   map[string]*job
	agents map[string]*agent
	tokens map[store.Sum]*enrolment
	nonces map[store.Sum]*nonce  // nil: taken
	after  []func(now time.Time) // called after the commit, with Store.mu held
	events []store.Event
}

// begin, commit and abort are the committer's hooks around a group of state.db.
func (s *Store) begin() {
	s.over = overlay{
		seq: s.mem.seq, jobs: map[string]*job{}, agents: map[string]*agent{},
		tokens: map[store.Sum]*enrolment{}, nonces: map[store.Sum]*nonce{},
	}
}

func (s *Store) abort() {
	s.mu.Lock()
	clear(s.busy)
	s.mu.Unlock()
	s.over = overlay{}
}

func (s *Store) commit() {
	now := time.Now()
	s.mu.Lock()
	s.mem.seq = s.over.seq
	for id, j := range s.over.jobs {
		s.publishJob(id, j)
	}
	for _, a := range s.over.agents {
		s.publishAgent(a)
	}
	maps.Copy(s.mem.tokens, s.over.tokens)
	for sum, n := range s.over.nonces {
		s.publishNonce(sum, n)
	}
	for _, f := range s.over.after {
		f(now)
	}
	clear(s.busy)
	s.mu.Unlock()
	events := s.over.events
	s.over = overlay{}
	s.watchers.tell(events)
}

// publishJob makes a changed job visible. Called with mu held.
func (s *Store) publishJob(id string, j *job) {
	m := &s.mem
	if old := m.jobs[id]; old != nil {
		if old.state.Status == store.Pending {
			m.pending.remove(old)
		}
		if a := old.state.Live(); a != nil {
			delete(m.offers, poll{a.AgentID, a.PollID})
		}
	}
	if j.state.Status.Settled() {
		delete(m.jobs, id)
		delete(m.leases, id)
		return
	}
	m.jobs[id] = j
	a := j.state.Live()
	if a == nil {
		delete(m.leases, id)
		m.pending.add(j)
		return
	}
	if a.State == store.AttemptOffered {
		m.offers[poll{a.AgentID, a.PollID}] = id
	}
	if l := m.leases[id]; l == nil || l.attempt != a.Number {
		// Its end is set by whoever made the offer; on load there is none.
		m.leases[id] = &lease{attempt: a.Number}
	}
}

// pending indexes the pending jobs, so that a lease looks at one job for each kind of demand
// and not at each job: by type, then by what the job asks of its agent.
type pending map[string]map[bucketKey]*bucket

// bucketKey is what jobs of one bucket have in common. labels is canonical JSON.
type bucketKey struct{ agentID, labels string }

type bucket struct {
	labels map[string]string
	jobs   []*job // oldest first
}

func (p pending) add(j *job) {
	byKey := p[j.spec.Type]
	if byKey == nil {
		byKey = map[bucketKey]*bucket{}
		p[j.spec.Type] = byKey
	}
	b := byKey[j.bucket]
	if b == nil {
		b = &bucket{labels: j.spec.Labels}
		byKey[j.bucket] = b
	}
	i, _ := b.find(j)
	b.jobs = slices.Insert(b.jobs, i, j)
}

func (p pending) remove(j *job) {
	byKey := p[j.spec.Type]
	b := byKey[j.bucket]
	if b == nil {
		return
	}
	if i, ok := b.find(j); ok {
		if i == 0 {
			b.jobs[0] = nil
			b.jobs = b.jobs[1:] // the usual end, and a delete would move all the others
		} else {
			b.jobs = slices.Delete(b.jobs, i, i+1)
		}
	}
	if len(b.jobs) == 0 {
		delete(byKey, j.bucket)
		if len(byKey) == 0 {
			delete(p, j.spec.Type)
		}
	}
}

func (b *bucket) find(j *job) (int, bool) {
	return slices.BinarySearchFunc(b.jobs, j, func(a, c *job) int { return int(a.seq - c.seq) })
}

// oldest is the oldest job that an agent like that may run and skip doesn't refuse, or nil.
func (p pending) oldest(params *store.LeaseParams, skip func(*job) bool) *job {
	var best *job
	for _, typ := range params.Types {
		for key, b := range p[typ] {
			if key.agentID != "" && key.agentID != params.AgentID || !hasAll(params.Labels, b.labels) {
				continue
			}
			for _, j := range b.jobs {
				if best != nil && best.seq < j.seq {
					break
				}
				if !skip(j) {
					best = j
					break
				}
			}
		}
	}
	return best
}

func hasAll(have, want map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}
