package instances

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"agentd/controlplane-mock/adminclient"
)

// One instance after the other is killed and started again, under load: no job is in two hands, nothing acknowledged is lost,
// and no job is stuck.
func TestOneIsKilledAgainAndAgain(t *testing.T) {
	t.Parallel()
	w := begin(t, "")
	l := newLedger()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	agents := scaled(16, 64)
	var working, submitting sync.WaitGroup
	for i := range agents {
		a := newAgent(t, w, fmt.Sprint("agent-", i), "work")
		working.Go(func() {
			for {
				j := a.poll(ctx, "work")
				if j == nil {
					return
				}
				a.run(ctx, l, j)
			}
		})
	}
	defer working.Wait()
	defer stop()
	over := make(chan struct{})
	ids := make([][]string, 2)
	for i := range ids {
		submitting.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-over:
					return
				case <-time.After(100 * time.Millisecond):
				}
				ids[i] = append(ids[i], w.submit(ctx, t, adminclient.Submission{Type: "work"}, fmt.Sprint("job ", i, " ", n)))
			}
		})
	}
	kills := 0
	for end := time.Now().Add(scaled(18*time.Second, 10*time.Minute)); time.Now().Before(end); kills++ {
		pass(time.Second)
		w.restart(t, kills%len(w.all), func() { pass(time.Second) })
	}
	close(over)
	submitting.Wait()
	n := 0
	for _, some := range ids {
		for _, id := range some {
			w.whole(t, l, id)
			n++
		}
	}
	t.Logf("%d jobs, %d kills", n, kills)
	if n < 30 || kills < 5 {
		t.Errorf("%d jobs under %d kills prove little", n, kills)
	}
}

// J8: all instances go at once and come back, again and again, with 502 in between; real agents, real jobs.
func TestJ8AllRestart(t *testing.T) {
	t.Parallel()
	w := begin(t, "max_jobs: 4\n")
	w.join(t)
	var ids []string
	for round := range scaled(5, 50) {
		for n := range 3 {
			ids = append(ids, w.submit(t.Context(), t, shell("echo one; sleep 1.5; echo two"), fmt.Sprint(round, " ", n)))
		}
		for i, s := range w.all {
			if (round+i)%2 == 0 {
				if err := s.Server.Kill(); err != nil {
					t.Fatal(err)
				}
			} else if err := s.Server.Stop(patience); err != nil {
				t.Fatal(err)
			}
			s.Server = nil
		}
		pass(500 * time.Millisecond)
		for i := range w.all {
			w.start(t, i)
		}
	}
	for _, s := range w.all { // no agent stays away
		one := shell("echo one; echo two")
		one.AgentID = s.AgentID
		ids = append(ids, w.submit(t.Context(), t, one, "for "+s.AgentID))
	}
	for _, id := range ids {
		j := w.ended(t, id)
		ran := 0
		for _, a := range j.Attempts {
			if a.State != "lapsed" && a.State != "released" {
				ran++
			}
		}
		if j.Status != "succeeded" || ran != 1 {
			t.Errorf("%s is %s after %d runs, want a success in one: %+v", id, j.Status, ran, j.Attempts)
		}
		if got, want := w.text(t, id), "one\ntwo\n"; got != want {
			t.Errorf("%s printed %q, want %q", id, got, want)
		}
	}
}
