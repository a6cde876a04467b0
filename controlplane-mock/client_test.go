package controlplane

import (
	"crypto/ed25519"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
	"agentd/agent/protocol/openapitest"
)

// described is a bubble in which every exchange is held against the OpenAPI description.
func described(t *testing.T, f func(t *testing.T, e *env, check *openapitest.Checker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { pass(time.Second) }) // as in bubbleWith
		check := openapitest.New(t)
		f(t, newWrappedEnv(t, nil, check.Wrap), check)
	})
}

// The agent's own client, which was written apart from this server, makes every call against it.
func TestTheAgentsOwnClient(t *testing.T) {
	described(t, func(t *testing.T, e *env, _ *openapitest.Checker) {
		ctx := t.Context()
		_, priv, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		key := ""
		c, err := protocol.NewClient(protocol.ClientConfig{
			Server: "http://127.0.0.1", ProcessID: "boot.p", Credential: func() string { return key }, Base: e.web.Transport,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		link := func(token, id string, start bool) (protocol.Link, bool) {
			t.Helper()
			pub, _ := priv.Public().(ed25519.PublicKey)
			ch, err := c.Challenge(ctx, protocol.ChallengeRequest{PublicKey: pub, AgentID: id})
			if err != nil {
				t.Fatal(err)
			}
			req := protocol.LinkRequest{AgentID: id, Types: []string{"extract"}, ProcessID: "boot.p", Start: start}
			protocol.SignLink(&req, priv, ch)
			l, first, err := c.Link(ctx, token, req)
			if err != nil {
				t.Fatal(err)
			}
			key = l.APIKey
			return l, first
		}
		l, first := link(e.token(nil), "", true)
		if !first {
			t.Error("the first link was answered as a re-link")
		}
		if again, first := link("", l.AgentID, false); first || again.AgentID != l.AgentID {
			t.Errorf("re-link: %+v, first %v", again, first)
		}
		poll := protocol.PollRequest{PollID: "p1", Wait: 5 * time.Second, Types: []string{"extract"}}
		if j, err := c.NextJob(ctx, poll); j != nil || err != nil {
			t.Errorf("no job: %+v, %v", j, err)
		}
		job := e.submit(map[string]any{"payload": map[string]any{"a": 1}, "graceMs": 1500})
		j, err := c.NextJob(ctx, poll)
		if err != nil || j == nil || j.ID != job.ID || string(j.Payload) != `{"a":1}` {
			t.Fatalf("job: %+v, %v", j, err)
		}
		ref := protocol.AttemptRef{JobID: j.ID, Attempt: j.Attempt, LeaseToken: j.LeaseToken}
		beat := protocol.HeartbeatRequest{Attempt: j.Attempt, LeaseToken: j.LeaseToken}
		if hb, err := c.Heartbeat(ctx, j.ID, 0, beat); err != nil || hb.LeaseTTL != 10_000 || hb.Cancel != nil {
			t.Fatalf("heartbeat: %+v, %v", hb, err)
		}
		// Its records, its frames, in each encoding.
		var want strings.Builder
		next := int64(0)
		for _, enc := range allEncodings {
			var frames [][]byte
			for _, text := range []string{"plain", "esc \" \\ \t \x01", "wörld 😀"} {
				frames = append(frames, encode(t, enc, protocol.AppendRecord(nil, protocol.Record{Time: 5, Stream: protocol.Stdout, Text: text})))
				want.WriteString(text + "\n")
			}
			frames = append(frames, encode(t, enc, protocol.AppendRecord(nil, protocol.Record{Time: 5, Stream: protocol.Stdout, Bytes: []byte("\xff\xfe")})))
			frames = append(frames, encode(t, enc, protocol.AppendRecord(nil, protocol.Record{Gap: 3, Reason: protocol.GapDamaged})))
			want.WriteString("\xff\xfe\n[gap: 3 records lost: damaged]\n")
			n, err := c.ShipLog(ctx, ref, protocol.LogBody{First: next, Count: 7, Encoding: enc, Frames: frames})
			if next += 7; err != nil || n.Next != next {
				t.Fatalf("%s: next %d, %v; want %d", enc, n.Next, err, next)
			}
		}
		if got := e.text(j.ID, ""); got != want.String() {
			t.Errorf("log %q; want %q", got, want.String())
		}
		_, err = c.ShipLog(ctx, ref, protocol.LogBody{First: 99, Count: 1, Frames: [][]byte{[]byte(lines(0, 1))}})
		if gap, ok := errors.AsType[*protocol.Error](err); !ok || gap.Code != protocol.CodeLogGap || gap.Next != next {
			t.Errorf("gap: %v; want log_gap with next %d", err, next)
		}
		if n, err := c.LogNext(ctx, ref); err != nil || n.Next != next {
			t.Errorf("next: %d, %v; want %d", n.Next, err, next)
		}
		held := make(chan protocol.Heartbeat, 1)
		go func() {
			hb, err := c.Heartbeat(ctx, j.ID, 3*time.Second, beat)
			if err != nil {
				t.Error(err)
			}
			held <- hb
		}()
		pass(time.Second)
		e.admin("POST", "jobs/"+j.ID+"/cancel", map[string]any{"reason": "stop"}).want(t, 202, "")
		if hb := <-held; hb.Cancel == nil || hb.Cancel.Reason != "stop" || hb.Cancel.Grace != 1500 {
			t.Errorf("cancel: %+v", hb)
		}
		done := protocol.Completion{Attempt: j.Attempt, LeaseToken: j.LeaseToken, Outcome: protocol.Cancelled, LogRecords: next, StartedAt: time.Now(), FinishedAt: time.Now()}
		if err := errors.Join(c.Complete(ctx, j.ID, done), c.Complete(ctx, j.ID, done)); err != nil {
			t.Error(err)
		}
		if _, err := c.Heartbeat(ctx, j.ID, 0, beat); protocol.CodeOf(err) != protocol.CodeLeaseLost {
			t.Errorf("after the end: %v; want lease_lost", err)
		}
		e.submit(nil)
		if j, err = c.NextJob(ctx, poll); err != nil || j == nil {
			t.Fatalf("second job: %+v, %v", j, err)
		}
		if err := c.Release(ctx, j.ID, protocol.Release{Attempt: j.Attempt, LeaseToken: j.LeaseToken, Reason: "draining"}); err != nil {
			t.Error(err)
		}
		good := key
		key = apiKeyPrefix + "gone"
		if _, err := c.NextJob(ctx, poll); protocol.CodeOf(err) != protocol.CodeUnauthenticated {
			t.Errorf("wrong key: %v; want unauthenticated", err)
		}
		key = good
		e.admin("POST", "agents/"+l.AgentID+"/revoke", nil).want(t, 200, "")
		if _, err := c.NextJob(ctx, poll); protocol.CodeOf(err) != protocol.CodeRevoked {
			t.Errorf("revoked: %v; want revoked", err)
		}
	})
}

// Every answer that the description has for the routes of §2 to §4 and §6 is given, and is as described.
func TestEveryDescribedAnswer(t *testing.T) {
	described(t, func(t *testing.T, e *env, check *openapitest.Checker) {
		a := e.agent(nil)
		a.linked(a.sendLink("", nil).want(t, 200, ""))
		e.newAgent().sendLink("", map[string]any{"agentId": a.id}).want(t, 409, protocol.CodeIdentityConflict)
		a.sendLink("", map[string]any{"nonce": "x"}).want(t, 401, protocol.CodeUnauthenticated)
		a.poll("wait=0&type=extract").want(t, 204, "")
		e.submit(map[string]any{"idempotencyKey": "k", "labels": map[string]string{"region": "eu-1"}, "timeoutMs": 5000})
		e.admin("POST", "jobs", map[string]any{"type": "extract", "idempotencyKey": "k", "labels": map[string]string{"region": "eu-1"}, "timeoutMs": 5000}).want(t, 200, "")
		e.admin("POST", "jobs", map[string]any{"type": "other", "idempotencyKey": "k"}).want(t, 409, protocol.CodeConflict)
		j := a.start()
		a.ship(j, 0, 2, lines(0, 2)).want(t, 200, "")
		a.ship(j, 5, 1, lines(0, 1)).want(t, 409, protocol.CodeLogGap)
		e.call("GET", logPath(j, "/next"), a.key, nil, "Agentd-Lease-Token: "+j.LeaseToken).want(t, 200, "")
		a.on(j, "complete", map[string]any{
			"outcome": "failed", "exitCode": 1, "signal": "SIGKILL", "error": "x", "result": map[string]any{"a": 1}, "logRecords": 2,
			"startedAt": "2026-01-02T03:04:05Z", "finishedAt": "2026-01-02T03:04:05Z",
		}).want(t, 200, "")
		for _, call := range []string{"heartbeat", "release"} {
			a.on(j, call, nil).want(t, 409, protocol.CodeLeaseLost)
		}
		a.complete(j, protocol.Succeeded, 2).want(t, 409, protocol.CodeLeaseLost)
		e.admin("POST", "jobs/"+j.ID+"/retry", nil).want(t, 202, "")
		e.admin("POST", "jobs/"+j.ID+"/retry", nil).want(t, 409, protocol.CodeConflict)
		a.on(a.lease(), "release", map[string]any{"reason": "draining"}).want(t, 200, "")
		for _, path := range []string{"jobs?limit=1", "jobs/" + j.ID, "jobs/" + j.ID + "/logs", "jobs/" + j.ID + "/logs?format=ndjson&from=1", "agents", "agents/" + a.id} {
			e.admin("GET", path, nil).want(t, 200, "")
		}
		for _, path := range []string{"jobs/" + j.ID + "/cancel"} {
			e.admin("POST", path, map[string]any{"reason": "x"}).want(t, 202, "")
		}
		for _, path := range []string{"revoke", "restore", "expire-key"} {
			e.admin("POST", "agents/"+a.id+"/"+path, nil).want(t, 200, "")
		}
		// Each route without a credential, and with something that can't be right.
		for _, r := range append(e.srv.agentRoutes(), e.srv.adminRoutes()...) {
			for method := range r.by {
				path := strings.NewReplacer("{id}", "x", "{n}", "1").Replace(r.path)
				if !strings.HasSuffix(r.path, "/link/challenge") && r.path != "/metrics" {
					e.call(method, path, adminToken+"x", nil).want(t, 401, protocol.CodeUnauthenticated)
				}
			}
		}
		e.call("GET", "/healthz", "", nil).want(t, http.StatusOK, "")
		unseen := append(check.Unseen("/agent/v1/link"), append(check.Unseen("/agent/v1/jobs"), append(check.Unseen("/api/v1/jobs"), append(check.Unseen("/api/v1/agents"), check.Unseen("/api/v1/enrol")...)...)...)...)
		unseen = slices.DeleteFunc(unseen, func(s string) bool { return strings.HasSuffix(s, "default") })
		if len(unseen) != 0 {
			t.Errorf("described and not seen: %v", unseen)
		}
	})
}
