package controlplane

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// topics tells subscribers that something about their job, log or agent may have changed. A subscription
// remembers one wake, so nothing is lost between subscribing and waiting, and many events are one.
type topics struct {
	mu   sync.Mutex
	subs map[string][]*subscription // guarded by mu; by key, few each
}

// subscription is one waiter's. The owner waits on wake and must close it.
type subscription struct {
	t    *topics
	keys []string
	wake chan struct{} // holds one
	news atomic.Bool   // since the owner asked last
}

func jobTopic(id string) string   { return "job:" + id }
func logTopic(id string) string   { return "log:" + id }
func agentTopic(id string) string { return "agent:" + id }

func (t *topics) subscribe(keys ...string) *subscription {
	return t.subscribeWith(make(chan struct{}, 1), keys...)
}

// subscribeWith wakes through a channel, which holds one, that there are other reasons for, too.
func (t *topics) subscribeWith(wake chan struct{}, keys ...string) *subscription {
	s := &subscription{t: t, keys: keys, wake: wake}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.subs == nil {
		t.subs = map[string][]*subscription{}
	}
	for _, k := range keys {
		t.subs[k] = append(t.subs[k], s)
	}
	return s
}

func (s *subscription) close() {
	s.t.mu.Lock()
	defer s.t.mu.Unlock()
	for _, k := range s.keys {
		s.t.subs[k] = slices.DeleteFunc(s.t.subs[k], func(other *subscription) bool { return other == s })
		if len(s.t.subs[k]) == 0 {
			delete(s.t.subs, k)
		}
	}
}

func (s *subscription) notify() {
	s.news.Store(true)
	notify(s.wake)
}

func (t *topics) publish(key string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range t.subs[key] {
		s.notify()
	}
}

// all lists every subscription once.
func (t *topics) all() []*subscription {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := map[*subscription]struct{}{}
	list := make([]*subscription, 0, len(t.subs))
	for _, subs := range t.subs {
		for _, s := range subs {
			if _, dup := seen[s]; !dup {
				seen[s] = struct{}{}
				list = append(list, s)
			}
		}
	}
	return list
}

// holds counts the requests that wait, in all and by agent.
type holds struct {
	max, perAgent int

	mu      sync.Mutex
	total   int            // guarded by mu
	byAgent map[string]int // guarded by mu
}

// enter takes a place; leave must be called if ok.
func (h *holds) enter(agent string) (ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.total >= h.max || agent != "" && h.byAgent[agent] >= h.perAgent {
		return false
	}
	h.total++
	if h.byAgent == nil {
		h.byAgent = map[string]int{}
	}
	h.byAgent[agent]++
	return true
}

func (h *holds) leave(agent string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.total--
	if h.byAgent[agent]--; h.byAgent[agent] == 0 {
		delete(h.byAgent, agent)
	}
}

func (h *holds) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.total
}

// resyncSpread is over how long waiters look again when events may have been lost: 2,000 of them at once would
// be a herd, and 200 ms is still soon.
const resyncSpread = 200 * time.Millisecond
