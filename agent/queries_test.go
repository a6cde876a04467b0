package agent

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/agent/query"
	"agentd/controlplane-mock/adminclient"
)

// Activate holds until the caller goes: no fake has queries.
func (p *fakePlane) Activate(ctx context.Context, _ protocol.Activation) ([]protocol.Query, error) {
	<-ctx.Done()
	return nil, &protocol.Error{Op: "activate", Err: ctx.Err()}
}

func (p *fakePlane) Answer(context.Context, string, protocol.Answer) error { return nil }

func upper(_ context.Context, q protocol.Query) (protocol.Page, error) {
	var term string
	if err := json.Unmarshal(q.Query, &term); err != nil {
		return protocol.Page{}, err
	}
	if term == "nobody" {
		return protocol.Page{}, &query.Failure{Code: "not_found"}
	}
	item, err := json.Marshal(strings.ToUpper(term))
	return protocol.Page{Items: []json.RawMessage{item}}, err
}

func TestQueriesAreAnsweredBesideJobs(t *testing.T) {
	s := startServer(t, 10*time.Second)
	startAgent(t, s.config(t, 1), func(a *Agent) {
		if err := a.HandleQuery(Queries{Type: "lookup", Connectors: []string{"dir"}, Handler: upper}); err != nil {
			t.Fatal(err)
		}
		if err := a.HandleQuery(Queries{Type: "lookup", Connectors: []string{"dir"}, Handler: upper}); err == nil {
			t.Error("took two handlers for one type")
		}
	})
	ask := func(term string) (string, error) {
		body, _ := json.Marshal(term)
		page, err := s.admin.Ask(t.Context(), adminclient.Query{Type: "lookup", Connector: "dir", Query: body, Timeout: 10_000})
		return string(page), err
	}
	// The agent comes online in its own time: until then the server says at once that nobody is there.
	deadline := time.Now().Add(20 * time.Second)
	page, err := ask("bob")
	for err != nil && adminclient.CodeOf(err) == protocol.CodeUnavailable && time.Now().Before(deadline) {
		<-time.After(20 * time.Millisecond)
		page, err = ask("bob")
	}
	if err != nil || page != `{"items":["BOB"],"next":""}` {
		t.Fatalf("got %s, %v", page, err)
	}
	job := s.submit(t, adminclient.Submission{Payload: script("for i in 1 2 3; do echo n=$i; sleep 0.2; done")})
	var askers sync.WaitGroup
	for range 8 {
		askers.Go(func() {
			for range 10 {
				if page, err := ask("alice"); err != nil || page != `{"items":["ALICE"],"next":""}` {
					t.Errorf("got %s, %v", page, err)
					return
				}
			}
		})
	}
	askers.Wait()
	s.settled(t, job)
	s.oracle(t, job, 1, 3)
	_, err = ask("nobody")
	if e, ok := errors.AsType[*adminclient.Error](err); !ok || e.Code != "not_found" {
		t.Errorf("the worker's own error: got %v, want code not_found", err)
	}
}
