package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/journal"
	"agentd/agent/protocol"
	"agentd/leasekeeper"
	"agentd/shipper"
)

// C11's part here: the reply to the completion is dropped 50 times in a row.
func TestOutcomeArrivesOnceThroughLostReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		runs := 0
		w.Handle("t", HandlerFunc(func(context.Context, *Attempt) Result { runs++; return Result{ExitCode: 0} }))
		w.plane.complete = func(n int) error {
			if n <= 50 {
				return errAway
			}
			return nil
		}
		w.plane.submit("job_1")
		w.begin(t)
		wait(10 * time.Second)
		if st := w.Status(); st.Reporting != 1 || st.Running != 0 {
			t.Errorf("reporting %d running %d, want 1 and 0: a report needs no slot", st.Reporting, st.Running)
		}
		wait(30 * time.Minute)
		if c := w.plane.outcome(t, "job_1"); c.Outcome != protocol.Succeeded || c.LogRecords != 7 {
			t.Errorf("outcome %+v, want succeeded with 7 records", c)
		}
		if runs != 1 || w.plane.sent != 51 {
			t.Errorf("ran %d times, completion sent %d times; want 1 and 51", runs, w.plane.sent)
		}
		if len(w.journal.Entries()) != 0 {
			t.Error("the journal still has the attempt")
		}
		w.end(t)
	})
}

func TestJournalKnowsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", HandlerFunc(func(context.Context, *Attempt) Result {
			w.journal.mu.Lock()
			defer w.journal.mu.Unlock()
			w.journal.note("handler job_1")
			return Result{}
		}))
		w.plane.complete = func(int) error {
			w.journal.mu.Lock()
			defer w.journal.mu.Unlock()
			w.journal.note("sent job_1")
			return nil
		}
		w.plane.submit("job_1")
		w.begin(t)
		wait(time.Second)
		w.end(t)
		want := []string{"begin job_1", "handler job_1", "completion job_1", "sent job_1", "remove job_1"}
		if !slices.Equal(w.journal.events, want) {
			t.Errorf("events %v, want %v", w.journal.events, want)
		}
	})
}

func TestWhatTheServerSaysOfACompletion(t *testing.T) {
	problem := func(status int, code protocol.Code) error {
		return &protocol.Error{Op: "complete", Status: status, Code: code}
	}
	for name, row := range map[string]struct {
		answers []error
		sent    int
	}{
		"acknowledged":       {[]error{nil}, 1},
		"lease lost":         {[]error{problem(409, protocol.CodeLeaseLost)}, 1},
		"unknown job":        {[]error{problem(404, protocol.CodeNotFound)}, 1},
		"a proxy's 404":      {[]error{problem(404, ""), problem(404, ""), nil}, 3},
		"unavailable":        {[]error{problem(503, protocol.CodeUnavailable), nil}, 2},
		"throttled":          {[]error{problem(429, protocol.CodeThrottled), nil}, 2},
		"revoked and back":   {[]error{problem(403, protocol.CodeRevoked), nil}, 2},
		"result refused":     {[]error{problem(400, protocol.CodeInvalid), nil}, 2},
		"refused altogether": {[]error{problem(400, protocol.CodeInvalid), problem(400, protocol.CodeInvalid)}, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, Config{})
			w.Handle("t", HandlerFunc(func(context.Context, *Attempt) Result { return Result{JSON: []byte(`{"a":1}`)} }))
			w.plane.complete = func(n int) error { return row.answers[min(n, len(row.answers))-1] }
			w.plane.submit("job_1")
			w.begin(t)
			wait(20 * time.Minute)
			if w.plane.sent != row.sent || len(w.journal.Entries()) != 0 {
				t.Errorf("%s: sent %d times, %d entries left; want %d and none", name, w.plane.sent, len(w.journal.Entries()), row.sent)
			}
			w.end(t)
		})
	}
}

