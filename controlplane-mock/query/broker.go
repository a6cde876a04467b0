package query

import (
	"container/list"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"slices"
	"sync"
	"time"
)

// Question is what an asker wants to know.
type Question struct {
	Type      string
	Connector string
	Query     json.RawMessage
	Timeout   time.Duration // capped at Config.MaxLife
}

// Worker is an agent that polls for queries.
type Worker struct {
	AgentID    string
	Type       string
	Connectors []string
	Max        int           // capped at Config.MaxBatch
	Wait       time.Duration // capped at Config.MaxWait
}

// Leased is a query in a worker's hands.
type Leased struct {
	ID        string
	Token     string // a secret: it fences answers
	Type      string
	Connector string
	Query     json.RawMessage
	Deadline  time.Time
}

// result is what an asker gets.
type result struct {
	page json.RawMessage
	err  error
}

// query is one question under way. Guarded by Broker.mu.
type query struct {
	id        string
	kind      string
	connector string
	body      json.RawMessage
	deadline  time.Time
	token     string        // of the current lease; empty while waiting
	agent     string        // who holds it
	place     *list.Element // in its type's queue while waiting
	done      chan result   // of one: whoever takes the query out of byID sends
}

// poll is a held Lease. Guarded by Broker.mu.
type poll struct {
	worker Worker
	wake   chan struct{} // of one: there may be something for it
}

// Broker brings questions and workers together. Make one with New: the zero value is unusable.
// Its methods may be called concurrently.
type Broker struct {
	cfg Config

	mu      sync.Mutex
	byID    map[string]*query     // every query under way
	waiting map[string]*list.List // by type, oldest first; no empty lists
	polls   map[string]*list.List // by type, longest waiting first; no empty lists
	present presence
}

// New returns a broker, or says which bound makes no sense.
func New(cfg Config) (*Broker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Broker{
		cfg:     cfg,
		byID:    map[string]*query{},
		waiting: map[string]*list.List{},
		polls:   map[string]*list.List{},
		present: presence{posts: map[post]map[string]time.Time{}},
	}, nil
}

