package agent

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/identity"
	"agentd/agent/protocol"
)

// A server that offers an attempt again while it is under way here, under another poll: it goes on, once.
func TestAttemptThatIsOfferedTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{MaxJobs: 4})
		var ran atomic.Int32
		w.Handle("t", HandlerFunc(func(ctx context.Context, _ *Attempt) Result {
			ran.Add(1)
			select {
			case <-ctx.Done():
				t.Errorf("it was ended: %v", context.Cause(ctx))
			case <-time.After(20 * time.Second):
			}
			return Result{}
		}))
		w.plane.submit("job_1")
		w.begin(t)
		wait(5 * time.Second)
		w.plane.mu.Lock()
		w.plane.attempt["job_1"] = 0
		w.plane.mu.Unlock()
		w.plane.submit("job_1", "job_2")
		wait(5 * time.Second)
		if n := len(w.Status().Jobs); n != 2 || ran.Load() != 2 {
			t.Errorf("%d attempts, %d were begun; want the first and job_2", n, ran.Load())
		}
		wait(time.Minute)
		for _, id := range []string{"job_1", "job_2"} {
			if c := w.plane.outcome(t, id); c.Outcome != protocol.Succeeded {
				t.Errorf("%s: %+v", id, c)
			}
		}
		if len(w.plane.released) != 0 {
			t.Errorf("released: %v", w.plane.released)
		}
		w.end(t)
	})
}

// J1: the poll's reply is dropped after the server leased the job.
func TestLostPollAnswersRunEachJobOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const jobs = 1000
		w := newWorld(t, Config{MaxJobs: 4})
		ran := map[string]int{}
		var mu sync.Mutex
		w.Handle("t", HandlerFunc(func(_ context.Context, a *Attempt) Result {
			mu.Lock()
			defer mu.Unlock()
			ran[a.Job.ID]++
			if a.Job.Attempt != 1 {
				t.Errorf("%s ran as attempt %d, want 1", a.Job.ID, a.Job.Attempt)
			}
			return Result{}
		}))
		served := map[string]int{}
		w.plane.lose = func(int) error { // every job's first offer is lost
			for id, job := range w.plane.offers {
				if served[job.ID]++; served[job.ID] == 1 {
					_ = id
					return errCut
				}
			}
			return nil
		}
		for i := range jobs {
			w.plane.submit(fmt.Sprintf("job_%d", i))
		}
		w.begin(t)
		wait(30 * time.Minute)
		w.end(t)
		if len(ran) != jobs {
			t.Errorf("%d jobs ran, want %d", len(ran), jobs)
		}
		for id, n := range ran {
			if n != 1 {
				t.Errorf("%s ran %d times, want once", id, n)
			}
		}
	})
}

// J7: agents come back spread over the back-off's window, and their first retry is jittered, too.
func TestReconnectsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agents := 400
		if os.Getenv("AGENTD_SOAK") != "" {
			agents = 2000
		}
		outage := 60 * time.Second
		start := time.Now()
		back := start.Add(10*time.Second + outage)
		var mu sync.Mutex
		var first, retries []time.Duration
		var worlds []*world
		for range agents {
			w := newWorld(t, Config{})
			w.Handle("t", takes(0))
			failed, arrived := 0, false
			w.plane.poll = func(_ int, _ time.Duration) error {
				now := time.Now()
				switch {
				case now.Before(start.Add(10 * time.Second)):
				case now.Before(back):
					if failed++; failed == 2 {
						mu.Lock()
						retries = append(retries, now.Sub(start.Add(10*time.Second)))
						mu.Unlock()
					}
					return errAway
				case !arrived:
					arrived = true
					mu.Lock()
					first = append(first, now.Sub(back))
					mu.Unlock()
				}
				return nil
			}
			w.begin(t)
			worlds = append(worlds, w)
		}
		wait(2 * time.Minute)
		for _, w := range worlds {
			w.stop()
		}
		for _, w := range worlds {
			w.end(t)
		}
		if len(first) != agents {
			t.Fatalf("%d agents came back, want %d", len(first), agents)
		}
		slices.Sort(first)
		if spread := first[len(first)-1] - first[0]; spread < 25*time.Second {
			t.Errorf("arrivals are spread over %v, want the 30 s of the back-off, nearly", spread)
		}
		perSecond := map[time.Duration]int{}
		for _, d := range first {
			perSecond[d.Truncate(time.Second)]++
		}
		for s, n := range perSecond {
			if n > agents/8 {
				t.Errorf("%d of %d agents came back in second %v", n, agents, s)
			}
		}
		slices.Sort(retries)
		if spread := retries[len(retries)*9/10] - retries[len(retries)/10]; spread < 200*time.Millisecond {
			t.Errorf("first retries: the middle 80 %% are spread over %v, want jitter from the first on", spread)
		}
	})
}