func TestCompletionSpeaksOfTheCause(t *testing.T) {
	job := &protocol.Job{ID: "j", Attempt: 3, LeaseToken: "t"}
	ended := func(cause error) Result {
		return Result{Outcome: protocol.Cancelled, ExitCode: 143, Signal: "SIGTERM", Cause: cause}
	}
	for name, row := range map[string]struct {
		res     Result
		outcome protocol.Outcome
		err     string
	}{
		"ended well":             {Result{Outcome: protocol.Succeeded}, protocol.Succeeded, ""},
		"exit 3":                 {Result{Outcome: protocol.Failed, ExitCode: 3, Error: "exit status 3"}, protocol.Failed, "exit status 3"},
		"cancelled":              {ended(&leasekeeper.Cancelled{Reason: "not needed"}), protocol.Cancelled, "cancelled: not needed"},
		"cancelled, ended well":  {Result{Outcome: protocol.Succeeded, Cause: &leasekeeper.Cancelled{}}, protocol.Succeeded, ""},
		"expired":                {ended(&leasekeeper.LeaseExpired{Silence: 3 * time.Second}), protocol.Lost, "lease expired: no heartbeat was answered for 3s"},
		"drained":                {ended(ErrDraining), protocol.Lost, "the agent was stopped (drain) before the job ended"},
		"timed out":              {Result{Outcome: protocol.TimedOut, Error: "timed out"}, protocol.TimedOut, "timed out"},
		"timed out and expiring": {Result{Outcome: protocol.TimedOut, Error: "timed out", Cause: errors.New("exec: timed out")}, protocol.TimedOut, "timed out"},
	} {
		c := completion(job, row.res)
		if c.Outcome != row.outcome || c.Error != row.err || c.Attempt != 3 {
			t.Errorf("%s: %s %q, want %s %q", name, c.Outcome, c.Error, row.outcome, row.err)
		}
	}
}

func TestCancelledJobsReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", takes(time.Hour))
		w.plane.submit("job_1")
		w.begin(t)
		wait(5 * time.Second)
		w.plane.mu.Lock()
		w.plane.cancels["job_1"] = &protocol.Cancel{Reason: "stop", Grace: 1000}
		w.plane.wakeLocked()
		w.plane.mu.Unlock()
		wait(time.Second)
		if c := w.plane.outcome(t, "job_1"); c.Outcome != protocol.Cancelled || c.ExitCode != 143 {
			t.Errorf("outcome %+v, want cancelled, 143", c)
		}
		w.end(t)
	})
}

func TestPanickingHandlerFailsItsJobOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", HandlerFunc(func(_ context.Context, a *Attempt) Result {
			if a.Job.ID == "bad" {
				panic("oh")
			}
			return Result{}
		}))
		w.plane.submit("bad", "good")
		w.begin(t)
		wait(time.Second)
		if c := w.plane.outcome(t, "bad"); c.Outcome != protocol.Failed || !strings.Contains(c.Error, "panicked: oh") {
			t.Errorf("outcome %+v, want failed with the panic's words", c)
		}
		if c := w.plane.outcome(t, "good"); c.Outcome != protocol.Succeeded {
			t.Errorf("outcome %+v, want succeeded", c)
		}
		w.end(t)
	})
}

