package agent

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
)

func TestStopLetsJobsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", takes(20*time.Second))
		w.plane.submit("job_1")
		w.begin(t)
		wait(time.Second)
		began := time.Now()
		w.end(t)
		if took := time.Since(began); took != 19*time.Second {
			t.Errorf("the stop took %v, want the 19 s that the job still needed", took)
		}
		if c := w.plane.outcome(t, "job_1"); c.Outcome != protocol.Succeeded {
			t.Errorf("outcome %s, want succeeded", c.Outcome)
		}
		if !w.logs.flushed.Load() {
			t.Error("logs were not flushed")
		}
	})
}

func TestStopEndsJobsAfterItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", takes(time.Hour))
		w.plane.submit("job_1")
		w.begin(t)
		wait(time.Second)
		began := time.Now()
		w.end(t)
		if took := time.Since(began); took != DefaultDrainTimeout {
			t.Errorf("the stop took %v, want %v", took, DefaultDrainTimeout)
		}
		if c := w.plane.outcome(t, "job_1"); c.Outcome != protocol.Lost || c.Error != "the agent was stopped (drain) before the job ended" {
			t.Errorf("outcome %+v, want lost by the drain", c)
		}
	})
}

func TestHurrySkipsTheWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", takes(time.Hour))
		w.logs.flush = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() } // 200 MB wait (C10)
		w.plane.submit("job_1")
		w.begin(t)
		wait(time.Second)
		began := time.Now()
		time.AfterFunc(2*time.Second, w.Hurry)
		w.end(t)
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("the stop took %v, want the 2 s until the second signal", took)
		}
	})
}

func TestStopWithoutAControlPlaneIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", takes(time.Hour))
		w.plane.complete = func(int) error { return errAway }
		w.logs.flush = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		w.plane.submit("job_1")
		w.begin(t)
		wait(time.Second)
		began := time.Now()
		w.end(t)
		if took, most := time.Since(began), w.cfg.Drain.Total(); took > most {
			t.Errorf("the stop took %v, want at most %v", took, most)
		}
		e := w.journal.Entries()
		if len(e) != 1 || e[0].Completion == nil || e[0].Completion.Outcome != protocol.Lost {
			t.Errorf("journal %+v, want the outcome kept for the next start", e)
		}
	})
}

// A poll that is broken off may have been given an offer: it is asked for again and released.
func TestLateOfferIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", takes(0))
		w.begin(t)
		wait(time.Second)
		w.plane.mu.Lock()
		w.plane.lose = func(n int) error { // the answer crosses with the stop
			if n == 0 {
				w.stop()
				return &protocol.Error{Op: "poll", Err: context.Canceled}
			}
			return nil
		}
		w.plane.mu.Unlock()
		w.plane.submit("job_1")
		w.end(t)
		if r := w.plane.released["job_1/1"]; r != "draining" {
			t.Errorf("released with %q, want draining", r)
		}
	})
}

func TestOfferThatIsBeingAcceptedIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", HandlerFunc(func(context.Context, *Attempt) Result { t.Error("ran"); return Result{} }))
		w.plane.beat = func(string) error { return errAway }
		w.plane.submit("job_1")
		w.begin(t)
		wait(5 * time.Second)
		began := time.Now()
		w.end(t)
		if took := time.Since(began); took > time.Second {
			t.Errorf("the stop took %v, want next to nothing", took)
		}
		if r := w.plane.released["job_1/1"]; r != "draining" {
			t.Errorf("released with %q, want draining", r)
		}
	})
}

func TestDrainKeepsRunningJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", takes(10*time.Minute))
		w.plane.submit("job_1")
		w.begin(t)
		wait(time.Second)
		w.Drain(true)
		wait(time.Minute) // the poll under way ends
		w.plane.submit("job_2")
		wait(time.Minute)
		if st := w.Status(); st.State != "draining" || len(st.Jobs) != 1 {
			t.Errorf("state %s, %d jobs; want draining with the one that ran", st.State, len(st.Jobs))
		}
		began := time.Now()
		if err := w.WaitDrained(t.Context()); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) == 0 {
			t.Error("WaitDrained returned while a job ran")
		}
		if st := w.Status(); st.State != "drained" || !st.Healthy {
			t.Errorf("state %s healthy %v, want drained and healthy", st.State, st.Healthy)
		}
		w.Drain(false)
		wait(11 * time.Minute)
		if c := w.plane.outcome(t, "job_2"); c.Outcome != protocol.Succeeded {
			t.Errorf("job_2: %s, want succeeded after the drain ended", c.Outcome)
		}
		w.end(t)
	})
}

