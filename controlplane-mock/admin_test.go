package controlplane

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

func TestSubmitDefaults(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		r := e.admin("POST", "jobs", `{"type":"extract"}`).want(t, 201, "")
		v := into[JobView](t, r)
		if !validID(v.ID) || v.Type != "extract" || v.Status != store.Pending || v.MaxAttempts != 3 || len(v.RetryOn) != 1 || v.RetryOn[0] != protocol.Lost ||
			v.Grace != 10_000 || v.Timeout != 0 || string(v.Payload) != "{}" || v.Labels == nil || v.Attempts == nil || v.CreatedAt.IsZero() || v.Reason == "" {
			t.Errorf("job: %s", r.body)
		}
		v = e.submit(map[string]any{"retryOn": []string{}, "graceMs": 0, "maxAttempts": 1, "env": map[string]string{"SECRET": "hunter2"}})
		if len(v.RetryOn) != 0 || v.Grace != 0 || v.MaxAttempts != 1 {
			t.Errorf("job: %+v", v)
		}
		if r := e.admin("GET", "jobs/"+v.ID, nil); strings.Contains(string(r.body), "hunter2") {
			t.Error("the job's env is shown")
		}
	})
}

func TestSubmitFields(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		long := strings.Repeat("x", 129)
		for field, values := range map[string][]any{
			"type":           {nil, "", 5, long},
			"payload":        {strings.Repeat("x", 256<<10)},
			"env":            {"x", map[string]any{"K": 1}, map[string]string{"A=B": "c"}, map[string]string{"A": "b\x00"}, map[string]string{"": "x"}},
			"agentId":        {"not an id", 5},
			"labels":         {map[string]any{"k": true}, map[string]string{"k": long}},
			"maxAttempts":    {0, -1, 1.5, "3", 1001},
			"retryOn":        {"lost", []string{"succeeded"}, []any{1}, []string{"lost", "lost", "lost", "lost"}},
			"timeoutMs":      {-1, "1h"},
			"graceMs":        {-1, json.Number("99999999999999999999")},
			"exclusive":      {"yes", 1},
			"idempotencyKey": {5, strings.Repeat("k", 257)},
		} {
			for _, v := range values {
				r := e.admin("POST", "jobs", map[string]any{"type": "extract", field: v}).want(t, 400, protocol.CodeInvalid)
				if !strings.HasPrefix(r.problem().Detail, field) {
					t.Errorf("%s = %.40v: detail %q doesn't name it", field, v, r.problem().Detail)
				}
			}
		}
		for _, body := range []string{``, `{`, `null`, `{"type":"x","type":"y"}`, `{"Type":"x"}`, `{"type":"x","labels":{"a":"1","a":"2"}}`} {
			e.admin("POST", "jobs", body).want(t, 400, protocol.CodeInvalid)
		}
		if items := into[Page[JobView]](t, e.admin("GET", "jobs", nil)).Items; len(items) != 0 {
			t.Errorf("%d jobs were stored; want none", len(items))
		}
	})
}

func TestIdempotencyKey(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		first := into[JobView](t, e.admin("POST", "jobs", `{"type":"x","idempotencyKey":"k","payload":{"a":1,"b":[1.0,2]},"labels":{"l":"1","m":"2"}}`).want(t, 201, ""))
		for _, same := range []string{
			`{ "labels":{"m":"2","l":"1"}, "payload":{"b":[1.0, 2],"a":1}, "idempotencyKey":"k", "type":"x" }`,
			`{"type":"x","idempotencyKey":"k","payload":{"a":1,"b":[1.0,2]},"labels":{"l":"1","m":"2"},"maxAttempts":3,"retryOn":["lost"],"env":{},"exclusive":false}`,
		} {
			if v := into[JobView](t, e.admin("POST", "jobs", same).want(t, 200, "")); v.ID != first.ID {
				t.Errorf("%s: job %s; want %s", same, v.ID, first.ID)
			}
		}
		for _, other := range []string{
			`{"type":"y","idempotencyKey":"k","payload":{"a":1,"b":[1.0,2]},"labels":{"l":"1","m":"2"}}`,
			`{"type":"x","idempotencyKey":"k","payload":{"a":1,"b":[2,1.0]},"labels":{"l":"1","m":"2"}}`,
			`{"type":"x","idempotencyKey":"k"}`,
		} {
			e.admin("POST", "jobs", other).want(t, 409, protocol.CodeConflict)
		}
		e.admin("POST", "jobs", `{"type":"x","idempotencyKey":"k2"}`).want(t, 201, "")
	})
}

