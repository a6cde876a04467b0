package controlplane

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
)

// lookups is what an agent says that answers queries.
var lookups = map[string]any{"types": []string{"extract", "lookup"}, "connectors": []string{"dir", "dir2"}}

func (a *agent) activate(ctx context.Context, with map[string]any) reply {
	body := map[string]any{"type": "lookup", "worker": "host", "connectors": []string{"dir"}, "maxQueries": 4, "waitMs": 30_000}
	maps.Copy(body, with)
	return a.e.callCtx(ctx, "POST", "/agent/v1/queries/activate", a.key, body, "Agentd-Process-Id: "+a.process)
}

func (e *env) ask(timeout time.Duration) <-chan reply {
	return later(func() reply {
		return e.admin("POST", "queries", map[string]any{"type": "lookup", "connector": "dir", "query": map[string]any{"term": "bob"}, "timeoutMs": timeout.Milliseconds()})
	})
}

func (a *agent) answer(q protocol.Query, with map[string]any) reply {
	body := map[string]any{"worker": "host", "leaseToken": q.LeaseToken}
	maps.Copy(body, with)
	return a.e.call("POST", "/agent/v1/queries/"+q.ID+"/answer", a.key, body)
}

// leaseQuery lets a held activation take one query.
func (a *agent) leaseQuery() protocol.Query {
	a.e.t.Helper()
	got := into[protocol.Activated](a.e.t, a.activate(a.e.t.Context(), nil).want(a.e.t, 200, "")).Queries
	if len(got) != 1 {
		a.e.t.Fatalf("got %d queries, want 1", len(got))
	}
	return got[0]
}

func TestQueryThereAndBack(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(lookups)
		held := later(func() reply { return a.activate(t.Context(), nil) })
		pass(10 * time.Second)
		asked := e.ask(5 * time.Second)
		r := (<-held).want(t, 200, "")
		if r.took != 10*time.Second {
			t.Errorf("activation answered after %v, want the moment of the question", r.took)
		}
		q := into[protocol.Activated](t, r).Queries[0]
		if q.Type != "lookup" || q.Connector != "dir" || string(q.Query) != `{"term":"bob"}` || q.Remaining != 5000 || q.Deadline != time.Now().Add(5*time.Second).UnixMilli() {
			t.Errorf("got %+v", q)
		}
		page := map[string]any{"page": map[string]any{"items": []int{1, 2}, "next": "n"}}
		a.answer(q, page).want(t, 204, "")
		if got := string((<-asked).want(t, 200, "").body); got != `{"items":[1,2],"next":"n"}` {
			t.Errorf("the asker got %s", got)
		}
		a.answer(q, page).want(t, 410, protocol.CodeGone)
	})
}

func TestActivationWithoutQueriesEndsEmpty(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(lookups)
		for name, c := range map[string]struct {
			with map[string]any
			took time.Duration
		}{
			"its wait":           {map[string]any{"waitMs": 7000}, 7 * time.Second},
			"the cap":            {map[string]any{"waitMs": 900_000}, 50 * time.Second},
			"not announced":      {map[string]any{"connectors": []string{"other"}, "waitMs": 1000}, time.Second},
			"type not announced": {map[string]any{"type": "other", "waitMs": 1000}, time.Second},
		} {
			r := a.activate(t.Context(), c.with).want(t, 200, "")
			if string(r.body) != `{"queries":[]}` || r.took != c.took {
				t.Errorf("%s: %s after %v, want none after %v", name, r.body, r.took, c.took)
			}
		}
	})
}

func TestActivationNeedsItsFields(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(lookups)
		for _, with := range []map[string]any{
			{"connectors": []string{}}, {"connectors": nil}, {"maxQueries": 0}, {"maxQueries": nil}, {"type": ""}, {"type": nil}, {"waitMs": -1},
		} {
			a.activate(t.Context(), with).want(t, 400, protocol.CodeInvalid)
		}
		e.call("POST", "/agent/v1/queries/activate", a.key, map[string]any{"type": "lookup", "connectors": []string{"dir"}, "maxQueries": 1}).want(t, 400, protocol.CodeInvalid)
		e.call("POST", "/agent/v1/queries/activate", adminToken, nil, "Agentd-Process-Id: p").want(t, 401, protocol.CodeUnauthenticated)
		other := *a
		other.process = "boot.p2"
		other.activate(t.Context(), nil).want(t, 409, protocol.CodeIdentityConflict)
	})
}