// Who has waited for a drain may stop the agent, or the host: nothing may begin behind his back.
func TestDrainBreaksOffThePollUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", takes(time.Second))
		w.begin(t)
		wait(5 * time.Second) // a poll is held for 30 s
		began := time.Now()
		w.Drain(true)
		if err := w.WaitDrained(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > takeBackTimeout {
			t.Errorf("the wait took %v, want at most %v", took, takeBackTimeout)
		}
		w.plane.submit("job_1")
		wait(time.Hour)
		if n := w.plane.attempt["job_1"]; n != 0 {
			t.Errorf("job_1 was offered %d times, want it to wait", n)
		}
		if deaf := w.pulse.deaf(); len(deaf) > 0 {
			t.Errorf("deaf: %q", deaf)
		}
		w.Drain(false)
		wait(2 * time.Second)
		if c := w.plane.outcome(t, "job_1"); c.Outcome != protocol.Succeeded {
			t.Errorf("job_1: %s, want succeeded after the drain ended", c.Outcome)
		}
		w.end(t)
	})
}

func TestOfferThatMeetsADrainIsReleased(t *testing.T) {
	for name, lost := range map[string]error{"on its way": nil, "broken off": &protocol.Error{Op: "poll", Err: context.Canceled}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{})
				w.Handle("t", HandlerFunc(func(context.Context, *Attempt) Result { t.Error("ran"); return Result{} }))
				w.plane.lose = func(int) error {
					w.plane.lose = nil
					w.Drain(true)
					return lost
				}
				w.plane.submit("job_1")
				w.begin(t)
				if err := w.WaitDrained(t.Context()); err != nil {
					t.Fatal(err)
				}
				if r := w.plane.released["job_1/1"]; r != "draining" {
					t.Errorf("released with %q, want draining", r)
				}
				w.end(t)
			})
		})
	}
}

func TestReloadWhileAJobRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{MaxJobs: 1})
		w.Handle("t", takes(10*time.Minute))
		w.plane.submit("job_1", "job_2", "job_3")
		w.begin(t)
		wait(time.Second)
		if err := w.Reload(Reloaded{MaxJobs: 3, Labels: map[string]string{"a": "b"}, Handlers: map[string]Handler{"t": takes(time.Second)}}); err != nil {
			t.Fatal(err)
		}
		wait(10 * time.Second)
		for _, id := range []string{"job_2", "job_3"} {
			if c := w.plane.outcome(t, id); c.Outcome != protocol.Succeeded {
				t.Errorf("%s: %s, want succeeded in a new slot by the new handler", id, c.Outcome)
			}
		}
		if st := w.Status(); len(st.Jobs) != 1 || st.Jobs[0].Job != "job_1" {
			t.Errorf("jobs %+v, want job_1 untouched", st.Jobs)
		}
		if w.ident.info.Labels["a"] != "b" {
			t.Errorf("announced %v, want the new labels", w.ident.info.Labels)
		}
		if err := w.Reload(Reloaded{MaxJobs: 0}); err == nil || w.Status().MaxJobs != 3 {
			t.Errorf("a bad reload: error %v, max %d; want refused and 3", err, w.Status().MaxJobs)
		}
		w.end(t)
	})
}

func TestDeafLoopIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pulse
		p.beat("poll", 30*time.Second)
		p.beat("lease job_1/1", 3*time.Second)
		wait(3*time.Second + slack + time.Second)
		p.beat("poll", 30*time.Second)
		if got := p.deaf(); len(got) != 1 || got[0] != "lease job_1/1 has made no progress for 24s" {
			t.Errorf("deaf %q, want the lease's loop alone", got)
		}
		p.end("lease job_1/1")
		if got := p.deaf(); len(got) != 0 {
			t.Errorf("deaf %q, want none", got)
		}
	})
}

func TestFaultOfAPartEndsTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", takes(0))
		broken := errors.New("disk on fire")
		w.Agent.logs = &brokenLogs{fakeLogs: w.logs, err: broken}
		w.begin(t)
		<-w.ended
		if !errors.Is(w.err, broken) {
			t.Errorf("Run: %v, want the part's fault", w.err)
		}
	})
}

type brokenLogs struct {
	*fakeLogs
	err error
}

func (l *brokenLogs) Run(context.Context) error { return l.err }

// The watchdog asks while a drain goes on, too: the poll loop has ended by then, and isn't deaf.
func TestALongDrainIsAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Drain: Drain{Timeout: time.Hour}})
		w.Handle("t", takes(20*time.Minute))
		w.plane.submit("job_1")
		w.begin(t)
		wait(time.Second)
		late := make(chan error, 1)
		time.AfterFunc(15*time.Minute, func() { late <- w.Alive() })
		w.end(t)
		if err := <-late; err != nil {
			t.Errorf("after 15 minutes of a drain: %v", err)
		}
		if c := w.plane.outcome(t, "job_1"); c.Outcome != protocol.Succeeded {
			t.Errorf("outcome %s, want succeeded", c.Outcome)
		}
	})
}
