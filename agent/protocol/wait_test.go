package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
)

func TestBackOffHasFullJitter(t *testing.T) {
	for longest, want := range map[time.Duration][]time.Duration{
		0: {
			500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second, 30 * time.Second,
		},
		protocol.LongestHeartbeatBackOff: {500 * time.Millisecond, time.Second, 2 * time.Second, 2 * time.Second},
	} {
		// The same number of each of many back-offs: their means and ranges say what the bound is,
		// and that every pause down to nothing occurs, the first included.
		const many = 4000
		for round := range 2 { // before and after Reset
			sum, least, most := make([]time.Duration, len(want)), make([]time.Duration, len(want)), make([]time.Duration, len(want))
			for range many {
				b := protocol.NewBackOff(longest)
				if round == 1 {
					b.NextBackOff()
					b.NextBackOff()
					b.Reset()
				}
				for i := range want {
					d := b.NextBackOff()
					sum[i] += d
					most[i] = max(most[i], d)
					if least[i] == 0 || d < least[i] {
						least[i] = d
					}
				}
			}
			for i, bound := range want {
				mean := sum[i] / many
				if most[i] > bound || most[i] < bound*95/100 || least[i] > bound*5/100 || mean < bound*45/100 || mean > bound*55/100 {
					t.Errorf("pause %d: from %v to %v, mean %v; want evenly from 0 to %v", i, least[i], most[i], mean, bound)
				}
			}
		}
	}
}

func TestPauseHonoursRetryAfterAndTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := protocol.Pause(t.Context(), protocol.NewBackOff(time.Second), &protocol.Error{RetryAfter: 20 * time.Second})
		if took := time.Since(start); err != nil || took < 20*time.Second || took > 21*time.Second {
			t.Errorf("got %v after %v, want 20 to 21 s", err, took)
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("draining"))
		start = time.Now()
		err = protocol.Pause(ctx, protocol.NewBackOff(0), &protocol.Error{RetryAfter: time.Hour})
		if err == nil || err.Error() != "draining" || time.Since(start) != 0 {
			t.Errorf("got %v after %v, want draining at once", err, time.Since(start))
		}
	})
}

// silent never answers, as a black hole behind a proxy.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestEveryCallHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newClient(t, protocol.ClientConfig{Server: "https://control.example.com", Base: silent{}})
		ctx := context.Background()
		megabyte := make([]byte, 1<<20)
		for name, c := range map[string]struct {
			call func() error
			want time.Duration
		}{
			"poll": {func() error {
				_, err := client.NextJob(ctx, protocol.PollRequest{PollID: "p", Wait: 30 * time.Second, Types: []string{"x"}})
				return err
			}, 45 * time.Second},
			"activate": {func() error {
				_, err := client.Activate(ctx, protocol.Activation{Type: "t", Connectors: []string{"c"}, MaxQueries: 1, Wait: 30000})
				return err
			}, 45 * time.Second},
			"heartbeat": {func() error {
				_, err := client.Heartbeat(ctx, "job_1", 3*time.Second, protocol.HeartbeatRequest{Attempt: 1, LeaseToken: "lt"})
				return err
			}, 6 * time.Second},
			"complete": {func() error {
				return client.Complete(ctx, "job_1", protocol.Completion{Attempt: 1, LeaseToken: "lt", Outcome: protocol.Lost})
			}, 30 * time.Second},
			"release":  {func() error { return client.Release(ctx, "job_1", protocol.Release{Attempt: 1, LeaseToken: "lt"}) }, 30 * time.Second},
			"log next": {func() error { _, err := client.LogNext(ctx, ref); return err }, 30 * time.Second},
			"ship log": {func() error {
				_, err := client.ShipLog(ctx, ref, protocol.LogBody{Count: 1, Frames: [][]byte{megabyte}})
				return err
			}, 46 * time.Second},
			"challenge": {func() error {
				_, err := client.Challenge(ctx, protocol.ChallengeRequest{PublicKey: make([]byte, 32)})
				return err
			}, 30 * time.Second},
			"answer": {func() error {
				return client.Answer(ctx, "q_1", protocol.Answer{LeaseToken: "lt", Page: &protocol.Page{}})
			}, 30 * time.Second},
		} {
			start := time.Now()
			err := c.call()
			if took := time.Since(start); took != c.want || !errors.Is(err, context.DeadlineExceeded) ||
				!strings.Contains(err.Error(), fmt.Sprintf("no answer within %v", c.want)) || protocol.ActionFor(err) != protocol.Retry {
				t.Errorf("%s: got %v after %v, want no answer within %v", name, err, took, c.want)
			}
		}
	})
}

// TestReturningAgentsSpreadOut is J7 for the back-off alone: 2,000 agents fail together, retry
// through an outage of 60 s, and come back over 30 s, never in a crowd.
func TestReturningAgentsSpreadOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const agents, outage = 2000, 60 * time.Second
		start := time.Now()
		arrived := make(chan time.Duration, agents)
		for range agents {
			go func() {
				b := protocol.NewBackOff(0)
				for time.Since(start) < outage {
					if err := protocol.Pause(t.Context(), b, errors.New("down")); err != nil {
						t.Error(err)
					}
				}
				arrived <- time.Since(start) - outage
			}()
		}
		perSecond := map[int]int{}
		var last time.Duration
		for range agents {
			d := <-arrived
			perSecond[int(d/time.Second)]++
			last = max(last, d)
		}
		most := 0
		for _, n := range perSecond {
			most = max(most, n)
		}
		// Even would be 67 a second; who waits for his first long pause is a little more likely early.
		if last < 27*time.Second || last > 30*time.Second || most > agents/10 {
			t.Errorf("the last came after %v, the fullest second had %d of %d", last, most, agents)
		}
	})
}