// J9: a proxy cuts every request at some age.
func TestProxyThatCutsPollsIsLearned(t *testing.T) {
	for _, cut := range []time.Duration{20 * time.Second, 30 * time.Second, 55 * time.Second} {
		for _, err := range []error{errCut, &protocol.Error{Op: "poll", Status: 504}} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{})
				w.ident.link.PollWait = protocol.ToMillis(50 * time.Second)
				w.Handle("t", takes(0))
				w.plane.poll = func(_ int, age time.Duration) error {
					if age >= cut {
						return err
					}
					return nil
				}
				w.begin(t)
				wait(10 * time.Minute)
				w.plane.submit("job_1")
				wait(time.Minute)
				st := w.Status()
				w.end(t)
				want := 50 * time.Second // beyond the wait nothing is cut
				if cut < want {
					want = cut * 4 / 5
				}
				if st.Polls.Wait != want || st.Polls.Learned != (cut < 50*time.Second) {
					t.Errorf("cut at %v: polls wait %v (learned %v), want %v", cut, st.Polls.Wait, st.Polls.Learned, want)
				}
				if c := w.plane.outcome(t, "job_1"); c.Outcome != protocol.Succeeded || c.Attempt != 1 {
					t.Errorf("cut at %v: outcome %+v, want succeeded as attempt 1", cut, c)
				}
			})
		}
	}
}

func TestLearnedWait(t *testing.T) {
	gateway := &protocol.Error{Op: "poll", Status: 502}
	unavailable := &protocol.Error{Op: "poll", Status: 503, Code: protocol.CodeUnavailable}
	type cut struct {
		age time.Duration
		err error
	}
	s := time.Second
	for name, row := range map[string]struct {
		cuts []cut
		want time.Duration
	}{
		"three alike":              {[]cut{{20 * s, gateway}, {20 * s, errCut}, {20*s + s/2, gateway}}, 16 * s},
		"two are not enough":       {[]cut{{20 * s, gateway}, {20 * s, gateway}}, 0},
		"ages far apart":           {[]cut{{20 * s, gateway}, {10 * s, gateway}, {15 * s, gateway}}, 0},
		"a restart cuts at once":   {[]cut{{s, gateway}, {s, gateway}, {s, gateway}}, 0},
		"the server says so":       {[]cut{{20 * s, unavailable}, {20 * s, unavailable}, {20 * s, unavailable}}, 0},
		"a refusal between":        {[]cut{{20 * s, gateway}, {20 * s, gateway}, {0, errAway}, {20 * s, gateway}}, 0},
		"later than asked for":     {[]cut{{45 * s, errCut}, {45 * s, errCut}, {45 * s, errCut}}, 0},
		"a different age restarts": {[]cut{{10 * s, gateway}, {20 * s, gateway}, {20 * s, gateway}, {20 * s, gateway}}, 16 * s},
	} {
		var l learnedWait
		for _, c := range row.cuts {
			l.cut(30*s, c.age, c.err)
		}
		if l.learned != row.want {
			t.Errorf("%s: learned %v, want %v", name, l.learned, row.want)
		}
	}
}

