package instances

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"agentd/controlplane-mock/adminclient"
)

// The database crashes under load and stays away for longer than a lease lives: every instance says 503 and when to come
// back, and is not ready; when the database is back everything goes on by itself, and no job is run twice.
func TestDatabaseIsLost(t *testing.T) {
	t.Parallel()
	w := begin(t, "")
	l := newLedger()
	ctx, stop := context.WithCancel(t.Context())
	var working sync.WaitGroup
	defer working.Wait()
	defer stop()
	for i := range 8 {
		a := newAgent(t, w, fmt.Sprint("agent-", i), "work")
		working.Go(func() {
			for j := a.poll(ctx, "work"); j != nil; j = a.poll(ctx, "work") {
				a.run(ctx, l, j)
			}
		})
	}
	var ids []string
	submit := func(n int) {
		for range n {
			ids = append(ids, w.submit(ctx, t, adminclient.Submission{Type: "work"}, strconv.Itoa(len(ids))))
		}
	}
	for range scaled(1, 10) {
		submit(40)
		if err := w.db.Crash(); err != nil {
			t.Fatal(err)
		}
		for _, s := range w.all {
			for _, path := range []string{"/readyz", "/api/v1/jobs"} {
				w.unavailable(t, s.URL+path)
			}
		}
		pass(ttl * 3 / 2)
		if err := w.db.Again(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, s := range w.all {
			until(t, "an instance is ready again", func() bool { return s.Admin.Ready(t.Context()) == nil })
		}
		submit(10)
	}
	for _, id := range ids {
		w.whole(t, l, id)
	}
}

// unavailable waits until a GET is answered as one that can't be served now.
func (w *world) unavailable(t *testing.T, url string) {
	t.Helper()
	until(t, url+" is unavailable", func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		began := time.Now()
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Errorf("%s is not answered: %v", url, err)
			return true
		}
		defer resp.Body.Close()
		after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		if resp.StatusCode == http.StatusServiceUnavailable && (err != nil || after < 1) {
			t.Errorf("%s: 503 without a Retry-After that is one: %q", url, resp.Header.Get("Retry-After"))
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s was answered after %v: nobody waits for that long", url, took)
		}
		return resp.StatusCode == http.StatusServiceUnavailable
	})
}
