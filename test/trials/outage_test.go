package trials

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"agentd/agent"
	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/faults"
	"agentd/test/stack"
)

// backlog makes size bytes wait at the agent, more than its memory holds: a job prints them while the control
// plane is away, and ends.
func (w *world) backlog(t *testing.T, size int64) (id string, does work) {
	t.Helper()
	does = work{Lines: size / 200, Size: 200, Burst: 100, Both: true}
	id = w.print(t, adminclient.Submission{MaxAttempts: 1}, &does)
	w.await(t, id, "the job runs", running)
	w.out(t, faults.Refuse, false)
	until(t, "all is printed", func() bool { return does.truth(t).Printed })
	// Printed is not read: what the pipe holds keeps the attempt running, and a stop in a hurry would end it.
	until(t, "the attempt has ended", func() bool {
		return !slices.ContainsFunc(w.status(t).Jobs, func(j agent.JobStatus) bool { return j.State == "running" })
	})
	return id, does
}

// keeps is a config whose spool takes a backlog of size; epochs stay small.
func keeps(size int64) string {
	if size < 40<<20 {
		return logsSmall
	}
	return "logs: {memory: 4MiB, spool: {max_size: 4GiB, min_free: 0%}}\n"
}

func TestL14OutageOfMoreThanMemoryHolds(t *testing.T) {
	t.Parallel()
	size := scaled[int64](20e6, 1e9)
	w := begin(t, keeps(size), "--lease-ttl", "60s")
	id, does := w.backlog(t, size)
	// The last lines are spooled after 2 s.
	until(t, "all that waits is in the spool", func() bool { st := w.status(t).Logs; return st.Spool > 0 && st.Memory == 0 })
	pass(scaled(time.Second, 5*time.Minute))
	w.back(t)
	w.whole(t, w.ended(t, id, "succeeded"), does)
	until(t, "the spool gives its space back", func() bool { return w.status(t).Logs.Spool == 0 })
}

// A proxy takes 256 KiB at most, and there is a backlog.
func TestL6BacklogThroughASmallProxy(t *testing.T) {
	t.Parallel()
	size := scaled[int64](12e6, 2e9)
	w := beginWith(t, stack.Config{NoAgent: true, Config: keeps(size), ServerArgs: []string{"--lease-ttl", "60s"}})
	to, err := url.Parse(w.URL)
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(to)
	idle := &http.Transport{}
	forward.Transport = idle
	t.Cleanup(idle.CloseIdleConnections)
	var refused atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.ContentLength > 256<<10 {
			refused.Add(1)
			http.Error(rw, "<html>413 Request Entity Too Large</html>", http.StatusRequestEntityTooLarge)
			return
		}
		forward.ServeHTTP(rw, r)
	}))
	t.Cleanup(proxy.Close)
	t.Cleanup(proxy.CloseClientConnections)
	if err := w.Join(t.Context(), proxy.URL); err != nil {
		t.Fatal(err)
	}
	id, does := w.backlog(t, size)
	w.back(t)
	w.whole(t, w.ended(t, id, "succeeded"), does)
	if n := refused.Load(); n == 0 || n > 100 {
		t.Errorf("%d bodies were refused, want some and then none", n)
	}
}