func TestListings(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		var want []string
		for i := range 7 {
			body := map[string]any{"type": "extract", "payload": i}
			if i == 6 {
				body = map[string]any{"type": "load", "agentId": a.id}
			}
			want = append(want, e.submit(body).ID)
		}
		var got []string
		for after, pages := "", 0; ; pages++ {
			page := into[Page[JobView]](t, e.admin("GET", "jobs?limit=3&after="+after, nil).want(t, 200, ""))
			for _, j := range page.Items {
				got = append(got, j.ID)
			}
			if after = page.Next; after == "" {
				if pages != 2 {
					t.Errorf("%d pages; want 3", pages+1)
				}
				break
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("jobs %v; want %v", got, want)
		}
		a.start()
		for query, n := range map[string]int{"status=running": 1, "status=pending": 6, "type=load": 1, "agentId=" + a.id: 2, "status=failed": 0, "agentId=" + a.id + "&status=running": 1} {
			if items := into[Page[JobView]](t, e.admin("GET", "jobs?"+query, nil).want(t, 200, "")).Items; len(items) != n || items == nil {
				t.Errorf("%s: %d jobs; want %d", query, len(items), n)
			}
		}
		for _, q := range []string{"jobs?limit=0", "jobs?limit=1001", "jobs?limit=x", "jobs?status=done", "jobs?agentId=a+b", "agents?limit=-1", "agents?after=%ff", "jobs?x=%zz"} {
			e.admin("GET", q, nil).want(t, 400, protocol.CodeInvalid)
		}
		b := e.agent(nil)
		first := into[Page[AgentView]](t, e.admin("GET", "agents?limit=1", nil).want(t, 200, ""))
		second := into[Page[AgentView]](t, e.admin("GET", "agents?limit=1&after="+first.Next, nil).want(t, 200, ""))
		if ids := map[string]bool{first.Items[0].ID: true, second.Items[0].ID: true}; !ids[a.id] || !ids[b.id] || second.Next != "" {
			t.Errorf("agents: %+v, %+v", first, second)
		}
		e.admin("GET", "agents/ag_x", nil).want(t, 404, protocol.CodeNotFound)
		e.admin("GET", "jobs/job_x", nil).want(t, 404, protocol.CodeNotFound)
	})
}

func TestRetry(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		job := e.submit(map[string]any{"maxAttempts": 1})
		e.admin("POST", "jobs/"+job.ID+"/retry", nil).want(t, 409, protocol.CodeConflict)
		a.complete(a.start(), protocol.Failed, 0).want(t, 200, "")
		if v := into[JobView](t, e.admin("POST", "jobs/"+job.ID+"/retry", nil).want(t, 202, "")); v.Status != store.Pending {
			t.Errorf("retried: %+v", v)
		}
		a.complete(a.start(), protocol.Succeeded, 0).want(t, 200, "")
		e.admin("POST", "jobs/"+job.ID+"/retry", nil).want(t, 409, protocol.CodeConflict)
	})
}

