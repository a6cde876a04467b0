package conformance

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

const (
	secQueries  = "Queries"
	secActivate = "`POST /agent/v1/queries/activate`"
	secAnswer   = "`POST /agent/v1/queries/{id}/answer`"
	secAdmin    = "Admin side of the reference control plane"
)

var queryChecks = []Check{
	{"queries/activate-required", secActivate, []string{"No connectors, or `maxQueries` < 1: `400`.", "Header `Agentd-Process-Id`."}, activateRequired, 0},
	{"queries/activate-empty", secActivate, []string{"Empty at the end of the wait"}, activateEmpty, 0},
	{"queries/activate-cap", secActivate, []string{"Empty at the end of the wait (at most 50 s)."}, activateCap, minute},
	{"queries/activate-wakes", secActivate, []string{"→ `200 {\"queries\":[{\"id\",\"leaseToken\",\"type\",\"connector\",\"deadline\":1732888888123,\"remainingMs\":4900,\"query\":{}}]}`"}, activateWakes, 0},
	{"queries/activate-only-its-connectors", secActivate, []string{"Only queries for one of the connectors are handed out"}, activateOnlyIts, 0},
	{"queries/activate-only-announced", secActivate, []string{"and only types and connectors that the agent announced when it linked; an activation for others is `200`, empty."}, activateOnlyAnnounced, 0},
	{"queries/activate-max", secActivate, []string{`{"type":"io.atlas.entra","worker":"host-1","connectors":["ucc_entra"],"maxQueries":4,"waitMs":30000}`}, activateMax, 0},
	{"queries/presence", secActivate, []string{"Every activation, also one that breaks off, keeps the agent *present* for its connectors"}, presence, 0},
	{"queries/presence-ends", secActivate, []string{"keeps the agent *present* for its connectors for 60 s, which is longer than the longest wait."}, presenceEnds, minute},
	{"queries/not-delivered", secActivate, []string{"Queries whose answer to the activation could not be delivered go back to the queue."}, notDelivered, 0},
}

// activateWith asks for queries.
func (a *agent) activateWith(ctx context.Context, body map[string]any) reply {
	return a.p.patient(ctx, a.p.s.t.URL, "POST", "/agent/v1/queries/activate", a.apiKey, body, "Agentd-Process-Id: "+a.process)
}

func (a *agent) activation(kind string, wait time.Duration, connectors ...string) map[string]any {
	return map[string]any{"type": kind, "worker": "conformance", "connectors": connectors, "maxQueries": 4, "waitMs": wait.Milliseconds()}
}

func (a *agent) activate(kind string, wait time.Duration, connectors ...string) reply {
	return a.activateWith(a.p.ctx, a.activation(kind, wait, connectors...))
}

// queries waits until there are any.
func (a *agent) queries() []fields {
	for range 20 {
		if got := a.activate(a.p.kind, 2*time.Second, a.p.kind).must(200).objects("queries"); len(got) > 0 {
			return got
		}
	}
	a.p.failf("no activation got the query that waits")
	return nil
}

func (a *agent) answer(id, token string, with map[string]any) reply {
	return a.p.agentCall("POST", "queries/"+id+"/answer", a.apiKey, merged(map[string]any{"worker": "conformance", "leaseToken": token}, with))
}

func emptyPage() map[string]any { return map[string]any{"items": []any{}, "next": ""} }

// ask puts a question beside the check.
func (p *probe) ask(timeout time.Duration) <-chan reply {
	return p.later(func() reply { return p.askNow(p.ctx, p.kind, timeout) })
}

func (p *probe) askNow(ctx context.Context, connector string, timeout time.Duration) reply {
	return p.send(ctx, p.s.t.AdminURL, "POST", "/api/v1/queries", p.s.t.AdminToken,
		map[string]any{"type": p.kind, "connector": connector, "query": map[string]any{"term": "lovelace"}, "timeoutMs": timeout.Milliseconds()})
}

// present is an agent that questions of this check may be put to.
func (p *probe) present() *agent {
	a := p.agent()
	a.activate(p.kind, 0, p.kind).must(200)
	return a
}

func activateRequired(p *probe) {
	a := p.agent()
	for what, with := range map[string]map[string]any{
		"no connectors": {"connectors": []string{}}, "connectors left out": {"connectors": nil}, "maxQueries 0": {"maxQueries": 0}, "maxQueries -1": {"maxQueries": -1},
		"maxQueries left out": {"maxQueries": nil}, "no type": {"type": nil},
	} {
		r := a.activateWith(p.ctx, merged(a.activation(p.kind, 0, p.kind), with))
		p.assert(r.status == 400 && r.code() == "invalid", "%s: %v; want 400 invalid", what, r)
	}
	p.agentCall("POST", "queries/activate", a.apiKey, a.activation(p.kind, 0, p.kind)).refused(400, "invalid")
}

