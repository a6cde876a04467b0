package redka

import (
	"context"
	"sync"

	"agentd/controlplane-mock/store"
)

// watchers are the functions that want to hear of changes. One process has the store, so a call is all.
type watchers struct {
	mu   sync.RWMutex // held for reading while functions are called, so that none is called after Watch returned
	next int
	all  map[int]func(store.Event)
}

func (w *watchers) tell(events []store.Event) {
	if len(events) == 0 {
		return
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	for _, f := range w.all {
		for _, e := range events {
			f(e)
		}
	}
}

// Watch calls f for each change until ctx ends.
func (s *Store) Watch(ctx context.Context, f func(store.Event)) error {
	w := &s.watchers
	w.mu.Lock()
	id := w.next
	w.next++
	if w.all == nil {
		w.all = map[int]func(store.Event){}
	}
	w.all[id] = f
	w.mu.Unlock()
	f(store.Event{Kind: store.EventResync}) // whatever changed before f was known
	<-ctx.Done()
	w.mu.Lock()
	delete(w.all, id)
	w.mu.Unlock()
	return nil
}
