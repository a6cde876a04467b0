package controlplane

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"agentd/controlplane-mock/store"
)

// Run keeps the server alive until ctx ends: it watches the store for the holds, and reaps leases that ran out.
// When ctx ends, all holds end: polls with 204. Call it once. It returns after everything it started has ended.
func (s *Server) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.hub.dispatch(ctx) })
	wg.Go(func() { s.resyncLoop(ctx) })
	wg.Go(func() { s.watchLoop(ctx) })
	wg.Go(func() { s.reapLoop(ctx) })
	<-ctx.Done()
	s.stopOnce.Do(func() { close(s.stopping) })
	for _, sub := range s.topics.all() { // a hold that subscribes later sees it before it waits
		sub.notify()
	}
	return nil
}

// watchPause is the wait before a watch that failed is tried again: short, since holds are deaf meanwhile.
const watchPause = 200 * time.Millisecond

// watchLoop passes the store's events to whoever waits for them.
func (s *Server) watchLoop(ctx context.Context) {
	failing := false
	for ctx.Err() == nil {
		err := s.store.Watch(ctx, s.onEvent)
		if ctx.Err() != nil {
			return
		}
		if !failing {
			failing = true
			s.log.Warn("watch ended early", zap.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
		// What happened in between was not announced.
		s.onEvent(store.Event{Kind: store.EventResync})
	}
}

// onEvent must not block: it only sets flags and fills channels that have room.
func (s *Server) onEvent(e store.Event) {
	switch e.Kind {
	case store.EventJobPending:
		s.hub.offer(e.JobID, e.Wants)
		s.topics.publish(jobTopic(e.JobID))
	case store.EventJobChanged:
		s.topics.publish(jobTopic(e.JobID))
	case store.EventLogAppended:
		s.topics.publish(logTopic(e.JobID))
	case store.EventAgentChanged:
		s.topics.publish(agentTopic(e.AgentID))
	case store.EventResync:
		s.hub.lookAgain()
		select {
		case s.resync <- struct{}{}:
		default:
		}
	}
}

func (s *Server) resyncLoop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.resync:
			spread(ctx, s.topics.all(), (*subscription).notify)
		}
	}
}

// reapLoop ends attempts whose lease ran out. The first sweep comes one full TTL after the start, since agents
// couldn't renew while there was no server; the store itself spares the time in which it was away.
func (s *Server) reapLoop(ctx context.Context) {
	wait := s.leaseTTL()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		ttl := s.leaseTTL()
		wait = ttl / 4
		n, err := s.store.Reap(ctx, ttl)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			failing = true
			s.log.Error("reaper failed", zap.Error(err))
		case err == nil && failing:
			failing = false
			s.log.Info("reaper recovered")
		}
		if n > 0 {
			s.metrics.reaped.Add(float64(n))
			s.log.Info("leases reaped", zap.Int("count", n))
		}
	}
}

// storeHealth logs when the store stops serving requests and when it serves again, not each request. A route that failed
// shows it: others may get along with what is in memory.
type storeHealth struct {
	mu    sync.Mutex
	since time.Time           // guarded by mu; zero while all is well
	count int                 // guarded by mu
	on    map[string]struct{} // guarded by mu: the routes that failed since
}

func (h *storeHealth) failed(log *zap.Logger, route string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count++
	if h.since.IsZero() {
		h.since, h.on = time.Now(), map[string]struct{}{}
		log.Error("store failed", zap.String("route", route), zap.Error(err))
	}
	h.on[route] = struct{}{}
}

func (h *storeHealth) ok(log *zap.Logger, route string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, failed := h.on[route]; !failed {
		return
	}
	log.Info("store recovered", zap.Int("failures", h.count), zap.Duration("after", time.Since(h.since)))
	h.since, h.count, h.on = time.Time{}, 0, nil
}