func TestWhyAJobWaits(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		reason := func(body map[string]any) string {
			t.Helper()
			v := e.submit(body)
			e.admin("POST", "jobs/"+v.ID+"/cancel", nil).want(t, 202, "")
			return v.Reason
		}
		if got := reason(nil); got != "no agent online" {
			t.Errorf("%q; want no agent online", got)
		}
		eu := map[string]any{"labels": map[string]string{"region": "eu", "disk": "ssd"}}
		a := e.agent(eu)
		e.agent(eu)
		c := e.agent(map[string]any{"labels": map[string]string{"region": "us"}, "types": []string{"load"}})
		for _, tc := range []struct {
			body map[string]any
			want string
		}{
			{map[string]any{"labels": map[string]string{"gpu": "1"}}, "3 agents online, none with label gpu=1"},
			{map[string]any{"type": "paint"}, "3 agents online, none with type paint"},
			{map[string]any{}, "3 agents online, 2 match, all busy"},
			{map[string]any{"labels": map[string]string{"region": "us"}}, "3 agents online, 2 with type extract, none of them with label region=us"},
			{map[string]any{"labels": map[string]string{"region": "us", "disk": "ssd"}}, "3 agents online, none with label disk=ssd and region=us"},
			{map[string]any{"agentId": "ag_x"}, "agent ag_x is not online (3 agents online)"},
			{map[string]any{"agentId": c.id}, "agent " + c.id + " is online, but doesn't take type extract"},
			{map[string]any{"agentId": a.id, "labels": map[string]string{"gpu": "1"}}, "agent " + a.id + " is online, without label gpu=1"},
			{map[string]any{"agentId": a.id}, "agent " + a.id + " is online and busy"},
		} {
			if got := reason(tc.body); got != tc.want {
				t.Errorf("%v: %q; want %q", tc.body, got, tc.want)
			}
		}
		e.admin("POST", "agents/"+c.id+"/revoke", nil).want(t, 200, "")
		pass(30 * time.Second)
		a.poll("wait=50&type=zz").want(t, 204, "")
		if got := reason(map[string]any{"labels": map[string]string{"gpu": "1"}}); got != "1 agent online, none with label gpu=1" {
			t.Errorf("after 80 s: %q", got)
		}
	})
}

func TestEnrolmentTokens(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for _, body := range []string{`{"ttlMs":0}`, `{"ttlMs":-1}`, `{"maxUses":0}`, `{"maxUses":"1"}`, `{"agentId":"ag_unknown"}`, `{"agentId":5}`} {
			e.admin("POST", "enrolment-tokens", body).want(t, 400, protocol.CodeInvalid)
		}
		token := e.token(map[string]any{"maxUses": 2})
		if !strings.HasPrefix(token, enrolPrefix) || len(token) != len(enrolPrefix)+43 {
			t.Errorf("token %q", token)
		}
		e.newAgent().sendLink(token, nil).want(t, 201, "")
		e.newAgent().sendLink(token, nil).want(t, 201, "")
		e.newAgent().sendLink(token, nil).want(t, 401, protocol.CodeUnauthenticated)
	})
}

// Who linked, re-linked, was refused, revoked or restored stands in the log; no credential does.
func TestAuditRecords(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	bubbleWith(t, func(c *Config) { c.Logger = zap.New(core) }, func(t *testing.T, e *env) {
		token := e.token(nil)
		a := e.newAgent()
		a.linked(a.sendLink(token, nil).want(t, 201, ""))
		first := a.key
		a.linked(a.sendLink("", nil).want(t, 200, ""))
		a.sendLink("", map[string]any{"nonce": "x"}).want(t, 401, protocol.CodeUnauthenticated)
		for _, do := range []string{"revoke", "restore", "expire-key"} {
			e.admin("POST", "agents/"+a.id+"/"+do, nil).want(t, 200, "")
		}
		var got []string
		for _, entry := range logs.All() {
			if kind, ok := entry.ContextMap()["audit"]; ok {
				got = append(got, fmt.Sprintf("%v %s", kind, entry.Message))
			}
			text := fmt.Sprint(entry.Message, entry.ContextMap())
			for _, secret := range []string{token, first, a.key, adminToken} {
				if strings.Contains(text, secret) {
					t.Errorf("a credential in the log: %s", text)
				}
			}
		}
		want := "[mint enrolment token minted link agent linked link agent linked link link refused revoke agent changed restore agent changed expire-key agent changed]"
		if fmt.Sprint(got) != want {
			t.Errorf("audit: %v; want %s", got, want)
		}
	})
}