// J10: 10,000 offers that come to nothing leave no slot taken.
func TestCountersReturnToZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{MaxJobs: 3})
		w.Handle("t", takes(0))
		w.plane.beat = func(string) error { return leaseLost }
		for i := range 10_000 {
			w.plane.submit(fmt.Sprintf("job_%d", i))
		}
		w.begin(t)
		wait(time.Second) // nothing in it takes time
		w.plane.mu.Lock()
		left := len(w.plane.pending)
		w.plane.mu.Unlock()
		if left != 0 {
			t.Errorf("%d jobs were never offered", left)
		}
		if st := w.Status(); st.Running != 0 || len(st.Jobs) != 0 {
			t.Errorf("status says %d running, %d jobs; want none", st.Running, len(st.Jobs))
		}
		w.end(t)
	})
}

func TestOnlyFreeSlotsAreDemand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{MaxJobs: 2})
		w.Handle("t", takes(time.Hour))
		w.plane.submit("a", "b", "c")
		w.begin(t)
		wait(10 * time.Minute)
		if st := w.Status(); st.Running != 2 || len(st.Jobs) != 2 {
			t.Errorf("%d running, want 2", st.Running)
		}
		if n := len(w.plane.pollsSeen()); n != 2 {
			t.Errorf("%d polls, want 2: with every slot taken nothing is asked for", n)
		}
		if err := w.Alive(); err != nil {
			t.Errorf("Alive: %v, want nil while waiting for a slot", err)
		}
		w.end(t)
	})
}

// A poll takes a slot while it is under way, and none while it waits to be tried again.
func TestRunningJobsAreCountedWhilePollsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{MaxJobs: 3})
		w.Handle("t", takes(time.Hour))
		w.plane.submit("a")
		w.plane.poll = func(n int, _ time.Duration) error {
			if n > 1 {
				return errAway
			}
			return nil
		}
		w.begin(t)
		for range 100 {
			wait(time.Second)
			if st := w.Status(); st.Running != 1 {
				t.Fatalf("%d running, want 1; polls failed %d times", st.Running, st.Polls.Failing)
			}
		}
		w.end(t)
	})
}

func TestPollIDsAreNewAfterAnAnswerOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", takes(0))
		w.plane.poll = func(n int, _ time.Duration) error {
			if n == 1 || n == 2 {
				return errAway
			}
			return nil
		}
		w.begin(t)
		wait(3 * time.Minute)
		w.end(t)
		p := w.plane.pollsSeen()
		if p[0].id == p[1].id || p[1].id != p[2].id || p[2].id != p[3].id || p[3].id == p[4].id {
			t.Errorf("ids %v: want the same one after a failure, another after an answer", p[:5])
		}
	})
}

func TestRefusedAgentStopsAskingAndKeepsItsJobs(t *testing.T) {
	for _, code := range []protocol.Code{protocol.CodeIdentityConflict, protocol.CodeRevoked} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, Config{})
			w.Handle("t", takes(10*time.Minute))
			w.plane.submit("job_1")
			refused := false
			w.plane.poll = func(n int, _ time.Duration) error {
				if refused {
					return &protocol.Error{Op: "poll", Status: map[protocol.Code]int{protocol.CodeRevoked: 403}[code] + map[protocol.Code]int{protocol.CodeIdentityConflict: 409}[code], Code: code}
				}
				return nil
			}
			w.begin(t)
			wait(time.Minute)
			w.plane.mu.Lock()
			refused = true
			w.plane.mu.Unlock()
			wait(2 * time.Minute)
			n := len(w.plane.pollsSeen())
			wait(5 * time.Minute)
			if got := len(w.plane.pollsSeen()); got != n {
				t.Errorf("%s: %d more polls, want none", code, got-n)
			}
			if st := w.Status(); st.State != "refused" || st.Healthy || len(st.Jobs) != 1 {
				t.Errorf("%s: state %s healthy %v jobs %d, want refused with its job going on", code, st.State, st.Healthy, len(st.Jobs))
			}
			w.plane.mu.Lock()
			refused = false
			w.plane.mu.Unlock()
			w.ident.set(identity.Linked) // as after a restore
			wait(6 * time.Minute)
			if got := len(w.plane.pollsSeen()); got == n {
				t.Errorf("%s: no poll after the identity stands again", code)
			}
			if c := w.plane.outcome(t, "job_1"); c.Outcome != protocol.Succeeded {
				t.Errorf("%s: outcome %s, want succeeded", code, c.Outcome)
			}
			w.end(t)
		})
	}
}