// After a crash or a reboot: what ran is swept and reported, what ended is reported as it ended, what never began is given back.
func TestWhatAnEarlierProcessLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", takes(0))
		began := time.Now().Add(-time.Minute)
		proc := journal.Proc{PID: 4711, StartTicks: 1, BootID: "boot-1"}
		w.journal.entries = []journal.Entry{
			{JobID: "crashed", Attempt: 1, LeaseToken: "t", BootID: "boot-1", StartedAt: began, Proc: proc},
			{JobID: "rebooted", Attempt: 1, LeaseToken: "t", BootID: "boot-0", StartedAt: began, Proc: proc},
			{JobID: "fresh", Attempt: 1, LeaseToken: "t", BootID: "boot-1"},
			{JobID: "ended", Attempt: 2, LeaseToken: "t", BootID: "boot-1", StartedAt: began, Proc: proc, Log: journal.LogState{Closed: true, Records: 12},
				Completion: &protocol.Completion{Attempt: 2, LeaseToken: "t", Outcome: protocol.Succeeded, LogRecords: 12}},
			{JobID: "ending", Attempt: 1, LeaseToken: "t", BootID: "boot-1", StartedAt: began, Proc: proc,
				Completion: &protocol.Completion{Attempt: 1, LeaseToken: "t", Outcome: protocol.Failed, ExitCode: 3}},
		}
		w.logs.recovered = []shipper.Recovered{
			{Ref: protocol.AttemptRef{JobID: "crashed", Attempt: 1}, LogRecords: 40},
			{Ref: protocol.AttemptRef{JobID: "ending", Attempt: 1}, LogRecords: 9},
		}
		w.begin(t)
		wait(5 * time.Second)
		if n := len(w.plane.pollsSeen()); n == 0 {
			t.Error("no poll within 5 s of the start")
		}
		for id, want := range map[string]protocol.Completion{
			"crashed":  {Outcome: protocol.Lost, LogRecords: 40, Error: "the agent died (killed, out of memory, or crashed) while the job ran"},
			"rebooted": {Outcome: protocol.Lost, LogRecords: 0, Error: "the host rebooted while the job ran"},
			"ended":    {Outcome: protocol.Succeeded, LogRecords: 12},
			"ending":   {Outcome: protocol.Failed, LogRecords: 9, ExitCode: 3},
		} {
			c := w.plane.outcome(t, id)
			if c.Outcome != want.Outcome || c.LogRecords != want.LogRecords || c.Error != want.Error || c.ExitCode != want.ExitCode {
				t.Errorf("%s: %+v, want %+v", id, c, want)
			}
		}
		if r := w.plane.released["fresh/1"]; r != "the agent restarted before the job began" {
			t.Errorf("fresh: released with %q", r)
		}
		if n := len(w.runner.swept); n != 4 {
			t.Errorf("%d process trees were swept, want the 4 that began", n)
		}
		if len(w.journal.Entries()) != 0 {
			t.Errorf("journal still has %d entries", len(w.journal.Entries()))
		}
		w.end(t)
	})
}

// While the report of a job that ended before a crash waits, its lease is kept.
func TestLeaseIsKeptForAnOutcomeOfAnEarlierProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", takes(0))
		w.plane.attempt["ended"], w.plane.attempt["cut"] = 1, 1
		w.journal.entries = []journal.Entry{
			{JobID: "ended", Attempt: 1, LeaseToken: "t", BootID: "boot-1", Completion: &protocol.Completion{Attempt: 1, Outcome: protocol.Succeeded}},
			{JobID: "cut", Attempt: 1, LeaseToken: "t", BootID: "boot-1", StartedAt: time.Now(), Proc: journal.Proc{PID: 4711}},
		}
		w.plane.complete = func(int) error { return errAway }
		w.begin(t)
		wait(time.Minute)
		w.plane.mu.Lock()
		ended, cut := w.plane.accepted["ended/1"], w.plane.accepted["cut/1"]
		w.plane.complete = nil
		w.plane.mu.Unlock()
		if ended < 15 || cut != 0 {
			t.Errorf("%d heartbeats for the job that ended, %d for the one that was cut; want about 20 and none", ended, cut)
		}
		wait(time.Minute)
		for id, want := range map[string]protocol.Outcome{"ended": protocol.Succeeded, "cut": protocol.Lost} {
			if c := w.plane.outcome(t, id); c.Outcome != want {
				t.Errorf("%s: %s, want %s", id, c.Outcome, want)
			}
		}
		w.end(t)
	})
}