func activateEmpty(p *probe) {
	a := p.agent()
	r := a.activate(p.kind, time.Second, p.kind)
	got := r.must(200).objects("queries")
	p.assert(len(got) == 0, "queries are %s; want none", r.body)
	p.assert(r.took > 900*time.Millisecond && r.took < time.Second+soon, "an activation with waitMs=1000 was answered after %v", r.took)
}

func activateCap(p *probe) {
	r := p.agent().activate(p.kind, time.Hour, p.kind)
	r.must(200)
	p.assert(r.took < 50*time.Second+soon, "an activation was held for %v; want at most 50 s", r.took)
}

func activateWakes(p *probe) {
	a := p.present()
	held := p.later(func() reply { return a.activate(p.kind, 45*time.Second, p.kind) })
	p.pause(100 * time.Millisecond) // until it is held
	asked := p.ask(30 * time.Second)
	got := p.within(soon, held, "a held activation, with a query for it").must(200).objects("queries")
	p.assert(len(got) == 1, "%d queries were handed out; want 1", len(got))
	q := got[0]
	p.assert(isID(q.str("id")) && q.str("leaseToken") != "" && q.str("type") == p.kind && q.str("connector") == p.kind, "the query is %s", q.raw)
	q.json("query", `{"term":"lovelace"}`)
	left := q.int("remainingMs")
	p.assert(left > 0 && left <= 30_000, "remainingMs is %d of 30000", left)
	p.assert(q.int("deadline") > 1_600_000_000_000, "deadline is %d; want milliseconds since the epoch", q.int("deadline"))
	a.answer(q.str("id"), q.str("leaseToken"), map[string]any{"page": emptyPage()}).must(204)
	p.within(soon, asked, "the question").must(200)
}

func activateOnlyIts(p *probe) {
	other := p.unique("c")
	a := p.agent(map[string]any{"connectors": []string{p.kind, other}})
	a.activate(p.kind, 0, p.kind, other).must(200)
	asked := p.ask(20 * time.Second)
	p.pause(200 * time.Millisecond) // until it waits
	got := a.activate(p.kind, 0, other).must(200).objects("queries")
	p.assert(len(got) == 0, "a query for %s was handed to an activation for %s", p.kind, other)
	q := a.queries()[0]
	a.answer(q.str("id"), q.str("leaseToken"), map[string]any{"page": emptyPage()}).must(204)
	p.within(soon, asked, "the question").must(200)
}

func activateOnlyAnnounced(p *probe) {
	a := p.present()
	b := p.agent(map[string]any{"connectors": []string{}})
	c := p.agent(map[string]any{"types": []string{}})
	asked := p.ask(20 * time.Second)
	p.pause(200 * time.Millisecond) // until it waits
	for what, other := range map[string]*agent{"connector": b, "type": c} {
		got := other.activate(p.kind, 300*time.Millisecond, p.kind).must(200).objects("queries")
		p.assert(len(got) == 0, "a query was handed to an agent that hasn't announced its %s", what)
	}
	q := a.queries()[0]
	a.answer(q.str("id"), q.str("leaseToken"), map[string]any{"page": emptyPage()}).must(204)
	p.within(soon, asked, "the question").must(200)
}

func activateMax(p *probe) {
	a := p.present()
	const n = 5
	var asked []<-chan reply
	for range n {
		asked = append(asked, p.ask(30*time.Second))
	}
	done := 0
	for done < n {
		got := a.activateWith(p.ctx, merged(a.activation(p.kind, 2*time.Second, p.kind), map[string]any{"maxQueries": 2})).must(200).objects("queries")
		p.assert(len(got) <= 2, "%d queries were handed out with maxQueries=2", len(got))
		for _, q := range got {
			a.answer(q.str("id"), q.str("leaseToken"), map[string]any{"page": emptyPage()}).must(204)
			done++
		}
	}
	for _, ch := range asked {
		p.within(soon, ch, "a question").must(200)
	}
}

