package storetest

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

type leaseOp struct {
	kind string // submit, lease, release, cancel, settle
	job  int    // which, but for lease
}

// leasing is the queue as it should be: a set of pending jobs of which each lease takes the lowest.
var leasing = porcupine.Model{
	Init: func() any { return uint64(0) },
	Step: func(state, input, output any) (bool, any) {
		pending, in, out := state.(uint64), input.(leaseOp), output.(int) //nolint:forcetypeassert // ours
		bit := uint64(1) << in.job
		switch in.kind {
		case "submit", "release":
			return true, pending | bit
		case "cancel":
			return true, pending &^ bit
		case "lease":
			if pending == 0 {
				return out < 0, pending
			}
			lowest := bits.TrailingZeros64(pending)
			return out == lowest, pending &^ (1 << lowest)
		default:
			return true, pending
		}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprint(input, " → ", output) },
}

// RunLinearizable checks that leasing under concurrency could have happened one call after the other:
// no job in two hands, none passed over, none lost.
func RunLinearizable(t *testing.T, target Target) {
	t.Helper()
	const rounds, workers, jobs, steps = 6, 6, 12, 12
	for round := range rounds {
		e := newEnv(t, target)
		e.ttl = time.Minute // nothing lapses
		var mu sync.Mutex
		var history []porcupine.Operation
		next := 0
		record := func(worker int, in leaseOp, f func() int) int {
			call := time.Now().UnixNano()
			out := f()
			op := porcupine.Operation{ClientId: worker, Input: in, Call: call, Output: out, Return: time.Now().UnixNano()}
			mu.Lock()
			history = append(history, op)
			mu.Unlock()
			return out
		}
		submit := func(worker int) {
			mu.Lock()
			n := next
			next++
			mu.Unlock()
			if n >= jobs {
				return
			}
			// Numbers are given in the order of submissions, which is known only if they don't overlap: so
			// one worker submits.
			record(worker, leaseOp{"submit", n}, func() int {
				_, _, err := e.Submit(e.ctx, store.NewJob{ID: strconv.Itoa(n), Type: "x", Payload: []byte("1"), MaxAttempts: 1})
				if err != nil {
					t.Error(err)
				}
				return 0
			})
		}
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				for step := range steps {
					if w == 0 {
						submit(w)
						continue
					}
					var o store.Offer
					got := record(w, leaseOp{"lease", 0}, func() int {
						var err error
						o, err = e.Lease(e.ctx, e.params("a", fmt.Sprint(w, " ", step)))
						if errors.Is(err, store.ErrNoJob) {
							return -1
						}
						if err != nil {
							t.Error(err)
							return -1
						}
						n := 0
						_, _ = fmt.Sscan(o.Job.ID, &n)
						return n
					})
					if got < 0 {
						continue
					}
					e.after(t, record, w, got, ref("a", o.Job.ID, o.Attempt), (step+w+round)%3)
				}
			})
		}
		wg.Wait()
		if !porcupine.CheckOperations(leasing, history) {
			t.Fatalf("round %d: the history can't have happened one call after the other: %v", round, history)
		}
	}
}

// after does with a leased job one of what can be done.
func (e *env) after(t *testing.T, record func(int, leaseOp, func() int) int, w, n int, r store.Ref, what int) {
	t.Helper()
	kind := []string{"release", "cancel", "settle"}[what]
	record(w, leaseOp{kind, n}, func() int {
		var err error
		switch kind {
		case "release":
			err = e.Release(e.ctx, r, "")
		case "cancel":
			_, err = e.Cancel(e.ctx, r.JobID, "")
		case "settle":
			err = e.Complete(e.ctx, r, protocol.Completion{Outcome: protocol.Succeeded})
		}
		if err != nil {
			t.Error(err)
		}
		return 0
	})
}
