package instances

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"agentd/agent/protocol"
)

// J7: many agents lose all instances for a while. When those are back, the agents come back spread out, and every one does. Their
// first tries, right after the loss, are spread out, too.
func TestJ7ManyReturn(t *testing.T) {
	t.Parallel()
	w := begin(t, "")
	// No pause is longer than 30 s (protocol §1), so all are back within 30 s, and the last of 2,000 after 28 s at the earliest:
	// the chance that none of them has two seconds of such a pause left is (1 - (2/30)²)^2000.
	agents, outage, spread := scaled(150, 2000), scaled(16*time.Second, time.Minute), scaled(6*time.Second, 28*time.Second)
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	var first []time.Duration // guarded by mu: each agent's pause after its first failure
	var polling sync.WaitGroup
	defer polling.Wait()
	defer stop()
	for i := range agents {
		a := newAgent(t, w, fmt.Sprint("agent-", i), "none")
		polling.Go(func() {
			// As the real agent: polls are held, but for one after a failure.
			const hold = 10 * time.Second
			back, wait := protocol.NewBackOff(0), hold
			for failed := false; ctx.Err() == nil; {
				a.polls++
				_, err := a.c.NextJob(ctx, protocol.PollRequest{PollID: strconv.Itoa(a.polls), Wait: wait, Types: []string{"none"}})
				if err == nil {
					back.Reset()
					wait = hold
					continue
				}
				wait = 0
				began := time.Now()
				if protocol.Pause(ctx, back, err) != nil {
					return
				}
				if !failed {
					failed = true
					mu.Lock()
					first = append(first, time.Since(began))
					mu.Unlock()
				}
			}
		})
	}
	for _, s := range w.all {
		if err := s.Server.Kill(); err != nil {
			t.Fatal(err)
		}
		s.Server = nil
	}
	pass(outage)
	mu.Lock()
	slices.Sort(first)
	if len(first) != agents {
		t.Errorf("%d of %d agents have tried again", len(first), agents)
	} else if quarter, three := first[agents/4], first[agents*3/4]; quarter > protocol.FirstBackOff/2 || three < protocol.FirstBackOff/2 {
		t.Errorf("a quarter of the agents tried again within %v, and three quarters within %v; want them spread over %v", quarter, three, protocol.FirstBackOff)
	}
	mu.Unlock()
	w.watch()
	for i := range w.all {
		w.start(t, i)
	}
	until(t, "all agents are back", func() bool { return len(w.arrivals()) >= agents })
	at := w.arrivals()
	slices.SortFunc(at, time.Time.Compare)
	most := 0
	for i := range at {
		n := 0
		for _, later := range at[i:] {
			if later.Sub(at[i]) < time.Second {
				n++
			}
		}
		most = max(most, n)
	}
	took := at[len(at)-1].Sub(at[0])
	t.Logf("%d agents came back within %v, at most %d in a second", len(at), took, most)
	if took < spread || most > agents/2 {
		t.Errorf("%d agents came back within %v, %d of them in one second; want them spread over %v", len(at), took, most, spread)
	}
}
