package conformance

import (
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"time"
)

const shape = `"attempts":[{"attempt":1,"state":"running","agentId":"…","exitCode":0,"signal":"","error":"","result":null,"startedAt":"…", "finishedAt":null,"logNext":1600,"logRecords":null,"logsComplete":false,"spooledBytes":0}]}`

var adminChecks = []Check{
	{"admin/submit", secAdmin, []string{`"maxAttempts":3,"retryOn":["lost"],"timeoutMs","graceMs","exclusive":false,"idempotencyKey"}` + "` → `201` job."}, adminSubmit, 0},
	{"admin/idempotency", secAdmin, []string{"The same idempotency key with the same body: `200`, the same job; with another body: `409 conflict` |"}, adminIdempotency, 0},
	{"admin/job", secAdmin, []string{shape, "`logRecords` is null while unknown."}, adminJob, 0},
	{"admin/reason", secAdmin, []string{"`reason` says why a job is pending (\"no agent with label gpu=1; 3 online\") or how it ended."}, adminReason, 0},
	{"admin/jobs-filters", secAdmin, []string{"| `GET jobs?status=&agentId=&type=&limit=&after=` |", "`agentId`: pinned to it or run by it |"}, adminFilters, 0},
	{"admin/jobs-pages", secAdmin, []string{"`{\"items\":[…],\"next\":\"\"}`, oldest first; `after` is the last page's `next`"}, adminPages, 0},
	{"admin/cancel", secAdmin, []string{"| `POST jobs/{id}/cancel` | `{\"reason\"}`, optional → `202` job |"}, adminCancel, 0},
	{"admin/retry", secAdmin, []string{"`202` job: one that was settled and didn't succeed gets one more attempt, and its cancellation is cleared. Any other: `409 conflict` |"}, adminRetry, 0},
	{"admin/agents", secAdmin, []string{"`{\"items\":[…],\"next\":\"\"}`; `{\"id\",\"name\",\"labels\",\"types\",\"connectors\",\"version\",\"lastSeenAt\",\"revoked\"}` |"}, adminAgents, 0},
	{"admin/agent-verbs", secAdmin, []string{"| `POST agents/{id}/revoke`, `…/restore`, `…/expire-key` | `200`, the agent |"}, adminVerbs, 0},
	{"admin/tokens", secAdmin, []string{"| `POST enrolment-tokens` | `{\"ttlMs\",\"maxUses\":1,\"agentId\"}` → `201 {\"token\"}`, shown once. An unknown `agentId`: `400` |"}, adminTokens, 0},
	{"admin/health", secAdmin, []string{"| `GET /healthz`, `/readyz`, `/metrics` | no token |"}, adminHealth, 0},
}

func adminSubmit(p *probe) {
	f := p.submit(nil)
	p.assert(f.str("status") == "pending" && f.str("type") == p.kind, "the job is %s of type %s", f.str("status"), f.str("type"))
	p.assert(f.int("maxAttempts") == 3, "maxAttempts is %d by default; want 3", f.int("maxAttempts"))
	f.json("retryOn", `["lost"]`)
	f.json("payload", `{}`)
	l := p.agent().take()
	p.assert(!l.bool("exclusive"), "exclusive is true by default")
	f = p.submit(map[string]any{"maxAttempts": 7, "retryOn": []string{"failed"}, "labels": map[string]string{"gpu": "1"}, "payload": map[string]any{"a": 1}, "agentId": p.agent().id})
	f.json("retryOn", `["failed"]`)
	f.json("labels", `{"gpu":"1"}`)
	f.json("payload", `{"a":1}`)
	p.assert(f.int("maxAttempts") == 7 && f.str("agentId") != "", "maxAttempts and agentId are %d and %q", f.int("maxAttempts"), f.str("agentId"))
}

func adminIdempotency(p *probe) {
	body := map[string]any{"type": p.kind, "idempotencyKey": p.unique("key"), "payload": map[string]any{"a": 1, "b": 2}}
	id := p.adminCall("POST", "jobs", body).must(201).str("id")
	p.mine(id)
	for range 2 {
		again := p.adminCall("POST", "jobs", body).must(200).str("id")
		p.assert(again == id, "the same key and body made job %s beside %s", again, id)
	}
	p.adminCall("POST", "jobs", merged(body, map[string]any{"payload": map[string]any{"a": 2}})).refused(409, "conflict")
	p.adminCall("POST", "jobs", merged(body, map[string]any{"maxAttempts": 5})).refused(409, "conflict")
	p.mine(p.adminCall("POST", "jobs", merged(body, map[string]any{"idempotencyKey": p.unique("key")})).must(201).str("id"))
}