func TestAskersErrors(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(lookups)
		r := (<-e.ask(5 * time.Second)).want(t, 503, protocol.CodeUnavailable)
		if r.took != 0 {
			t.Errorf("unavailable was said after %v, want at once", r.took)
		}
		a.activate(t.Context(), map[string]any{"waitMs": 0})
		r = (<-e.ask(3 * time.Second)).want(t, 504, protocol.CodeTimeout)
		if r.took != 3*time.Second {
			t.Errorf("timeout after %v, want 3s", r.took)
		}
		asked := e.ask(5 * time.Second)
		synctest.Wait()
		a.answer(a.leaseQuery(), map[string]any{"error": map[string]any{"code": "provider_throttled", "retryAfter": 10}}).want(t, 204, "")
		r = (<-asked).want(t, 502, "provider_throttled")
		if got := r.header.Get("Retry-After"); got != "10" {
			t.Errorf("Retry-After %q, want 10", got)
		}
		for range 64 {
			e.ask(5 * time.Second)
		}
		synctest.Wait()
		(<-e.ask(5 * time.Second)).want(t, 429, protocol.CodeBusy)
		pass(6 * time.Second)
		if got := e.srv.queries.Sizes(); got.Queries != 0 || got.Waiting != 0 {
			t.Errorf("left behind: %+v", got)
		}
		for _, body := range []map[string]any{
			{"connector": "dir", "query": 1}, {"type": "lookup", "query": 1}, {"type": "lookup", "connector": "dir"}, {"type": "lookup", "connector": "dir", "query": 1, "timeoutMs": -1},
		} {
			e.admin("POST", "queries", body).want(t, 400, protocol.CodeInvalid)
		}
		e.call("POST", "/api/v1/queries", a.key, nil).want(t, 401, protocol.CodeUnauthenticated)
	})
}

func TestAnswersAreChecked(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, b := e.agent(lookups), e.agent(lookups)
		a.activate(t.Context(), map[string]any{"waitMs": 0})
		asked := e.ask(5 * time.Second)
		synctest.Wait()
		q := a.leaseQuery()
		page := map[string]any{"items": []int{}, "next": ""}
		b.answer(q, map[string]any{"page": page}).want(t, 409, protocol.CodeFenced)
		wrong := q
		wrong.LeaseToken = "x"
		a.answer(wrong, map[string]any{"page": page}).want(t, 409, protocol.CodeFenced)
		for _, with := range []map[string]any{
			{}, {"page": page, "error": map[string]any{"code": "x"}}, {"page": 1}, {"page": map[string]any{}}, {"page": map[string]any{"items": 1}},
			{"error": map[string]any{}}, {"error": map[string]any{"code": "a sentence with spaces"}}, {"error": "x"}, {"page": page, "leaseToken": nil},
		} {
			a.answer(q, with).want(t, 400, protocol.CodeInvalid)
		}
		unknown := q
		unknown.ID = "qry_unknown"
		a.answer(unknown, map[string]any{"page": page}).want(t, 410, protocol.CodeGone)
		a.answer(q, map[string]any{"page": page}).want(t, 204, "")
		(<-asked).want(t, 200, "")
	})
}

func TestAnAskerThatHangsUpWithdrawsItsQuery(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(lookups)
		a.activate(t.Context(), map[string]any{"waitMs": 0})
		ctx, hangUp := context.WithCancel(t.Context())
		asked := later(func() reply {
			return e.callCtx(ctx, "POST", "/api/v1/queries", adminToken, map[string]any{"type": "lookup", "connector": "dir", "query": 1, "timeoutMs": 50_000})
		})
		synctest.Wait()
		if got := e.srv.queries.Sizes().Waiting; got != 1 {
			t.Fatalf("%d waiting, want 1", got)
		}
		hangUp()
		<-asked
		synctest.Wait()
		if got := e.srv.queries.Sizes().Queries; got != 0 {
			t.Errorf("%d queries are left, want 0", got)
		}
	})
}

func TestAnActivationThatBreaksOffLosesNoQuery(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(lookups)
		ctx, breakOff := context.WithCancel(t.Context())
		held := later(func() reply { return a.activate(ctx, nil) })
		pass(time.Second)
		breakOff()
		<-held
		asked := e.ask(50 * time.Second)
		pass(time.Second)
		q := a.leaseQuery()
		a.answer(q, map[string]any{"page": map[string]any{"items": []int{}, "next": ""}}).want(t, 204, "")
		(<-asked).want(t, 200, "")
	})
}

func TestARevokedAgentsActivationEndsAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(lookups)
		held := later(func() reply { return a.activate(t.Context(), nil) })
		pass(time.Second)
		e.admin("POST", "agents/"+a.id+"/revoke", nil).want(t, 200, "")
		if r := (<-held).want(t, 403, protocol.CodeRevoked); r.took != time.Second {
			t.Errorf("ended after %v, want at once", r.took)
		}
	})
}
