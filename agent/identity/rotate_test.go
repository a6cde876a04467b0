package identity_test

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
)

// TestAKeyRotatedUnderLoad: eight callers never see a refusal while the server lets the key run
// out again and again under them, and each rotation costs one link. AGENTD_SOAK rotates 1,000
// times instead of 50.
func TestAKeyRotatedUnderLoad(t *testing.T) {
	rotations := 50
	if os.Getenv("AGENTD_SOAK") != "" {
		rotations = 1000
	}
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := unserved(t)
		i, client := bubble(t, c, dir, token("good"))
		id := i.AgentID()
		var calls atomic.Int64
		var wg sync.WaitGroup
		done := make(chan struct{})
		for range 8 {
			wg.Go(func() {
				for {
					select {
					case <-done:
						return
					case <-time.After(time.Millisecond): // so that each has made a call or more by the next rotation
					}
					ref := protocol.AttemptRef{JobID: "j", Attempt: 1, LeaseToken: "lt"}
					if _, err := client.LogNext(t.Context(), ref); err != nil {
						t.Error(err)
					}
					calls.Add(1)
				}
			})
		}
		for n := range rotations {
			old := i.Credential()
			c.set(func() { delete(c.keys, old) })
			time.Sleep(5 * time.Millisecond)
			synctest.Wait()
			if links, attempts := c.seen(); links != n+2 || attempts != links {
				t.Fatalf("rotation %d: got %d of %d links, want %d", n, links, attempts, n+2)
			}
		}
		close(done)
		wg.Wait()
		if i.AgentID() != id || calls.Load() < int64(rotations) {
			t.Errorf("got agent %s after %d calls, want %s", i.AgentID(), calls.Load(), id)
		}
	})
}