func TestMetrics(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		e.submit(nil)
		j := a.start()
		a.ship(j, 0, 2, lines(0, 2)).want(t, 200, "")
		a.complete(j, protocol.Succeeded, 2).want(t, 200, "")
		body := string(e.call("GET", "/metrics", "", nil).want(t, 200, "").body)
		for _, want := range []string{
			`controlplane_requests_total{route="/agent/v1/jobs/{id}/heartbeat",status="200"} 1`, `controlplane_log_records_total 2`,
			`controlplane_completions_total{outcome="succeeded"} 1`, `controlplane_holds 0`, `controlplane_offers_total 1`,
		} {
			if !strings.Contains(body, want+"\n") {
				t.Errorf("no %s", want)
			}
		}
	})
}

func TestConfigFaultsAllAtOnce(t *testing.T) {
	_, err := New(Config{LeaseTTL: time.Millisecond, PollWait: time.Hour, Encodings: []string{"br"}, KeyTTL: -1})
	for _, want := range []string{"Store:", "LeaseTTL:", "PollWait:", "Encodings: \"br\"", "takes zstd", "takes gzip", "KeyTTL:"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s in it", err, want)
		}
	}
}

func FuzzSubmission(f *testing.F) {
	for _, s := range []string{
		`{"type":"x"}`, `{"type":"x","payload":{"a":[1,2.50,"é"]},"env":{"K":"V"},"labels":{"l":"1"},"maxAttempts":3,"retryOn":["lost","failed"],"timeoutMs":5,"graceMs":0,"exclusive":true,"idempotencyKey":"k"}`,
		`{"type":"x","type":"y"}`, `{"type":null}`, `[]`, `{"type":"x","payload":1e999}`,
	} {
		f.Add([]byte(s))
	}
	s, err := New(Config{Store: newMemStore()})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := decodeObject(body)
		if err != nil {
			asClientFault(t, err)
			return
		}
		n, err := s.submission(o)
		if err != nil {
			asClientFault(t, err)
			return
		}
		if n.Type == "" || n.MaxAttempts < 1 || n.Timeout < 0 || n.Grace < 0 || !json.Valid(n.Payload) {
			t.Fatalf("accepted %+v", n)
		}
		again, err := s.submission(o)
		if err != nil || again.BodySum != n.BodySum {
			t.Fatalf("not the same twice: %v", err)
		}
	})
}

func asClientFault(t *testing.T, err error) {
	t.Helper()
	if p := asProblem(err); p.Status != 400 || p.Code != protocol.CodeInvalid || p.Detail == "" {
		t.Fatalf("%v: want 400 invalid with a detail", err)
	}
}

func FuzzLinkBody(f *testing.F) {
	f.Add([]byte(`{"agentId":"","publicKey":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","name":"h","labels":{"a":"b"},"types":["x"],"connectors":[],"version":"1","os":"linux","arch":"amd64","processId":"b.p","start":true,"nonce":"n","signature":"AA=="}`))
	f.Add([]byte(`{"publicKey":"!"}`))
	f.Add([]byte(`{"start":null,"labels":{"a":1}}`))
	s, err := New(Config{Store: newMemStore()})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := decodeObject(body)
		if err != nil {
			asClientFault(t, err)
			return
		}
		req, err := s.linkFields(o)
		if err != nil {
			asClientFault(t, err)
			return
		}
		if len(req.PublicKey) != 32 || !validProcessID(req.ProcessID) || req.AgentID != "" && !validID(req.AgentID) || req.Nonce == "" && req.Signature == nil {
			t.Fatalf("accepted %+v", req)
		}
	})
}
