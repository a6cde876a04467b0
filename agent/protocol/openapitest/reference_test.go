package openapitest_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	controlplane "agentd/controlplane-mock"
	"agentd/controlplane-mock/store/redka"
	"agentd/internal/testmain"

	"agentd/agent/protocol"
	"agentd/agent/protocol/openapitest"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// reference is the bundled control plane on a real store, every exchange of which is checked.
type reference struct {
	*httptest.Server
	t     *testing.T
	check *openapitest.Checker
	key   ed25519.PrivateKey
	link  protocol.Link
	*protocol.Client
}

const adminToken = "admin-token"

func newReference(t *testing.T) *reference {
	t.Helper()
	store, err := redka.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server, err := controlplane.New(controlplane.Config{Store: store, AdminToken: controlplane.SumOf(adminToken), LeaseTTL: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r := &reference{t: t, check: openapitest.New(t)}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := server.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	})
	r.Server = httptest.NewServer(r.check.Wrap(server.Handler()))
	if _, r.key, err = ed25519.GenerateKey(nil); err != nil {
		t.Fatal(err)
	}
	r.Client, err = protocol.NewClient(protocol.ClientConfig{
		Server: r.URL, ProcessID: "boot.one", Credential: func() string { return r.link.APIKey },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Client.Close()
		r.Server.Close()
		http.DefaultClient.CloseIdleConnections()
		cancel()
		wg.Wait()
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// admin makes a call of the admin side and returns the answer.
func (r *reference) admin(method, path, body string, want int) string {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.URL+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	if answer.StatusCode != want {
		r.t.Errorf("%s %s: got %d %s, want %d", method, path, answer.StatusCode, data, want)
	}
	return string(data)
}

// member reads one text member of a JSON answer.
func member(answer, name string) string {
	_, rest, _ := strings.Cut(strings.ReplaceAll(answer, `": "`, `":"`), `"`+name+`":"`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

func (r *reference) relink(token string, start bool) error {
	ctx := r.t.Context()
	c, err := r.Challenge(ctx, protocol.ChallengeRequest{PublicKey: r.key.Public().(ed25519.PublicKey), AgentID: r.link.AgentID})
	if err != nil {
		return err
	}
	q := protocol.LinkRequest{
		AgentID: r.link.AgentID, Name: "host-1", Types: []string{"extract", "look"}, Connectors: []string{"dir"},
		Version: "1.0.0", OS: "linux", Arch: "amd64", ProcessID: "boot.one", Start: start,
	}
	protocol.SignLink(&q, r.key, c)
	link, _, err := r.Link(ctx, token, q)
	if err == nil {
		r.link = link
	}
	return err
}

// TestTheReferenceIsAsOpenAPIHasIt drives the bundled control plane with the client through a
// life of an agent and its jobs, wrong calls included, and the admin side beside it.
func TestTheReferenceIsAsOpenAPIHasIt(t *testing.T) {
	r := newReference(t)
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	code := func(err error, want protocol.Code) {
		t.Helper()
		if protocol.CodeOf(err) != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}

	_, err := r.LogNext(ctx, protocol.AttemptRef{JobID: "job_0", Attempt: 1, LeaseToken: "x"})
	code(err, protocol.CodeUnauthenticated)
	code(r.relink("wrong", true), protocol.CodeUnauthenticated)
	must(r.relink(member(r.admin("POST", "/api/v1/enrolment-tokens", `{"ttlMs":60000}`, 201), "token"), true))
	must(r.relink("", false))
	good := r.key
	_, r.key, _ = ed25519.GenerateKey(nil)
	code(r.relink("", false), protocol.CodeIdentityConflict)
	r.key = good

	poll := func(id string) *protocol.Job {
		t.Helper()
		job, err := r.NextJob(ctx, protocol.PollRequest{PollID: id, Types: []string{"extract"}})
		must(err)
		return job
	}
	if job := poll("p0"); job != nil {
		t.Fatalf("got %+v, want none", job)
	}
	submission := `{"type":"extract","payload":{"a":1},"env":{"K":"V"},"idempotencyKey":"k","timeoutMs":60000}`
	id := member(r.admin("POST", "/api/v1/jobs", submission, 201), "id")
	r.admin("POST", "/api/v1/jobs", submission, 200)
	r.admin("POST", "/api/v1/jobs", `{"type":"extract","idempotencyKey":"k"}`, 409)
	r.admin("POST", "/api/v1/jobs", `{"type":7}`, 400)
	r.admin("POST", "/api/v1/jobs/"+id+"/retry", "", 409)

	job := poll("p1")
	if job == nil || job.ID != id {
		t.Fatalf("got %+v, want %s", job, id)
	}
	must(r.Release(ctx, id, protocol.Release{Attempt: job.Attempt, LeaseToken: job.LeaseToken, Reason: "draining"}))
	job = poll("p2")
	beat := protocol.HeartbeatRequest{Attempt: job.Attempt, LeaseToken: job.LeaseToken, SpooledBytes: 1}
	_, err = r.Heartbeat(ctx, id, 0, beat)
	must(err)
	_, err = r.Heartbeat(ctx, id, 0, protocol.HeartbeatRequest{Attempt: job.Attempt, LeaseToken: "wrong"})
	code(err, protocol.CodeLeaseLost)

	ref := protocol.AttemptRef{JobID: id, Attempt: job.Attempt, LeaseToken: job.LeaseToken}
	var body []byte
	for n := range 3 {
		body = protocol.AppendLine(body, int64(n+1), protocol.Stdout, fmt.Appendf(nil, "line %d \xff", n), false, n == 2)
	}
	next, err := r.ShipLog(ctx, ref, protocol.LogBody{Count: 3, Frames: [][]byte{body}})
	must(err)
	if next.Next != 3 {
		t.Errorf("got next %d, want 3", next.Next)
	}
	_, err = r.ShipLog(ctx, ref, protocol.LogBody{First: 9, Count: 1, Frames: [][]byte{bytes.SplitAfter(body, []byte("\n"))[0]}})
	code(err, protocol.CodeLogGap)
	_, err = r.ShipLog(ctx, ref, protocol.LogBody{First: 3, Count: 7, Frames: [][]byte{body}})
	code(err, protocol.CodeCorrupt)
	_, err = r.ShipLog(ctx, ref, protocol.LogBody{First: 3, Final: true})
	must(err)
	_, err = r.LogNext(ctx, ref)
	must(err)
	_, err = r.LogNext(ctx, protocol.AttemptRef{JobID: id, Attempt: job.Attempt, LeaseToken: "wrong"})
	code(err, protocol.CodeNotFound)

	r.admin("GET", "/api/v1/jobs/"+id, "", 200)
	r.admin("POST", "/api/v1/jobs/"+id+"/cancel", `{"reason":"why"}`, 202)
	hb, err := r.Heartbeat(ctx, id, 3*time.Second, beat)
	must(err)
	if hb.Cancel == nil || hb.Cancel.Reason != "why" {
		t.Errorf("got %+v, want the cancellation", hb)
	}
	done := protocol.Completion{
		Attempt: job.Attempt, LeaseToken: job.LeaseToken, Outcome: protocol.Cancelled, Signal: "SIGTERM", Result: []byte(`{"rows":3}`),
		LogRecords: 3, StartedAt: time.Now(), FinishedAt: time.Now(),
	}
	must(r.Complete(ctx, id, done))
	must(r.Complete(ctx, id, done))
	done.Outcome = protocol.Failed
	code(r.Complete(ctx, id, done), protocol.CodeLeaseLost)
	code(r.Complete(ctx, "job_unknown", done), protocol.CodeNotFound)
	code(r.Release(ctx, id, protocol.Release{Attempt: job.Attempt, LeaseToken: "wrong"}), protocol.CodeLeaseLost)
	r.admin("GET", "/api/v1/jobs/"+id+"/logs?format=ndjson", "", 200)
	r.admin("GET", "/api/v1/jobs/"+id+"/logs?from=1", "", 200)
	r.admin("POST", "/api/v1/jobs/"+id+"/retry", "", 202)
	r.admin("GET", "/api/v1/jobs?status=pending&limit=1", "", 200)
	r.admin("GET", "/api/v1/jobs/job_unknown", "", 404)

	r.query(ctx, must, code)

	r.admin("GET", "/api/v1/agents", "", 200)
	agent := "/api/v1/agents/" + r.link.AgentID
	r.admin("GET", agent, "", 200)
	r.admin("POST", agent+"/expire-key", "", 200)
	_, err = r.LogNext(ctx, ref)
	code(err, protocol.CodeUnauthenticated)
	must(r.relink("", false))
	r.admin("POST", agent+"/revoke", "", 200)
	_, err = r.LogNext(ctx, ref)
	code(err, protocol.CodeRevoked)
	r.admin("POST", agent+"/restore", "", 200)
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		r.admin("GET", path, "", 200)
	}

	var missed []string
	for _, answer := range r.check.Unseen("/") {
		op, status, _ := strings.Cut(answer, " ")
		if status[0] == '2' && !slices.Contains(missed, op) {
			missed = append(missed, op)
		}
	}
	if len(missed) > 0 {
		t.Errorf("calls that were never answered well: %v", missed)
	}
}

// query asks, answers, and answers once too often.
func (r *reference) query(ctx context.Context, must func(error), code func(error, protocol.Code)) {
	r.t.Helper()
	activation := protocol.Activation{Type: "look", Worker: "host-1", Connectors: []string{"dir"}, MaxQueries: 1}
	r.admin("POST", "/api/v1/queries", `{"type":"look","connector":"dir","query":{}}`, 503)
	_, err := r.Activate(ctx, activation) // present from here on
	must(err)
	var wg sync.WaitGroup
	wg.Go(func() {
		r.admin("POST", "/api/v1/queries", `{"type":"look","connector":"dir","query":{"term":"x"}}`, 200)
	})
	activation.Wait = 5000
	queries, err := r.Activate(ctx, activation)
	must(err)
	if len(queries) != 1 {
		r.t.Fatalf("got %d queries, want 1", len(queries))
	}
	answer := protocol.Answer{Worker: "host-1", LeaseToken: "wrong", Page: &protocol.Page{}}
	code(r.Answer(ctx, queries[0].ID, answer), protocol.CodeFenced)
	answer.LeaseToken = queries[0].LeaseToken
	must(r.Answer(ctx, queries[0].ID, answer))
	code(r.Answer(ctx, queries[0].ID, answer), protocol.CodeGone)
	wg.Wait()
}
