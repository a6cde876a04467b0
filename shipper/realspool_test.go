package shipper

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/spool"
)

var _ Spool = (*spool.Spool)(nil)

// L14 and L6 with the spool as it is: minutes of outage, more than memory holds, a restart in the
// middle, and a proxy that takes little at a time.
func TestL14OutageThroughTheSpool(t *testing.T) {
	size := 6 << 20
	if soak() {
		size = 512 << 20
	}
	bubble(t, func(t *testing.T) {
		v := newServer()
		back := v.away()
		cfg := config(t, v)
		cfg.MaxLine = 4 << 10
		dir := filepath.Join(t.TempDir(), "spool")
		text := randomText(size)
		open := func() (*rig, func()) {
			sp, err := spool.Open(spool.Config{Dir: dir, MaxSize: max(256<<20, 2*int64(size)), MinFree: -1})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := sp.Run(ctx); err != nil {
					t.Errorf("spool ended with %v", err)
				}
			})
			cfg.Spool = sp
			return start(t, v, cfg), func() { cancel(); wg.Wait() }
		}
		r, stop := open()
		l := r.open("a")
		r.print(l, protocol.Stdout, text)
		l.Close()
		time.Sleep(3 * time.Minute)
		if st := r.Stats(); st.Memory != 0 || st.Spool != int64(strings.Count(text, "\n")) {
			t.Errorf("after minutes: %d records in memory, %d in the spool", st.Memory, st.Spool)
		}
		r.balance()
		r.stop()
		stop()
		r, stop = open()
		if rec := r.Recovered(); len(rec) != 1 || rec[0].Ref != ref("a") || rec[0].LogRecords != int64(strings.Count(text, "\n")) {
			t.Errorf("recovered %+v", rec)
		}
		back()
		v.mu.Lock()
		v.fault = func(_ protocol.AttemptRef, b protocol.LogBody) *fault {
			if n := len(strings.Join(framesOf(b), "")); n > 256<<10 {
				return &fault{err: answer(413, "")} // L6: what a proxy takes
			}
			return nil
		}
		v.mu.Unlock()
		r.flush()
		r.want("a", text)
		if len(r.cfg.Spool.Attempts()) != 0 {
			t.Errorf("the spool still holds %+v", r.cfg.Spool.Attempts())
		}
		r.stop()
		stop()
	})
}