func adminJob(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	f := p.job(l.job)
	for _, name := range []string{"id", "type", "status", "reason", "payload", "labels", "agentId", "maxAttempts", "retryOn", "createdAt", "cancelRequested", "attempts"} {
		p.assert(f.has(name), "the job has no member %q", name)
	}
	p.assert(!f.bool("cancelRequested"), "cancelRequested is true")
	all := f.objects("attempts")
	p.assert(len(all) == 1, "the job has %d attempts; want 1", len(all))
	t := all[0]
	p.assert(t.int("attempt") == l.attempt && t.str("state") == "running" && t.str("agentId") == a.id && t.int("exitCode") == 0 && t.str("signal") == "" && t.str("error") == "" &&
		t.null("result") && !t.time("startedAt").IsZero() && t.null("finishedAt") && t.int("logNext") == 0 && t.null("logRecords") && !t.bool("logsComplete") && t.int("spooledBytes") == 0,
		"the attempt reads %s", t.raw)
	p.adminCall("GET", "jobs/"+p.unique("job"), nil).refused(404, "not_found")
}

func adminReason(p *probe) {
	a := p.agent()
	id := p.submit(map[string]any{"labels": map[string]string{"gpu": p.kind}}).str("id")
	p.assert(p.job(id).str("reason") != "", "a pending job has no reason")
	p.submit(map[string]any{"maxAttempts": 1})
	l := a.start()
	a.complete(l, "failed", 0, map[string]any{"error": "out of cheese"}).must(200)
	p.assert(p.job(l.job).str("reason") == "out of cheese", "the reason of a job that failed is %q; want what the agent reported", p.job(l.job).str("reason"))
}

// list is one page of jobs of the check's own type.
func (p *probe) list(q url.Values) (ids []string, next string) {
	q.Set("type", p.kind)
	f := p.adminCall("GET", "jobs?"+q.Encode(), nil).must(200)
	for _, j := range f.objects("items") {
		ids = append(ids, j.str("id"))
	}
	return ids, f.str("next")
}

func adminFilters(p *probe) {
	a, b := p.agent(), p.agent()
	ran := p.submit(nil).str("id")
	a.complete(a.start(), "succeeded", 0).must(200)
	pinned := p.submit(map[string]any{"agentId": a.id}).str("id")
	free := p.submit(nil).str("id")
	other := p.submit(map[string]any{"agentId": b.id}).str("id")
	for _, c := range []struct {
		q    url.Values
		want []string
	}{
		{url.Values{}, []string{ran, pinned, free, other}},
		{url.Values{"status": {"pending"}}, []string{pinned, free, other}},
		{url.Values{"status": {"succeeded"}}, []string{ran}},
		{url.Values{"status": {"running"}}, nil},
		{url.Values{"agentId": {a.id}}, []string{ran, pinned}},
		{url.Values{"agentId": {b.id}}, []string{other}},
		{url.Values{"agentId": {a.id}, "status": {"pending"}}, []string{pinned}},
	} {
		got, next := p.list(c.q)
		p.assert(slices.Equal(got, c.want) && next == "", "jobs with %v are %v, next %q; want %v, oldest first", c.q, got, next, c.want)
	}
	p.adminCall("GET", "jobs?status=nothing", nil).refused(400, "invalid")
	p.adminCall("GET", "jobs?limit=0", nil).refused(400, "invalid")
}

func adminPages(p *probe) {
	var want []string
	for range 7 {
		want = append(want, p.submit(nil).str("id"))
	}
	for _, limit := range []int{1, 3, 7, 100} {
		var got []string
		after, pages := "", 0
		for {
			q := url.Values{"limit": {strconv.Itoa(limit)}}
			if after != "" {
				q.Set("after", after)
			}
			ids, next := p.list(q)
			p.assert(len(ids) <= limit, "a page with limit=%d has %d items", limit, len(ids))
			got = append(got, ids...)
			pages++
			if after = next; after == "" || pages > 20 {
				break
			}
		}
		p.assert(slices.Equal(got, want), "pages of %d hold %v; want %v", limit, got, want)
	}
}

func adminCancel(p *probe) {
	id := p.submit(nil).str("id")
	p.adminCall("POST", "jobs/"+id+"/cancel", nil).must(202)
	p.assert(p.status(id) == "cancelled", "the job is %s after a cancel without a body", p.status(id))
	id = p.submit(nil).str("id")
	p.adminCall("POST", "jobs/"+id+"/cancel", map[string]any{}).must(202)
	id = p.submit(nil).str("id")
	p.cancel(id, "for this reason").must(202)
	p.assert(p.job(id).str("reason") == "for this reason", "the reason is %q", p.job(id).str("reason"))
	p.cancel(p.unique("job"), "x").refused(404, "not_found")
}

