package controlplane

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentd/controlplane-mock/store"
)

// slowFleet takes a while to list its agents, as a large one does.
type slowFleet struct {
	*memStore
	asked atomic.Int64
}

func (s *slowFleet) Agents(ctx context.Context, after string, limit int) ([]store.Agent, string, error) {
	s.asked.Add(1)
	pass(100 * time.Millisecond)
	return s.memStore.Agents(ctx, after, limit)
}

// Every submission says why its job waits. What that costs must not grow with submissions times agents.
func TestReasonsDontAskForTheFleetEachTime(t *testing.T) {
	st := &slowFleet{memStore: newMemStore()}
	bubbleWith(t, func(c *Config) { c.Store = st }, func(t *testing.T, e *env) {
		first := e.submit(nil)
		if first.Reason != "no agent online" {
			t.Errorf("the reason is %q; want that no agent is online", first.Reason)
		}
		began := time.Now()
		for range 50 {
			e.submit(nil)
		}
		if took := time.Since(began); st.asked.Load() != 1 || took > time.Second {
			t.Errorf("51 submissions listed the agents %d times and the last 50 took %v; want once, and no time", st.asked.Load(), took)
		}
		e.agent(map[string]any{"types": []string{"other"}})
		pass(fleetShare * 100 * time.Millisecond)
		if got := e.job(first.ID).Reason; !strings.Contains(got, "1 agent online") {
			t.Errorf("the reason is %q after a while; want that it knows the new agent", got)
		}
	})
}
