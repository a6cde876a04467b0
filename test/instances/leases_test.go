package instances

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/faults"
)

// J1: the answers to half of the polls are lost after a job was leased, and the same poll comes to another instance: it gets
// its offer, so each job runs once, at once, and loses no attempt.
func TestJ1AnswersToPollsAreLost(t *testing.T) {
	t.Parallel()
	w := begin(t, "")
	l := newLedger()
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer stop()
	for i := range 8 {
		a := newAgent(t, w, fmt.Sprint("agent-", i), "work")
		working.Go(func() {
			for j := a.poll(ctx, "work"); j != nil; j = a.poll(ctx, "work") {
				a.run(ctx, l, j)
			}
		})
	}
	lost := scaled[int64](60, 1000)
	w.faults(t, faults.Rule{Method: "GET", Path: "/agent/v1/jobs/next", Mode: faults.DropResponse, Probability: new(0.5)})
	for n := 0; w.hits(t) < lost; n++ {
		var ids []string
		for k := range 10 {
			ids = append(ids, w.submit(ctx, t, adminclient.Submission{Type: "work"}, fmt.Sprint(n, " ", k)))
		}
		for _, id := range ids {
			w.whole(t, l, id)
			if j := w.job(t, id); len(j.Attempts) != 1 {
				t.Errorf("%s took %d offers, want 1: the same poll gets the same offer: %+v", id, len(j.Attempts), j.Attempts)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// J4: jobs are completed at about the time when their leases end and three reapers look: who is told that the outcome is
// taken finds it taken, whoever reaps.
func TestJ4CompletionAgainstReapers(t *testing.T) {
	t.Parallel()
	w := begin(t, "")
	var done sync.WaitGroup
	var acked, refused atomic.Int64
	jobs := scaled(40, 400)
	a := newAgent(t, w, "agent", "work")
	for i := range jobs {
		id := w.submit(t.Context(), t, adminclient.Submission{Type: "work", MaxAttempts: 1}, strconv.Itoa(i))
		j := a.poll(t.Context(), "work")
		if j == nil || j.ID != id {
			t.Fatalf("polled %+v, want %s", j, id)
		}
		done.Go(func() {
			if err := a.beat(t.Context(), j, 0); err != nil {
				t.Errorf("accept of %s: %v", id, err)
				return
			}
			// From a period of the reaper before the lease's end to one after it.
			pass(ttl*3/4 + time.Duration(i)*ttl/2/time.Duration(jobs) + ttl/8)
			err := a.complete(t.Context(), j, 0)
			want := "succeeded"
			switch protocol.CodeOf(err) {
			case "":
				acked.Add(1)
			case protocol.CodeLeaseLost:
				refused.Add(1)
				want = "lost"
			default:
				t.Errorf("completion of %s: %v", id, err)
			}
			until(t, "the job's end", func() bool { return w.job(t, id).Settled() })
			if at := w.job(t, id).Last(); at.State != want {
				t.Errorf("%s: the completion was answered with %v, and the attempt is %s, want %s", id, err, at.State, want)
			}
		})
	}
	done.Wait()
	t.Logf("%d completions were taken, %d came too late", acked.Load(), refused.Load())
	if acked.Load() == 0 {
		t.Error("no completion was taken: nothing was tried")
	}
}

// J11: an agent leases jobs and never comes back; in the second round all instances restart meanwhile. All of it is reaped, and
// done by another agent.
func TestJ11AgentNeverComesBack(t *testing.T) {
	t.Parallel()
	w := begin(t, "")
	l := newLedger()
	for round := range 2 {
		typ := fmt.Sprint("work-", round)
		gone := newAgent(t, w, "gone-"+typ, typ)
		var ids []string
		for n := range 12 {
			id := w.submit(t.Context(), t, adminclient.Submission{Type: typ}, fmt.Sprint(round, " ", n))
			ids = append(ids, id)
			j := gone.poll(t.Context(), typ)
			if j == nil {
				return
			}
			if n%2 == 0 { // the others stay offers
				if err := gone.beat(t.Context(), j, 0); err != nil {
					t.Fatal(err)
				}
			}
		}
		if round == 1 {
			for i := range w.all {
				w.restart(t, i, func() {})
			}
		}
		other := newAgent(t, w, "other-"+typ, typ)
		for range ids {
			j := other.poll(t.Context(), typ)
			if j == nil {
				return
			}
			other.run(t.Context(), l, j)
		}
		for n, id := range ids {
			j := w.ended(t, id)
			want := map[bool]string{true: "lost", false: "lapsed"}[n%2 == 0]
			if j.Status != "succeeded" || len(j.Attempts) != 2 || j.Attempts[0].State != want {
				t.Errorf("%s is %s, want a success after an attempt that is %s: %+v", id, j.Status, want, j.Attempts)
			}
		}
	}
}
