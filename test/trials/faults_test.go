package trials

import (
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/faults"
)

// three runs three jobs under rules, again and again until enough of their requests were struck, and
// compares what arrived.
func three(t *testing.T, enough int64, rules ...faults.Rule) {
	t.Helper()
	w := begin(t, "max_jobs: 3\n"+logsSmall)
	w.faults(t, rules...)
	var hits int64
	for hits < enough {
		var ids [3]string
		var does [3]work
		for i := range ids {
			does[i] = work{Lines: scaled[int64](1500, 100000), Size: 120, Burst: 10, Pause: 30, Both: true}
			ids[i] = w.print(t, adminclient.Submission{}, &does[i])
		}
		for i, id := range ids {
			w.whole(t, w.ended(t, id, "succeeded"), does[i])
		}
		hits = 0
		for _, n := range w.hits(t) {
			hits += n
		}
	}
	t.Logf("%d requests were struck", hits)
}

func TestL1OneWriteInTwentyFails(t *testing.T) {
	t.Parallel()
	three(t, 3,
		faults.Rule{Method: "POST", Path: logsRoute, Mode: faults.Reset, Probability: new(0.025)},
		faults.Rule{Method: "POST", Path: logsRoute, Mode: faults.DropResponse, Probability: new(0.0257)}) // of those that the first spared
}

func TestL2RepliesAreLost(t *testing.T) {
	t.Parallel()
	three(t, 10, faults.Rule{Method: "POST", Path: logsRoute, Mode: faults.DropResponse, Probability: new(1.0 / 3)})
}

// The client waits 30 s. The request is handled when it has left, beside its repetition.
func TestL3ReplyIsSlowerThanTheClientsTimeout(t *testing.T) {
	t.Parallel()
	w := begin(t, logsSmall)
	w.faults(t, faults.Rule{Method: "POST", Path: logsRoute, Mode: faults.Slow, Delay: 31_000, Count: 1})
	does := work{Lines: 3000, Size: 120, Burst: 10, Pause: 10, Both: true}
	id := w.print(t, adminclient.Submission{}, &does)
	j := w.ended(t, id, "succeeded")
	w.whole(t, j, does)
	// The late request has its turn yet.
	pass(2 * time.Second)
	w.whole(t, w.ended(t, id, "succeeded"), does)
}

func TestL8OneAttemptsTroubleIsItsOwn(t *testing.T) {
	t.Parallel()
	w := begin(t, "max_jobs: 6\n"+logsSmall)
	bad := [2]work{}
	var ids [2]string
	for i := range bad {
		bad[i] = work{Lines: 5000, Size: 120, Burst: 10, Pause: 5, Hold: true}
		ids[i] = w.print(t, adminclient.Submission{}, &bad[i])
	}
	route := func(id string) string { return "/agent/v1/jobs/" + id + "/attempts/*/logs" }
	w.faults(t,
		faults.Rule{Method: "POST", Path: route(ids[0]), Mode: faults.Status, Status: 500, Code: protocol.CodeInternal},
		faults.Rule{Method: "POST", Path: route(ids[1]), Mode: faults.Hang})
	for _, does := range bad {
		does.letGo(t)
	}
	for range scaled(3, 50) {
		good := work{Lines: 2000, Size: 120, Burst: 20, Pause: 5, Both: true}
		w.whole(t, w.ended(t, w.print(t, adminclient.Submission{}, &good), "succeeded"), good)
	}
	for _, id := range ids {
		if j := w.await(t, id, "the bad job's outcome", adminclient.Job.Settled); j.Last().LogsComplete {
			t.Errorf("the log of %s is complete: the fault didn't strike", id)
		}
	}
	w.faults(t)
	for i, id := range ids {
		w.whole(t, w.ended(t, id, "succeeded"), bad[i])
	}
}

func TestL17PageIsNoAcknowledgement(t *testing.T) {
	t.Parallel()
	w := begin(t, logsSmall)
	w.faults(t, faults.Rule{Method: "POST", Path: logsRoute, Mode: faults.HTML})
	does := work{Lines: 3000, Size: 120, Burst: 10, Both: true}
	id := w.print(t, adminclient.Submission{}, &does)
	w.await(t, id, "the job's outcome", adminclient.Job.Settled)
	until(t, "several pages", func() bool { return w.hits(t)[0] >= 3 })
	if st := w.status(t).Logs; st.Acked != 0 || st.Memory+st.Spool != does.Lines {
		t.Errorf("%+v; want no record acknowledged and all %d held", st, does.Lines)
	}
	w.faults(t)
	w.whole(t, w.ended(t, id, "succeeded"), does)
}
