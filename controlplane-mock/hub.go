package controlplane

import (
	"container/list"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"agentd/controlplane-mock/store"
)

// hub hands pending jobs to waiting polls. A job wakes one poll, not all that match: of a hundred polls that race
// for one job, ninety-nine would have bothered the store for nothing.
//
// Waking one is only right if a wake can't be wasted. So a woken poll owes the job an answer: if it leaves without
// having looked (client gone, time over), or its look brought another, older job, the wake goes on to the
// next poll that matches. If its look found nothing, the job is someone else's already, and the wake ends there.
type hub struct {
	store store.Store

	mu      sync.Mutex
	waiters map[string]*list.List   // guarded by mu; by type, those that wait for longest first; of *waiter
	pending map[string]*store.Wants // guarded by mu; jobs to find a poll for; nil: what they want isn't known
	resync  bool                    // guarded by mu
	kick    chan struct{}           // holds one: pending or resync is set
}

// waiter is one held poll. The poll's goroutine owns it but for what says otherwise.
type waiter struct {
	h      *hub
	agent  string
	labels map[string]string
	types  []string
	wake   chan<- struct{}
	places []*list.Element // guarded by h.mu; one a type, in their order; none while it isn't in the lists
	owed   []string        // guarded by h.mu; the jobs that it was woken for and has not taken
}

// maxPending bounds the jobs to find a poll for; beyond it all polls look.
const maxPending = 1 << 16

func newHub(s store.Store) *hub {
	return &hub{store: s, waiters: map[string]*list.List{}, pending: map[string]*store.Wants{}, kick: make(chan struct{}, 1)}
}

// newWaiter makes one that isn't in the lists yet; wake, which holds one, tells that it is to look.
func (h *hub) newWaiter(agent string, types []string, wake chan<- struct{}) *waiter {
	types = slices.Compact(slices.Sorted(slices.Values(types)))
	return &waiter{h: h, agent: agent, types: types, wake: wake}
}

func (w *waiter) insert() {
	w.places = make([]*list.Element, len(w.types))
	for i, t := range w.types {
		l := w.h.waiters[t]
		if l == nil {
			l = list.New()
			w.h.waiters[t] = l
		}
		w.places[i] = l.PushBack(w)
	}
}

func (w *waiter) remove() {
	for i, e := range w.places {
		t := w.types[i]
		l := w.h.waiters[t]
		l.Remove(e)
		if l.Len() == 0 {
			delete(w.h.waiters, t)
		}
	}
	w.places = nil
}

// enlist puts a waiter in the lists, or back, with the labels that its agent has now. From then on it can be woken, so the look comes
// after this. The jobs that it was woken for meanwhile are its caller's to answer.
func (w *waiter) enlist(labels map[string]string) (owed []string) {
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	w.remove()
	w.labels = labels
	w.insert()
	owed, w.owed = w.owed, nil
	return owed
}

// leave ends the wait. got is the job that the poll leaves with, "" for none; owed are jobs it was woken for and hasn't answered.
func (w *waiter) leave(got string, owed ...string) {
	w.h.mu.Lock()
	w.remove()
	owed = append(owed, w.owed...)
	w.h.mu.Unlock()
	for _, job := range owed {
		if job != got {
			w.h.offer(job, nil)
		}
	}
}

// offer asks the hub to find a poll for a job; what it wants may be left to the store. It never blocks.
func (h *hub) offer(job string, wants *store.Wants) {
	h.mu.Lock()
	if len(h.waiters) == 0 {
		// Whoever comes looks first, and finds it.
		h.mu.Unlock()
		return
	}
	if len(h.pending) < maxPending {
		if wants != nil || h.pending[job] == nil {
			h.pending[job] = wants
		}
	} else {
		h.resync = true
	}
	h.mu.Unlock()
	h.signal()
}

// lookAgain makes every poll look: events may have been lost.
func (h *hub) lookAgain() {
	h.mu.Lock()
	h.resync = true
	h.mu.Unlock()
	h.signal()
}

func (h *hub) signal() {
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

// dispatch finds polls for jobs until ctx ends.
func (h *hub) dispatch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.kick:
		}
		h.mu.Lock()
		jobs, resync := h.pending, h.resync
		h.pending, h.resync = map[string]*store.Wants{}, false
		h.mu.Unlock()
		if resync {
			h.wakeAll(ctx)
			continue
		}
		for id, wants := range jobs {
			if !h.wakeOne(ctx, id, wants) {
				h.lookAgain()
				break
			}
		}
	}
}

// wakeOne wakes the poll that has waited longest among those that match. It is false if the store couldn't say what the job wants.
func (h *hub) wakeOne(ctx context.Context, id string, wants *store.Wants) bool {
	if wants == nil {
		job, err := h.store.Job(ctx, id)
		switch {
		case errors.Is(err, store.ErrNotFound), err == nil && job.Status != store.Pending:
			return true
		case err != nil:
			return ctx.Err() != nil
		}
		wants = store.WantsOf(&job.NewJob)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.waiters[wants.Type]
	if l == nil {
		return true
	}
	for e := l.Front(); e != nil; e = e.Next() {
		w := e.Value.(*waiter) //nolint:forcetypeassert // the list holds nothing else
		if w.matches(wants) {
			w.remove()
			w.owed = append(w.owed, id)
			notify(w.wake)
			return true
		}
	}
	return true
}

func (w *waiter) matches(job *store.Wants) bool {
	return (job.AgentID == "" || job.AgentID == w.agent) && hasLabels(w.labels, job.Labels)
}

func hasLabels(has, want map[string]string) bool {
	for k, v := range want {
		if got, ok := has[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// wakeAll makes all waiting polls look, spread over a moment.
func (h *hub) wakeAll(ctx context.Context) {
	h.mu.Lock()
	all := map[*waiter]struct{}{}
	for _, l := range h.waiters {
		for e := l.Front(); e != nil; e = e.Next() {
			all[e.Value.(*waiter)] = struct{}{} //nolint:forcetypeassert // the list holds nothing else
		}
	}
	h.mu.Unlock()
	spread(ctx, slices.Collect(maps.Keys(all)), func(w *waiter) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(w.places) > 0 {
			w.remove()
			notify(w.wake)
		}
	})
}

// spread calls f for each item, evenly over resyncSpread, in at most twenty steps.
func spread[T any](ctx context.Context, items []T, f func(T)) {
	const steps = 20
	size := max(1, (len(items)+steps-1)/steps)
	for part := range slices.Chunk(items, size) {
		for _, item := range part {
			f(item)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(resyncSpread / steps):
		}
	}
}
