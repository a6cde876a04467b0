package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"agentd/agent/identity"
	"agentd/agent/protocol"
	"agentd/agent/query"
)

// Queries says which queries are answered, and by whom.
type Queries struct {
	Type        string
	Connectors  []string
	Concurrency int // 0 = 4
	Handler     query.Handler
	// Close ends what the handler keeps, after the last answer; nil = nothing.
	Close func()
}

// HandleQuery makes the agent answer queries of one type. Call it before Run.
func (a *Agent) HandleQuery(q Queries) error {
	switch {
	case a.plane == nil:
		return errors.New("agent: no control plane to ask for queries")
	case slices.ContainsFunc(a.queries, func(o Queries) bool { return o.Type == q.Type }):
		return fmt.Errorf("agent: query type %q has a handler already", q.Type)
	}
	if _, err := a.poller(q); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a.queries = append(a.queries, q)
	return nil
}

// queryLoop names a poller in the liveness stamps.
func queryLoop(typ string) string { return "queries of type " + typ }

func (a *Agent) poller(q Queries) (*query.Poller, error) {
	return query.New(query.Config{
		Type: q.Type, Connectors: q.Connectors, Concurrency: q.Concurrency, Worker: a.cfg.Name, Client: a.plane, Handler: q.Handler,
		Report: a.queryReport, Beat: func(within time.Duration) { a.pulse.beat(queryLoop(q.Type), within) }, Logger: a.log,
	})
}

// answerQueries runs the pollers until take ends and what they have under way is answered, or work ends.
func (a *Agent) answerQueries(take, work context.Context) error {
	if a.waitLinked(take) != nil {
		return nil
	}
	var pollers sync.WaitGroup
	defer pollers.Wait()
	for _, q := range a.queries {
		p, err := a.poller(q)
		if err != nil {
			return err
		}
		pollers.Go(func() {
			_ = p.Run(take, work) // nil, always
			if q.Close != nil {
				q.Close()
			}
			a.pulse.end(queryLoop(q.Type))
		})
	}
	return nil
}

// queryReport lets the identity hear what an activation was told, and holds the next one back until the
// agent may ask for work again.
func (a *Agent) queryReport(ctx context.Context, err error) {
	switch protocol.ActionFor(err) {
	case protocol.StopConflict, protocol.StopRevoked:
		a.ident.Report(err)
		_ = a.waitLinked(ctx)
	default:
	}
}

// waitLinked returns when the agent may ask for work, or with ctx's cause.
func (a *Agent) waitLinked(ctx context.Context) error {
	for {
		changed := a.changes()
		if a.ident.Status().State == identity.Linked {
			return nil
		}
		for _, q := range a.queries {
			a.pulse.beat(queryLoop(q.Type), lookAgain)
		}
		timer := time.NewTimer(lookAgain) // the identity's state isn't announced by changes
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// announcedQueries are the query types and connectors that links announce.
func (a *Agent) announcedQueries() (types, connectors []string) {
	for _, q := range a.queries {
		types = append(types, q.Type)
		connectors = append(connectors, q.Connectors...)
	}
	slices.SortFunc(connectors, strings.Compare)
	return types, slices.Compact(connectors)
}
