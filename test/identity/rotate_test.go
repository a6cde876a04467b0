package identity

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestKeysRotateUnderLoad: the agent's key is replaced again and again, by its own renewals and by an admin who expires it, while
// jobs print all the time and others come and go. No line is lost or arrives twice, and no job fails. 1,000 keys with AGENTD_SOAK.
func TestKeysRotateUnderLoad(t *testing.T) {
	t.Parallel()
	keys := 30
	if os.Getenv("AGENTD_SOAK") != "" {
		keys = 1000
	}
	w := startWith(t, "max_jobs: 5\n", "--key-ttl", "1s")
	stop := filepath.Join(w.StateDir, "stop")
	printed := func(i int) string { return filepath.Join(w.StateDir, fmt.Sprint("printed-", i)) }
	streams := make([]string, 3)
	for i := range streams {
		streams[i] = w.submit(fmt.Sprintf("i=1; while [ ! -e %s ]; do echo n=$i; i=$((i+1)); sleep 0.01; done; echo $i > %[2]s.new; mv %[2]s.new %[2]s", stop, printed(i)))
	}
	for _, id := range streams {
		w.prints(id)
	}
	var short []string
	first, began := w.links(), time.Now()
	for n := first; n < first+keys; n = w.links() {
		if n%3 != 0 { // two of three don't wait for the renewal at 75 % of the key's life
			if _, err := w.Admin.ExpireKey(t.Context(), w.AgentID); err != nil {
				t.Fatal(err)
			}
		}
		if len(short) <= (n-first)/8 {
			short = append(short, w.submit(fmt.Sprintf(lines, 1, 100)))
		}
		until(t, "another key", func() bool { return w.links() > n })
	}
	t.Logf("%d keys in %v", w.links()-first, time.Since(began).Round(time.Second))
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, id := range streams {
		var text []byte
		until(t, "job "+id+" stops", func() (ok bool) {
			var err error
			text, err = os.ReadFile(printed(i))
			return err == nil
		})
		n := 0
		if _, err := fmt.Sscan(string(text), &n); err != nil {
			t.Fatal(err)
		}
		t.Logf("job %s printed %d lines", id, n-1)
		w.ends(id, "succeeded", n-1)
	}
	for _, id := range short {
		w.ends(id, "succeeded", 100)
	}
	w.sameAgent()
}
