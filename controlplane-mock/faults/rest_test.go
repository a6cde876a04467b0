package faults_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/controlplane-mock/faults"
)

// TestOutageRestsTheReaper: from its begin to its end the server rests, whoever ends it, and not much longer.
func TestOutageRestsTheReaper(t *testing.T) {
	for name, tc := range map[string]struct {
		spec  faults.OutageSpec
		after time.Duration // ended by hand; 0: by itself
		rests bool
	}{
		"to its end":  {faults.OutageSpec{Mode: faults.Refuse, For: 20_000}, 0, true},
		"ended early": {faults.OutageSpec{Mode: faults.Blackhole, For: 3_600_000}, 7300 * time.Millisecond, true},
		"partition":   {faults.OutageSpec{Mode: faults.Refuse, For: 20_000, Partition: true}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var rested time.Time
				resting := func() time.Time {
					mu.Lock()
					defer mu.Unlock()
					return rested
				}
				out := faults.NewOutage(faults.OutageConfig{Rest: func(d time.Duration) {
					mu.Lock()
					defer mu.Unlock()
					if until := time.Now().Add(d); until.After(rested) {
						rested = until
					}
				}})
				if err := out.Begin(tc.spec); err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				for out.State().Active {
					if got := resting().After(time.Now()); got != tc.rests {
						t.Fatalf("%v into the outage: rests %v, want %v", time.Since(begun), got, tc.rests)
					}
					if tc.after > 0 && time.Since(begun) >= tc.after {
						out.End()
					}
					time.Sleep(100 * time.Millisecond)
					synctest.Wait()
				}
				ended := time.Now()
				time.Sleep(time.Minute)
				if over := resting().Sub(ended); tc.rests && (over < -100*time.Millisecond || over > 2*time.Second) {
					t.Errorf("rests until %v after the end, want 0 to 2 s", over)
				}
				out.Close()
				if err := out.Begin(tc.spec); err == nil {
					t.Error("an outage began on a server that shuts down")
				}
			})
		})
	}
}