// C7's part here: a full disk stops the taking of jobs, says so, and ends by itself.
func TestFullDiskTakesNoJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", takes(0))
		w.logs.setFull("the spool is full")
		w.begin(t)
		w.plane.submit("job_1")
		wait(time.Minute)
		if n := len(w.plane.pollsSeen()); n != 0 {
			t.Errorf("%d polls on a full disk, want none", n)
		}
		if st := w.Status(); st.Healthy || !strings.Contains(st.Polls.Waiting, "full") {
			t.Errorf("status healthy=%v waiting=%q, want it to say why", st.Healthy, st.Polls.Waiting)
		}
		w.logs.setFull("")
		wait(10 * time.Second)
		if c := w.plane.outcome(t, "job_1"); c.Outcome != protocol.Succeeded {
			t.Errorf("outcome %s, want succeeded", c.Outcome)
		}
		w.end(t)
	})
}

func TestJobOfferedAnewEndsItsOlderAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		live, most := 0, 0
		var mu sync.Mutex
		w.Handle("t", HandlerFunc(func(ctx context.Context, a *Attempt) Result {
			mu.Lock()
			live++
			most = max(most, live)
			mu.Unlock()
			defer func() { mu.Lock(); live--; mu.Unlock() }()
			return takes(time.Minute).Run(ctx, a)
		}))
		w.plane.submit("job_1")
		w.begin(t)
		wait(time.Second)
		w.plane.submit("job_1") // as after the reaper
		wait(2 * time.Minute)
		if most != 1 {
			t.Errorf("%d attempts of one job at once, want 1", most)
		}
		if c := w.plane.outcome(t, "job_1"); c.Attempt != 2 || c.Outcome != protocol.Succeeded {
			t.Errorf("outcome %+v, want attempt 2 succeeded", c)
		}
		if want := []string{"job_1/1"}; !slices.Equal(w.logs.final, want) {
			t.Errorf("final logs %v, want %v", w.logs.final, want)
		}
		w.end(t)
	})
}

func TestOfferOfAnUnknownTypeIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("other", takes(0))
		w.plane.submit("job_1")
		w.begin(t)
		wait(time.Second)
		if r := w.plane.released["job_1/1"]; r != "no handler for type t" {
			t.Errorf("released with %q", r)
		}
		w.end(t)
	})
}

// What can't be begun here is given back, and not asked for again in a tight loop.
func TestFaultOfItsOwnGivesTheJobBackAndRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.Handle("t", HandlerFunc(func(context.Context, *Attempt) Result { t.Error("ran"); return Result{} }))
		w.logs.refuse = errAway
		for i := range 100 {
			w.plane.submit(fmt.Sprintf("job_%d", i))
		}
		w.begin(t)
		wait(time.Minute)
		w.plane.mu.Lock()
		n := len(w.plane.released)
		w.plane.mu.Unlock()
		if n < 2 || n > 14 {
			t.Errorf("%d jobs were taken and given back in a minute, want one or two every %v", n, faultPause)
		}
		if left := w.journal.Entries(); len(left) != 0 {
			t.Errorf("journal keeps %d entries of jobs that never began", len(left))
		}
		w.end(t)
	})
}