func presence(p *probe) {
	a := p.agent()
	p.askNow(p.ctx, p.kind, time.Second).refused(503, "unavailable")
	a.activate(p.kind, 0, p.kind).must(200)
	p.askNow(p.ctx, p.kind, 100*time.Millisecond).refused(504, "timeout")
	// One that breaks off counts, too.
	b := p.agent(map[string]any{"connectors": []string{p.kind + "b"}})
	ctx, leave := context.WithCancel(p.ctx)
	gone := p.later(func() reply { return b.activateWith(ctx, b.activation(p.kind, 45*time.Second, p.kind+"b")) })
	p.pause(300 * time.Millisecond) // until it is held
	leave()
	<-gone
	p.askNow(p.ctx, p.kind+"b", 100*time.Millisecond).refused(504, "timeout")
}

func presenceEnds(p *probe) {
	p.present()
	p.pause(52 * time.Second)
	p.askNow(p.ctx, p.kind, 50*time.Millisecond).refused(504, "timeout")
	p.until(8*time.Second+soon, "an agent that doesn't poll any more is no longer present after 60 s", func() bool {
		return p.askNow(p.ctx, p.kind, 50*time.Millisecond).status == http.StatusServiceUnavailable
	})
}

func notDelivered(p *probe) {
	a := p.present()
	// The activation's client leaves before the query comes. A server that hasn't noticed yet may write the answer to nobody, and
	// nobody can know: so it is given a moment to notice, and more than one try.
	p.tries(func() (bool, string) {
		ctx, leave := context.WithCancel(p.ctx)
		gone := p.later(func() reply { return a.activateWith(ctx, a.activation(p.kind, 45*time.Second, p.kind)) })
		p.pause(200 * time.Millisecond) // until it is held
		leave()
		<-gone
		p.pause(300 * time.Millisecond)
		asked := p.ask(10 * time.Second)
		for end := time.Now().Add(8 * time.Second); time.Now().Before(end); {
			got := a.activate(p.kind, 2*time.Second, p.kind).must(200).objects("queries")
			if len(got) > 0 {
				a.answer(got[0].str("id"), got[0].str("leaseToken"), map[string]any{"page": emptyPage()}).must(204)
				p.within(soon, asked, "the question").must(200)
				return true, ""
			}
		}
		p.within(10*time.Second+soon, asked, "the question")
		return false, "a query was handed to an activation whose client had gone before it was asked"
	})
}

var answerChecks = []Check{
	{"queries/answered", secAnswer, []string{"→ `204`; `410 gone`: answered"}, answered, 0},
	{"queries/answer-error", secAnswer, []string{"or `\"error\":{\"code\":\"provider_throttled\",\"retryAfter\":10}` (seconds) instead of `page`"}, answerError, 0},
	{"queries/ask-error", secAdmin, []string{"`502` with the worker's own `code`, and `Retry-After` if it gave one, when the worker reported an error."}, answerError502, 0},
	{"queries/answer-gone", secAnswer, []string{"`410 gone`: answered, withdrawn, timed out, lost with a restart, or unknown"}, answerGone, 0},
	{"queries/answer-fenced", secAnswer, []string{"`409 fenced`."}, answerFenced, 0},
	{"queries/ask-unavailable", secAdmin, []string{"at once `503 unavailable` when no present instance holds the connector"}, askUnavailable, 0},
	{"queries/ask-busy", secAdmin, []string{"`429 busy` when the type's queue is full (64 not yet handed out, by default)"}, askBusy, 0},
	{"queries/ask-timeout", secAdmin, []string{"`504 timeout`"}, askTimeout, 0},
	{"queries/ask-cap", secAdmin, []string{"`{\"type\",\"connector\",\"query\":{},\"timeoutMs\":5000}` (at most 60 s) → `200` page"}, askCap, minute},
	{"queries/ask-withdrawn", secAdmin, []string{"An asker that goes away withdraws its query |"}, askWithdrawn, 0},
}

// question asks and hands the query to an agent.
func (p *probe) question(timeout time.Duration) (a *agent, q fields, asked <-chan reply) {
	a = p.present()
	asked = p.ask(timeout)
	return a, a.queries()[0], asked
}

func answered(p *probe) {
	a, q, asked := p.question(30 * time.Second)
	page := map[string]any{"items": []any{map[string]any{"name": "Ada"}}, "next": "cursor"}
	a.answer(q.str("id"), q.str("leaseToken"), map[string]any{"page": page}).must(204)
	f := p.within(soon, asked, "the question").must(200)
	f.json("items", `[{"name":"Ada"}]`)
	p.assert(f.str("next") == "cursor", "next is %q; want cursor", f.str("next"))
	a.answer(q.str("id"), q.str("leaseToken"), map[string]any{"page": page}).refused(410, "gone")
}

