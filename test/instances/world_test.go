package instances

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/faults"
	"agentd/internal/pgcluster"
	"agentd/test/stack"
)

// patience bounds a wait for what should take seconds: the machine may be busy with ten other things.
const patience = 2 * time.Minute

// ttl is the leases': short, so that a trial sees some of them run out, and long enough for a restart on a busy machine.
const ttl = 8 * time.Second

func soak() bool { return os.Getenv("AGENTD_SOAK") != "" }

// scaled is a size: small as a rule, the trial's own in a soak.
func scaled[T any](small, full T) T {
	if soak() {
		return full
	}
	return small
}

// token is the admin token of all instances.
const token = "adm_three-instances-share-this-token-of-theirs"

// world is three instances on one database, and a balancer before them.
type world struct {
	*balancer
	db    *pgcluster.Cluster
	all   []*stack.Stack
	Admin *adminclient.Client // by way of the balancer
	dir   string
}

// begin starts them; config is of the agents that may join, one for each instance's folder.
func begin(t *testing.T, config string) *world {
	t.Helper()
	db := pgcluster.ForTest(t, pgcluster.Config{})
	bin := binaries.Dir(t)
	dir, err := os.MkdirTemp("", "inst") //nolint:usetesting // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	w := &world{db: db, dir: dir}
	t.Cleanup(func() {
		for _, s := range w.all {
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		}
		if t.Failed() {
			w.tails(t)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	var urls []string
	for i := range 3 {
		at := filepath.Join(dir, strconv.Itoa(i))
		if err := errors.Join(os.Mkdir(at, 0o700), os.WriteFile(filepath.Join(at, "admin-token"), []byte(token), 0o600)); err != nil {
			t.Fatal(err)
		}
		s, err := stack.Start(t.Context(), stack.Config{
			Bin: bin, Dir: at, NoAgent: true, Store: db.URL(),
			ServerArgs: []string{"--faults", "--lease-ttl", ttl.String()},
			Config:     "cgroup: off\ndrain: {timeout: 1s, grace: 1s, flush: 1s}\nhandlers: [{type: shell, grace: 1s}]\n" + config,
		})
		if err != nil {
			t.Fatal(err)
		}
		w.all, urls = append(w.all, s), append(urls, s.URL)
	}
	w.balancer = newBalancer(t, urls...)
	if w.Admin, err = adminclient.New(adminclient.Config{URL: w.URL, Token: token}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) tails(t *testing.T) {
	t.Helper()
	for i := range w.all {
		for _, name := range []string{"controlplane.log", "agentd.log"} {
			b, err := os.ReadFile(filepath.Join(w.dir, strconv.Itoa(i), name))
			if err == nil {
				t.Logf("instance %d: %s:\n%s", i, name, b[max(0, len(b)-4<<10):])
			}
		}
	}
}

// join starts a real agent beside each instance. All of them come by the balancer.
func (w *world) join(t *testing.T) {
	t.Helper()
	for _, s := range w.all {
		if err := s.Join(t.Context(), w.URL); err != nil {
			t.Fatal(err)
		}
	}
}

// restart kills an instance, lets f happen, and starts it again.
func (w *world) restart(t *testing.T, i int, f func()) {
	t.Helper()
	if err := w.all[i].Server.Kill(); err != nil {
		t.Fatal(err)
	}
	w.all[i].Server = nil
	f()
	w.start(t, i)
}

func (w *world) start(t *testing.T, i int) {
	t.Helper()
	if err := w.all[i].StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// faults sets rules on every instance.
func (w *world) faults(t *testing.T, rules ...faults.Rule) {
	t.Helper()
	for _, s := range w.all {
		if err := s.Admin.SetFaults(t.Context(), rules); err != nil {
			t.Fatal(err)
		}
	}
}

// hits is how many requests were struck, on all instances.
func (w *world) hits(t *testing.T) (n int64) {
	t.Helper()
	for _, s := range w.all {
		rules, err := s.Admin.Faults(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rules {
			n += r.Hits
		}
	}
	return n
}

// submit repeats a submission until some instance has it.
func (w *world) submit(ctx context.Context, t *testing.T, s adminclient.Submission, key string) string {
	t.Helper()
	s.IdempotencyKey = key
	if s.Payload == nil {
		s.Payload = json.RawMessage("{}")
	}
	var id string
	until(t, "a submission is taken", func() bool {
		job, _, err := w.Admin.Submit(ctx, s)
		id = job.ID
		return err == nil
	})
	return id
}

func (w *world) job(t *testing.T, id string) (job adminclient.Job) {
	t.Helper()
	until(t, "an instance tells of a job", func() bool {
		var err error
		job, err = w.Admin.Job(t.Context(), id)
		return err == nil
	})
	return job
}

// ended waits for a job's end, whole log included.
func (w *world) ended(t *testing.T, id string) (job adminclient.Job) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("%s is %s: %+v", job.ID, job.Status, job.Attempts)
		}
	}()
	until(t, "a job's end and its whole log", func() bool {
		job = w.job(t, id)
		return job.Settled() && job.Last() != nil && job.Last().LogsComplete
	})
	return job
}

// until waits for done; what describes it.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(scaled(patience, 10*patience))
	defer end.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Errorf("gave up waiting: %s", what)
			t.FailNow()
		}
	}
}

// asDial says that err is a connection that could not be made.
func asDial(err error, op **net.OpError) bool { return errors.As(err, op) && (*op).Op == "dial" }

// pass lets time go by, for trials that are about a stretch of time.
func pass(d time.Duration) { <-time.After(d) }