func adminRetry(p *probe) {
	a := p.agent()
	p.submit(map[string]any{"maxAttempts": 1, "retryOn": []string{"failed"}})
	l := a.start()
	p.adminCall("POST", "jobs/"+l.job+"/retry", nil).refused(409, "conflict")
	a.complete(l, "failed", 0).must(200)
	for range 2 {
		f := p.adminCall("POST", "jobs/"+l.job+"/retry", nil).must(202)
		p.assert(f.str("status") == "pending", "the job is %s after a retry; want pending", f.str("status"))
		p.adminCall("POST", "jobs/"+l.job+"/retry", nil).refused(409, "conflict")
		m := a.start()
		p.assert(m.job == l.job && m.attempt > l.attempt, "the retry's attempt is %d of %s", m.attempt, m.job)
		a.complete(m, "failed", 0).must(200)
		p.assert(p.status(l.job) == "failed", "the job is %s after its one more attempt failed; want failed", p.status(l.job))
	}
	// A cancelled one's cancellation is cleared.
	id := p.submit(nil).str("id")
	p.cancel(id, "x").must(202)
	f := p.adminCall("POST", "jobs/"+id+"/retry", nil).must(202)
	p.assert(f.str("status") == "pending" && !f.bool("cancelRequested"), "status and cancelRequested are %s and %v after a retry; want pending and false", f.str("status"), f.bool("cancelRequested"))
	m := a.start()
	p.assert(a.beat(m, 0).must(200).null("cancel"), "the retried job is still being cancelled")
	a.complete(m, "succeeded", 0).must(200)
	p.adminCall("POST", "jobs/"+id+"/retry", nil).refused(409, "conflict")
	p.adminCall("POST", "jobs/"+p.unique("job")+"/retry", nil).refused(404, "not_found")
}

func adminAgents(p *probe) {
	a := p.agent(map[string]any{"name": p.kind, "labels": map[string]string{"k": "v"}, "version": "1.2.3"})
	f := p.adminCall("GET", "agents/"+a.id, nil).must(200)
	p.assert(f.str("id") == a.id && f.str("name") == p.kind && f.labels()["k"] == "v" && slices.Equal(f.strs("types"), []string{p.kind}) && f.str("version") == "1.2.3" && !f.bool("revoked"),
		"the agent reads %s", f.raw)
	before := f.time("lastSeenAt")
	p.pause(1100 * time.Millisecond) // a stamp may be in whole seconds
	a.poll(0).must(204)
	p.until(soon+30*time.Second, "lastSeenAt moves on", func() bool {
		a.poll(0)
		return p.adminCall("GET", "agents/"+a.id, nil).must(200).time("lastSeenAt").After(before)
	})
	found, after := false, ""
	for pages := 0; !found && pages < 1000; pages++ {
		f := p.adminCall("GET", "agents?limit=100&after="+url.QueryEscape(after), nil).must(200)
		for _, one := range f.objects("items") {
			found = found || one.str("id") == a.id
		}
		if after = f.str("next"); after == "" {
			break
		}
	}
	p.assert(found, "the agent is not in the list of agents")
	p.adminCall("GET", "agents/"+p.unique("agent"), nil).refused(404, "not_found")
}

func adminVerbs(p *probe) {
	a := p.agent()
	for _, c := range []struct {
		verb    string
		revoked bool
		then    int
	}{{"revoke", true, 403}, {"revoke", true, 403}, {"restore", false, 204}, {"restore", false, 204}, {"expire-key", false, 401}} {
		f := p.adminCall("POST", "agents/"+a.id+"/"+c.verb, nil).must(200)
		p.assert(f.str("id") == a.id && f.bool("revoked") == c.revoked, "%s answers %s", c.verb, f.raw)
		got := a.poll(0)
		p.assert(got.status == c.then, "after %s a poll is answered with %d; want %d", c.verb, got.status, c.then)
	}
	a.relink(nil)
	a.poll(0).must(204)
	p.adminCall("POST", "agents/"+p.unique("agent")+"/revoke", nil).refused(404, "not_found")
}

func adminTokens(p *probe) {
	named(p.adminCall("POST", "enrolment-tokens", map[string]any{"agentId": p.unique("agent")}), "agentId")
	named(p.adminCall("POST", "enrolment-tokens", map[string]any{"maxUses": 0}), "maxUses")
	named(p.adminCall("POST", "enrolment-tokens", map[string]any{"ttlMs": -1}), "ttlMs")
	token := p.token(map[string]any{"maxUses": 2, "ttlMs": 600_000})
	p.assert(token != p.token(nil), "two tokens are the same")
	for range 2 {
		p.stranger().linkedWith(token)
	}
	p.stranger().sendLink(token, nil).refused(401, "unauthenticated")
}

func adminHealth(p *probe) {
	for _, path := range []string{"/healthz", "/readyz", "/metrics"} {
		r := p.send(p.ctx, p.s.t.AdminURL, "GET", path, "", nil)
		p.assert(r.err == nil && r.status == 200, "%v; want 200", r)
		if path != "/metrics" {
			p.assert(json.Valid(r.body), "%v: want JSON", r)
		}
	}
}
