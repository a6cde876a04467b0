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

// J7: many agents lose all instances for a while. When those are back, the agents come back spread out, and every one does.
func TestJ7ManyReturn(t *testing.T) {
	t.Parallel()
	w := begin(t, "")
	agents, outage, spread := scaled(150, 2000), scaled(16*time.Second, time.Minute), scaled(6*time.Second, 30*time.Second)
	ctx, stop := context.WithCancel(t.Context())
	var polling sync.WaitGroup
	defer polling.Wait()
	defer stop()
	for i := range agents {
		a := newAgent(t, w, fmt.Sprint("agent-", i), "none")
		polling.Go(func() {
			back := protocol.NewBackOff(0) // as the real agent's
			for ctx.Err() == nil {
				a.polls++
				_, err := a.c.NextJob(ctx, protocol.PollRequest{PollID: strconv.Itoa(a.polls), Wait: time.Second, Types: []string{"none"}})
				if err == nil {
					back.Reset()
				} else if protocol.Pause(ctx, back, err) != nil {
					return
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