func answerError(p *probe) {
	a, q, asked := p.question(30 * time.Second)
	id, token := q.str("id"), q.str("leaseToken")
	for what, with := range map[string]map[string]any{
		"neither": {}, "both": {"page": emptyPage(), "error": map[string]any{"code": "x"}}, "an error without a code": {"error": map[string]any{"retryAfter": 1}},
		"a page without items": {"page": map[string]any{"next": ""}}, "no lease token": {"page": emptyPage(), "leaseToken": nil},
	} {
		r := a.answer(id, token, with)
		p.assert(r.status == 400 && r.code() == "invalid", "%s: %v; want 400 invalid", what, r)
	}
	a.answer(id, token, map[string]any{"error": map[string]any{"code": "provider_throttled"}}).must(204)
	r := p.within(soon, asked, "the question").refused(502, "provider_throttled")
	p.assert(r.header.Get("Retry-After") == "", "the answer has Retry-After %q, and the worker gave none", r.header.Get("Retry-After"))
}

func answerError502(p *probe) {
	a, q, asked := p.question(30 * time.Second)
	a.answer(q.str("id"), q.str("leaseToken"), map[string]any{"error": map[string]any{"code": "provider_throttled", "retryAfter": 10}}).must(204)
	r := p.within(soon, asked, "the question").refused(502, "provider_throttled")
	p.assert(r.header.Get("Retry-After") == "10", "Retry-After is %q; want 10", r.header.Get("Retry-After"))
}

func answerGone(p *probe) {
	a, q, asked := p.question(time.Second)
	a.answer(p.unique("qry"), q.str("leaseToken"), map[string]any{"page": emptyPage()}).refused(410, "gone")
	p.within(soon, asked, "the question").refused(504, "timeout")
	a.answer(q.str("id"), q.str("leaseToken"), map[string]any{"page": emptyPage()}).refused(410, "gone")
}

func answerFenced(p *probe) {
	a, q, asked := p.question(30 * time.Second)
	id, token := q.str("id"), q.str("leaseToken")
	a.answer(id, token+"x", map[string]any{"page": emptyPage()}).refused(409, "fenced")
	p.agent().answer(id, token, map[string]any{"page": emptyPage()}).refused(409, "fenced")
	a.answer(id, token, map[string]any{"page": emptyPage()}).must(204)
	p.within(soon, asked, "the question").must(200)
}

func askUnavailable(p *probe) {
	r := p.askNow(p.ctx, p.kind, 50*time.Second)
	r.refused(503, "unavailable")
	p.assert(r.took < soon, "the answer came after %v; want at once", r.took)
	named(p.adminCall("POST", "queries", map[string]any{"connector": p.kind, "query": map[string]any{}}), "type")
	named(p.adminCall("POST", "queries", map[string]any{"type": p.kind, "query": map[string]any{}}), "connector")
}

func askBusy(p *probe) {
	p.present()
	const many = 80
	var asked []<-chan reply
	for range many {
		asked = append(asked, p.ask(4*time.Second))
	}
	busy := 0
	for _, ch := range asked {
		r := p.within(4*time.Second+soon, ch, "one of many questions")
		if r.status == http.StatusTooManyRequests {
			r.refused(429, "busy")
			busy++
			continue
		}
		r.refused(504, "timeout")
	}
	if busy == 0 {
		p.skipf("%d questions of one type may wait: the server's limit is above the default", many)
	}
	p.assert(busy == many-64, "%d of %d questions were refused as busy; want %d", busy, many, many-64)
}

func askTimeout(p *probe) {
	p.present()
	r := p.askNow(p.ctx, p.kind, time.Second)
	r.refused(504, "timeout")
	p.assert(r.took > 900*time.Millisecond && r.took < time.Second+soon, "a question with timeoutMs=1000 timed out after %v", r.took)
}

func askCap(p *probe) {
	p.present()
	r := p.askNow(p.ctx, p.kind, time.Hour)
	r.refused(504, "timeout")
	p.assert(r.took < time.Minute+soon, "a question waited for %v; want at most 60 s", r.took)
}

func askWithdrawn(p *probe) {
	a := p.present()
	p.tries(func() (bool, string) {
		ctx, leave := context.WithCancel(p.ctx)
		gone := p.later(func() reply { return p.askNow(ctx, p.kind, 30*time.Second) })
		q := a.queries()[0]
		leave()
		<-gone
		p.pause(300 * time.Millisecond) // until the server has seen it
		r := a.answer(q.str("id"), q.str("leaseToken"), map[string]any{"page": emptyPage()})
		return r.status == http.StatusGone, fmt.Sprintf("the answer to a question whose asker has gone: %v; want 410 gone", r)
	})
}
