package shipper

import (
	"errors"
	"testing"
	"time"

	"agentd/agent/protocol"
)

// TestMemoryThatIsGoneIsOwnedUpTo: the host has rebooted, and its tmpfs is empty. What the server and the spool have
// stands; behind it a gap record says that more may have been.
func TestMemoryThatIsGoneIsOwnedUpTo(t *testing.T) {
	for name, c := range map[string]struct {
		spooled bool  // the rest after the first line had gone to the spool
		closed  int64 // the log's length, if the journal knew it
		want    string
		gap     int64
	}{
		"length unknown, nothing spooled": {want: "n=1 …", gap: 1},
		"length unknown, rest spooled":    {spooled: true, want: "n=1 … n=2 … n=3 …", gap: 1},
		"length known, nothing spooled":   {closed: 3, want: "n=1 …", gap: 2},
		"length known, all spooled":       {spooled: true, closed: 3, want: "n=1 … n=2 … n=3 …"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				v, m := newServer(), newMemSpool()
				dir := t.TempDir()
				r := start(t, v, Config{QueueFile: dir + "/q", Memory: 1 << 20, Spool: m, Sender: v})
				l := r.open("job")
				r.print(l, protocol.Stdout, numbered(1, 1))
				time.Sleep(time.Second)
				v.away()
				r.print(l, protocol.Stdout, numbered(2, 3))
				if c.spooled {
					time.Sleep(5 * time.Second)
				} else {
					m.mu.Lock()
					m.err = errors.New("the disk is away, too")
					m.mu.Unlock()
				}
				r.stopAnyhow()
				m.mu.Lock()
				m.err = nil
				m.mu.Unlock()
				v.mu.Lock()
				v.fault = nil
				v.mu.Unlock()

				r = start(t, v, Config{QueueFile: dir + "/another", Memory: 1 << 20, Spool: m, Sender: v})
				for _, f := range r.Recovered() {
					if f.InMemory {
						t.Errorf("found in memory that is gone: %+v", f)
					}
				}
				r.MemoryLost(ref("job"), c.closed)
				r.MemoryLost(ref("job"), c.closed) // saying it twice loses nothing more,
				time.Sleep(time.Minute)
				r.MemoryLost(ref("job"), c.closed) // nor does it once the first gap is stored
				time.Sleep(time.Minute)
				r.flush()
				var got string
				gap := int64(0)
				for _, rec := range v.records(ref("job")) {
					if rec.Gap > 0 {
						gap += rec.Gap
						if rec.Reason != protocol.GapDamaged {
							t.Errorf("reason %q", rec.Reason)
						}
						continue
					}
					if got != "" {
						got += " "
					}
					got += rec.Text[:4] + "…"
				}
				if got != c.want || gap != c.gap {
					t.Errorf("server has %q and a gap of %d, want %q and %d", got, gap, c.want, c.gap)
				}
				v.mu.Lock()
				defer v.mu.Unlock()
				if log := v.log(ref("job")); log.final != log.next {
					t.Errorf("the log was said to end at %d, and has %d", log.final, log.next)
				}
			})
		})
	}
}