// Ask waits for the answer to q: a page, *WorkerError, ErrUnavailable, ErrBusy, ErrTimeout, or the
// cause of ctx, whose end withdraws the query. The page is the caller's.
func (b *Broker) Ask(ctx context.Context, q Question) (json.RawMessage, error) {
	life := b.cfg.MaxLife
	if q.Timeout > 0 {
		life = min(life, q.Timeout)
	}
	timer := time.NewTimer(life)
	defer timer.Stop()
	asked, err := b.enqueue(q, time.Now().Add(life))
	if err != nil {
		return nil, err
	}
	select {
	case r := <-asked.done:
		return r.page, r.err
	case <-timer.C:
		err = ErrTimeout
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	b.mu.Lock()
	mine := b.remove(asked)
	b.mu.Unlock()
	if !mine { // an answer won the race: it is there by now
		r := <-asked.done
		return r.page, r.err
	}
	return nil, err
}

func (b *Broker) enqueue(q Question, deadline time.Time) (*query, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.present.holds(post{q.Type, q.Connector}, time.Now()) {
		return nil, ErrUnavailable
	}
	queue := b.waiting[q.Type]
	if len(b.byID) >= b.cfg.MaxAskers || queue != nil && queue.Len() >= b.cfg.MaxWaiting {
		return nil, ErrBusy
	}
	asked := &query{
		id: "qry_" + rand.Text(), kind: q.Type, connector: q.Connector, body: q.Query,
		deadline: deadline, done: make(chan result, 1),
	}
	b.byID[asked.id] = asked
	b.wait(asked, false)
	return asked, nil
}

// wait puts a query into its type's queue, in front if it had its turn already, and wakes the longest
// waiting poll that may have it. Called with mu held.
func (b *Broker) wait(q *query, front bool) {
	queue := b.waiting[q.kind]
	if queue == nil {
		queue = list.New()
		b.waiting[q.kind] = queue
	}
	if front {
		q.place = queue.PushFront(q)
	} else {
		q.place = queue.PushBack(q)
	}
	b.wake(q)
}

// wake tells one poll that q waits. A poll that was told already can't take more than its batch, so the
// next one is looked for. Called with mu held.
func (b *Broker) wake(q *query) {
	polls := b.polls[q.kind]
	if polls == nil {
		return
	}
	for e := polls.Front(); e != nil; e = e.Next() {
		p := e.Value.(*poll) //nolint:forcetypeassert // polls hold nothing else
		if !slices.Contains(p.worker.Connectors, q.connector) {
			continue
		}
		select {
		case p.wake <- struct{}{}:
			return
		default:
		}
	}
}

// remove takes q out of every table, and says whether it was still there: whoever gets true is the one who
// ends it. Called with mu held.
func (b *Broker) remove(q *query) bool {
	if b.byID[q.id] != q {
		return false
	}
	delete(b.byID, q.id)
	b.unqueue(q)
	return true
}

// unqueue takes q out of its type's queue. Called with mu held.
func (b *Broker) unqueue(q *query) {
	if q.place == nil {
		return
	}
	queue := b.waiting[q.kind]
	queue.Remove(q.place)
	q.place = nil
	if queue.Len() == 0 {
		delete(b.waiting, q.kind)
	}
}

// Lease returns queries for w, oldest first, as soon as there are any; none at the end of the
// wait or of ctx. The worker is present from now until Config.PresentFor after the call ended, however it ends.
func (b *Broker) Lease(ctx context.Context, w Worker) []Leased {
	w.Max = min(max(w.Max, 1), b.cfg.MaxBatch)
	w.Wait = min(w.Wait, b.cfg.MaxWait)
	timer := time.NewTimer(w.Wait)
	defer timer.Stop()
	p := &poll{worker: w, wake: make(chan struct{}, 1)}

	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.present.seen(w, time.Now(), b.cfg) {
		return nil
	}
	defer func() { b.present.seen(w, time.Now(), b.cfg) }() // before the Unlock above: defers run last to first
	polls := b.polls[w.Type]
	if polls == nil {
		polls = list.New()
		b.polls[w.Type] = polls
	}
	place := polls.PushBack(p)
	defer b.leave(p, place)
	for {
		if got := b.take(w); len(got) > 0 {
			return got
		}
		b.mu.Unlock()
		over := false
		select {
		case <-p.wake:
		case <-timer.C:
			over = true
		case <-ctx.Done():
			over = true
		}
		b.mu.Lock()
		if over {
			return nil
		}
	}
}

// leave ends a held poll. If it was woken and left without looking, somebody else must look. Called with mu held.
func (b *Broker) leave(p *poll, place *list.Element) {
	polls := b.polls[p.worker.Type]
	polls.Remove(place)
	if polls.Len() == 0 {
		delete(b.polls, p.worker.Type)
	}
	select {
	case <-p.wake:
	default:
		return
	}
	queue := b.waiting[p.worker.Type]
	if queue == nil {
		return
	}
	for e := queue.Front(); e != nil; e = e.Next() {
		b.wake(e.Value.(*query)) //nolint:forcetypeassert // queues hold nothing else
	}
}

// take leases up to w.Max waiting queries to w. Called with mu held.
func (b *Broker) take(w Worker) (got []Leased) {
	queue := b.waiting[w.Type]
	if queue == nil {
		return nil
	}
	now := time.Now()
	for e := queue.Front(); e != nil && len(got) < w.Max; {
		q := e.Value.(*query) //nolint:forcetypeassert // queues hold nothing else
		e = e.Next()
		// One whose time is up is left for its asker, who is about to take it out.
		if !slices.Contains(w.Connectors, q.connector) || !q.deadline.After(now) {
			continue
		}
		b.unqueue(q)
		q.token, q.agent = rand.Text(), w.AgentID
		got = append(got, Leased{ID: q.id, Token: q.token, Type: q.kind, Connector: q.connector, Query: q.body, Deadline: q.deadline})
	}
	return got
}

// Return puts back what could not be delivered to the worker, in front, in its old order. What has ended
// meanwhile stays ended.
func (b *Broker) Return(batch []Leased) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range slices.Backward(batch) {
		if q := b.byID[l.ID]; q != nil && q.place == nil && q.token == l.Token {
			q.token, q.agent = "", ""
			b.wait(q, true)
		}
	}
}

// Answer brings a worker's result: nil if the asker got it, else ErrGone or ErrFenced. Failure, if not nil, is the
// worker's own word; else page is the result.
func (b *Broker) Answer(id, token, agentID string, page json.RawMessage, failure *WorkerError) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.byID[id]
	switch {
	case q == nil || !q.deadline.After(time.Now()):
		return ErrGone
	case q.token == "" || q.agent != agentID || subtle.ConstantTimeCompare([]byte(q.token), []byte(token)) != 1:
		return ErrFenced
	}
	b.remove(q)
	r := result{page: page}
	if failure != nil {
		r = result{err: failure}
	}
	q.done <- r
	return nil
}

// Sizes is how much a broker holds: for metrics, and for tests that expect nothing.
type Sizes struct{ Queries, Waiting, Polls, Present int }

// Sizes counts what is held now.
func (b *Broker) Sizes() Sizes {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Sizes{Queries: len(b.byID), Present: b.present.seats}
	for _, queue := range b.waiting {
		s.Waiting += queue.Len()
	}
	for _, polls := range b.polls {
		s.Polls += polls.Len()
	}
	return s
}
