package fleet

import (
	"context"
	"net"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	controlplane "agentd/controlplane-mock"
	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/faults"
	"agentd/controlplane-mock/store/redka"
	"agentd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const token = "the-admin-token-of-this-test"

// serve runs the reference on loopback; outage takes its agents' side down.
func serve(t *testing.T) (url string, admin *adminclient.Client, outage *faults.Outage) {
	t.Helper()
	st, err := redka.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	srv, err := controlplane.New(controlplane.Config{Store: st, AdminToken: controlplane.SumOf(token), LeaseTTL: 20 * time.Second, Heartbeat: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	outage = faults.NewOutage(faults.OutageConfig{Rest: srv.Rest})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	web := controlplane.HTTPServer(srv.Handler(), nil)
	adminWeb := httptest.NewServer(srv.AdminHandler())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = web.Serve(outage.Listener(ln)) })
	wg.Go(func() { _ = srv.Run(ctx) })
	t.Cleanup(func() {
		outage.Close()
		cancel()
		_ = web.Close()
		adminWeb.Close()
		wg.Wait()
		_ = st.Close()
	})
	web2 := adminWeb.Client()
	t.Cleanup(web2.CloseIdleConnections)
	if admin, err = adminclient.New(adminclient.Config{URL: adminWeb.URL, Token: token, HTTP: web2}); err != nil {
		t.Fatal(err)
	}
	return "http://" + ln.Addr().String(), admin, outage
}

// begin runs a fleet until the test ends.
func begin(t *testing.T, cfg Config) *Fleet {
	t.Helper()
	cfg.AdminToken = token
	f, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	if err := f.Linked(t.Context()); err != nil {
		t.Fatal(err)
	}
	return f
}

// TestJobsOfAFleet: every job is done once, with every line that it printed.
func TestJobsOfAFleet(t *testing.T) {
	url, admin, _ := serve(t)
	f := begin(t, Config{URLs: []string{url}, Agents: 20})
	const jobs, lines = 40, 30
	if err := f.SubmitMany(t.Context(), jobs, 4, Job{Duration: 300 * time.Millisecond, Lines: lines, LineBytes: 10}); err != nil {
		t.Fatal(err)
	}
	if err := f.Completed(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	page, err := admin.Jobs(t.Context(), adminclient.JobFilter{Type: "fleet", Limit: 100})
	if err != nil || len(page.Items) != jobs {
		t.Fatalf("%d jobs, %v; want %d", len(page.Items), err, jobs)
	}
	for _, j := range page.Items {
		if j.Status != "succeeded" || len(j.Attempts) != 1 || j.Attempts[0].LogNext != lines || !j.Attempts[0].LogsComplete {
			t.Errorf("job %s is %s with %d attempts, the first's log at %+v; want one that succeeded, with %d lines", j.ID, j.Status, len(j.Attempts), j.Attempts[0], lines)
		}
	}
	s := f.Stats()
	if s.Submitted != jobs || s.Completed != jobs || s.Pickup.Count != jobs || s.Acks != jobs || s.Lost != 0 || s.Heartbeats < jobs {
		t.Errorf("stats are %+v; want %d jobs, each picked up, acknowledged and completed once", s, jobs)
	}
}

// TestAFleetComesBack: an outage takes no job away, and every agent returns by itself.
func TestAFleetComesBack(t *testing.T) {
	url, _, outage := serve(t)
	f := begin(t, Config{URLs: []string{url}, AdminURL: url, Agents: 10})
	const jobs = 10
	if err := f.SubmitMany(t.Context(), jobs, 2, Job{Duration: 2 * time.Second, Lines: 20}); err != nil {
		t.Fatal(err)
	}
	if err := f.Running(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	if err := outage.Begin(faults.OutageSpec{Mode: faults.Refuse, For: 1000}); err != nil {
		t.Fatal(err)
	}
	if err := f.Completed(t.Context(), jobs); err != nil {
		t.Fatal(err)
	}
	if s := f.Stats(); s.Lost != 0 || s.Unanswered == 0 {
		t.Errorf("%d jobs were taken away and %d calls had no answer; want 0 and some", s.Lost, s.Unanswered)
	}
}

func TestHistogram(t *testing.T) {
	var h histogram
	for i := range 1000 {
		h.add(time.Duration(i) * time.Millisecond)
	}
	got := h.summary()
	for _, c := range []struct {
		what      string
		got, want time.Duration
	}{{"p50", got.P50, 500 * time.Millisecond}, {"p99", got.P99, 990 * time.Millisecond}, {"p99.9", got.P999, 999 * time.Millisecond}, {"most", got.Max, 999 * time.Millisecond}} {
		if c.got < c.want || float64(c.got) > float64(c.want)*1.07 {
			t.Errorf("%s is %v; want at most 7 %% above %v", c.what, c.got, c.want)
		}
	}
	for us := range uint64(1 << 20) {
		if b := bucketOf(us); ceiling(b) < time.Duration(us)*time.Microsecond || b > 0 && ceiling(b-1) >= time.Duration(us)*time.Microsecond {
			t.Fatalf("%d µs is in bucket %d, which ends at %v", us, b, ceiling(b))
		}
	}
}
