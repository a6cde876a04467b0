package leasekeeper

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
)

// cutOffRow is one row of the table: how long the agent is cut off, and what may become of attempt 1.
type cutOffRow struct {
	cut       time.Duration
	other     bool // another agent waits for work
	exclusive bool
	grace     time.Duration
	want      ends
}

type ends map[string]bool // what may end the attempt

const (
	goesOn  = "none"
	lostIt  = "leaseLost"
	expired = "leaseExpired"
)

var cutOffRows = []cutOffRow{
	{5 * time.Second, false, false, 10 * time.Second, ends{goesOn: true}},
	{5 * time.Second, true, false, 10 * time.Second, ends{goesOn: true}},
	{5 * time.Second, false, true, 10 * time.Second, ends{expired: true}},
	{5 * time.Second, true, true, 10 * time.Second, ends{expired: true}},
	{11 * time.Second, false, false, 10 * time.Second, ends{goesOn: true, lostIt: true}},
	{11 * time.Second, true, false, 10 * time.Second, ends{goesOn: true, lostIt: true}},
	{11 * time.Second, false, true, 10 * time.Second, ends{expired: true}},
	{11 * time.Second, true, true, 10 * time.Second, ends{expired: true}},
	{time.Minute, false, false, 10 * time.Second, ends{lostIt: true}},
	{time.Minute, true, false, 10 * time.Second, ends{lostIt: true}},
	{time.Minute, false, true, 10 * time.Second, ends{expired: true}},
	{time.Minute, true, true, 10 * time.Second, ends{expired: true}},
	{10 * time.Minute, false, false, 10 * time.Second, ends{lostIt: true}},
	{10 * time.Minute, true, false, 10 * time.Second, ends{lostIt: true}},
	{10 * time.Minute, false, true, 10 * time.Second, ends{expired: true}},
	{10 * time.Minute, true, true, 10 * time.Second, ends{expired: true}},
	// A short grace leaves an exclusive job more of its window.
	{2 * time.Second, true, true, time.Second, ends{goesOn: true}},
}

// The table of docs/leases.md (J5): an agent is cut off, the server and its reaper are not. Each row
// is tried with the cut at 13 phases of the held heartbeat, since that decides who is faster.
func TestCutOffAgent(t *testing.T) {
	for _, row := range cutOffRows {
		name := fmt.Sprintf("cut=%v other=%v exclusive=%v grace=%v", row.cut, row.other, row.exclusive, row.grace)
		t.Run(name, func(t *testing.T) {
			for phase := range 13 {
				synctest.Test(t, func(t *testing.T) {
					o := cutOff(t, time.Duration(phase)*250*time.Millisecond, row.cut, row.other, row.exclusive, row.grace)
					if !row.want[o.cause] {
						t.Errorf("phase %d: attempt 1 ended with %s, want one of %v", phase, o.cause, row.want)
					}
					o.check(t, phase, row.cut, row.other, row.exclusive)
				})
			}
		})
	}
}

// outcome is what became of attempt 1, and when others were given the job.
type outcome struct {
	cause  string
	gone   time.Time // when its last process had ended; zero = it goes on
	cutAt  time.Time
	leased []time.Time
}

// answerAndGrace: a heartbeat that is still waiting (3.4 s), a pause (2 s), the grace (10 s), the kill (1 s).
const answerAndGrace = 17 * time.Second

func (o outcome) check(t *testing.T, phase int, cut time.Duration, other, exclusive bool) {
	t.Helper()
	again := len(o.leased) > 1
	switch {
	case o.cause == "none" && again:
		t.Errorf("phase %d: attempt 1 goes on and the job was leased again", phase)
	case o.cause == "leaseLost" && !again:
		t.Errorf("phase %d: attempt 1 lost its lease and nobody got the job", phase)
	case o.cause == "leaseLost" && o.gone.Sub(o.cutAt) > cut+answerAndGrace:
		t.Errorf("phase %d: attempt 1 was gone %v after the cut of %v, want within the answer, the back-off and the grace", phase, o.gone.Sub(o.cutAt), cut)
	}
	if !again {
		return
	}
	second := o.leased[1]
	if exclusive && second.Before(o.gone) {
		t.Errorf("phase %d: exclusive, and leased again %v before its processes were gone", phase, o.gone.Sub(second))
	}
	if back := o.cutAt.Add(cut); !other && second.Before(back) {
		t.Errorf("phase %d: leased again before the only agent was back", phase)
	}
	// 10 s TTL, up to 3 s of hold that the server renews again after, reaper within a quarter TTL
	if other && second.Sub(o.cutAt) > 16*time.Second {
		t.Errorf("phase %d: another agent waited %v for the job, want at most 16 s", phase, second.Sub(o.cutAt))
	}
}

// cutOff plays one cut. The attempt's process uses its whole grace, and the kill its whole time.
func cutOff(t *testing.T, phase, cut time.Duration, other, exclusive bool, grace time.Duration) outcome {
	t.Helper()
	p := newPlane(ttl)
	n, _ := p.lease()
	k, err := New(Config{
		Ref: protocol.AttemptRef{JobID: "j", Attempt: n}, TTL: ttl, Exclusive: exclusive, Grace: grace, Sender: p, Clock: bubbleClock(),
	})
	if err != nil {
		t.Fatal(err)
	}
	world, over := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer over()
	wg.Go(func() { p.reap(world) })

	o := outcome{cause: "none"}
	finish := make(chan struct{})
	wg.Go(func() {
		_ = k.Run(world, func(job context.Context) {
			select {
			case <-finish:
				return
			case <-job.Done():
			}
			o.cause = causeName(context.Cause(job))
			time.Sleep(k.GraceFor(context.Cause(job)) + min(killTime, ttl/10))
			o.gone = time.Now()
			// An attempt that ended by itself reports, or tries to, until its outcome is settled.
			<-finish
		})
	})
	time.Sleep(20*time.Second + phase)
	o.cutAt = time.Now()
	p.setCut(true)
	if other {
		wg.Go(func() { waitForLease(world, p) })
	}
	time.Sleep(cut)
	p.setCut(false)
	if !other { // the agent itself polls again, once it is back and has a free slot
		wg.Go(func() { waitForLease(world, p) })
	}
	time.Sleep(40 * time.Second)
	close(finish)
	over()
	wg.Wait()
	o.leased = p.leased
	return o
}

// waitForLease is a held poll: it gets the job in the moment it is pending, and keeps its lease.
func waitForLease(ctx context.Context, p *plane) {
	for ctx.Err() == nil {
		if _, ok := p.lease(); ok {
			p.mu.Lock()
			p.deadline = time.Now().Add(time.Hour)
			p.mu.Unlock()
			return
		}
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
}

// While the whole server is away its reaper rests, and for one TTL after: nothing is taken from anyone.
func TestServerOutageCostsANonExclusiveJobNothing(t *testing.T) {
	for _, outage := range []time.Duration{5 * time.Second, time.Minute, 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			p := newPlane(ttl)
			k := keepOn(t, p, Config{Grace: time.Second})
			time.Sleep(10 * time.Second)
			p.setCut(true)
			time.Sleep(outage)
			p.setCut(false)
			world, over := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				if sleep(world, ttl) {
					p.reap(world)
				}
			})
			time.Sleep(time.Minute)
			if err := context.Cause(k.job); err != nil {
				t.Errorf("outage of %v: ended with %v, want to go on", outage, err)
			}
			if err := k.stop(); err != nil {
				t.Fatal(err)
			}
			over()
			wg.Wait()
		})
	}
}

// The window's arithmetic over all TTLs and graces that make sense: the parts fit, and a good network never ends an exclusive job.
func TestWindowFits(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 2 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 10 * time.Minute} {
		for _, grace := range []time.Duration{0, time.Second, 10 * time.Second, time.Hour} {
			w := newWindow(ttl, grace)
			if got := w.budget() + w.grace + w.kill + w.margin; got != ttl {
				t.Errorf("ttl %v grace %v: parts sum to %v", ttl, grace, got)
			}
			if w.grace > ttl/2 {
				t.Errorf("ttl %v grace %v: capped at %v, want at most half the TTL", ttl, grace, w.grace)
			}
			if two := 2 * w.hold(true); two > w.budget()/2 {
				t.Errorf("ttl %v grace %v: two holds are %v of a budget of %v, want at most half", ttl, grace, two, w.budget())
			}
			if p := w.pace(time.Hour, true); p > max(w.budget()/2, minPace) {
				t.Errorf("ttl %v grace %v: pace %v of a budget of %v", ttl, grace, p, w.budget())
			}
			if h := w.hold(false); h > maxHold || h > ttl/3 {
				t.Errorf("ttl %v: hold %v, want at most 3 s and a third", ttl, h)
			}
		}
	}
}
