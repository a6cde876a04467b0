package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"agentd/controlplane-mock/store"
)

const (
	// noticeGap is how long notices are gathered while others are under way: little of the 30 ms within which a job is to
	// reach a poll elsewhere, and at most 500 statements a second.
	noticeGap = 2 * time.Millisecond
	// maxNotice bounds a notification's text; PostgreSQL's limit is 8000 bytes.
	maxNotice = 7500
	// maxEvent bounds what of that one event takes.
	maxEvent = 1000
	// slowPoll is how often Watch asks for what a notice may have been lost of (the instance that owed it died), and
	// whether its own connection still hears.
	slowPoll = 5 * time.Second
	// slowPollBack is how far back it asks: three polls, so that one that failed, or was late, misses nothing.
	slowPollBack = 3 * slowPoll
	// maxSlowPoll is how many changes it names one by one. More of them: look at everything.
	maxSlowPoll = 1000
)

// watchers are the functions that want to hear of changes.
type watchers struct {
	mu   sync.RWMutex // held for reading while functions are called, so that none is called after Watch returned
	next int
	all  map[int]func(store.Event)
}

func (w *watchers) add(f func(store.Event)) (remove func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := w.next
	w.next++
	if w.all == nil {
		w.all = map[int]func(store.Event){}
	}
	w.all[id] = f
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.all, id)
	}
}

func (w *watchers) tell(events ...store.Event) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for _, f := range w.all {
		for _, e := range events {
			f(e)
		}
	}
}

// notice is a notification's text.
type notice struct {
	From   string            `json:"from"`
	Events []json.RawMessage `json:"events"` // of store.Event
}

// tell announces changes that are committed: to this instance's watchers now, to the others by NOTIFY soon after. Not in
// the transaction that makes the change: PostgreSQL lets one notifying transaction commit at a time, sync included, and
// that would make the whole cluster as fast as one client. What an instance owes when it dies is found by slow polls.
func (s *Store) tell(events ...store.Event) {
	s.hear(events)
	for _, e := range events {
		s.notices.add(e, false)
	}
}

// hear passes on what was changed here or elsewhere.
func (s *Store) hear(events []store.Event) {
	for _, e := range events {
		switch e.Kind {
		case store.EventAgentChanged:
			s.keys.forget(e.AgentID)
		case store.EventResync:
			s.keys.clear()
		default:
		}
	}
	s.watchers.tell(events...)
}

// notify tells the other instances.
func (s *Store) notify(events []store.Event) {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	s.mu.Lock()
	if s.owed {
		events = []store.Event{{Kind: store.EventResync}}
	}
	s.mu.Unlock()
	_, err := s.lazy.Exec(ctx, "select pg_notify($1, n) from unnest($2::text[]) as n", s.channel, s.notes(events))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owed = err != nil
}

// notes are the notifications' texts, each event once.
func (s *Store) notes(events []store.Event) []string {
	var notes []string
	n := notice{From: s.instance}
	size := 0
	flush := func() {
		notes, n.Events, size = append(notes, string(mustJSON(n))), nil, 0
	}
	seen := map[store.Event]struct{}{}
	for _, e := range events {
		bare := e
		bare.Wants = nil
		if _, twice := seen[bare]; twice {
			continue
		}
		seen[bare] = struct{}{}
		raw := mustJSON(e)
		if len(raw) > maxEvent { // many labels: the others ask the store
			raw = mustJSON(bare)
		}
		const around = 100 // what the notice itself takes
		if size+len(raw)+1 > maxNotice-around {
			flush()
		}
		n.Events = append(n.Events, raw)
		size += len(raw) + 1
	}
	flush()
	return notes
}

func mustJSON(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("BUG: an event that is not JSON: " + err.Error())
	}
	return raw
}

// Watch listens until ctx ends, on a connection of its own that it makes again when it is lost. Meanwhile it looks after the
// partitions of the logs.
func (s *Store) Watch(ctx context.Context, f func(store.Event)) error {
	defer s.watchers.add(f)()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { s.upkeep(ctx) })
	wait := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(100*time.Millisecond), // a restarted database is back in about that time
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
	for ctx.Err() == nil {
		err := s.listen(ctx, wait.Reset)
		if ctx.Err() != nil {
			break
		}
		s.log.Warn("listening for changes ended; trying again", zap.Error(err))
		timer := time.NewTimer(wait.NextBackOff())
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// listen passes on what other instances change until the connection fails or ctx ends.
func (s *Store) listen(ctx context.Context, listening func()) error {
	conn, err := pgx.ConnectConfig(ctx, s.lazy.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is lost with it
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{s.channel}.Sanitize()); err != nil {
		return err
	}
	listening()
	s.hear([]store.Event{{Kind: store.EventResync}}) // what happened before is not told
	defer s.keys.keep()()
	for poll := time.Now().Add(slowPoll); ; {
		if err := s.await(ctx, conn, poll); err != nil {
			return err
		}
		if time.Now().Before(poll) {
			continue
		}
		poll = time.Now().Add(slowPoll)
		if err := s.heard(ctx, conn); err != nil {
			return err
		}
		if err := s.poll(ctx); err != nil {
			return err
		}
	}
}

// await passes on one notification, if one comes before until.
func (s *Store) await(ctx context.Context, conn *pgx.Conn, until time.Time) error {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	n, err := conn.WaitForNotification(ctx)
	if err != nil {
		if time.Now().Before(until) || conn.IsClosed() {
			return err
		}
		return nil
	}
	var got struct {
		From   string
		Events []store.Event
	}
	if json.Unmarshal([]byte(n.Payload), &got) != nil {
		got.Events = []store.Event{{Kind: store.EventResync}} // a newer instance's kind of notice
	}
	if got.From != s.instance {
		s.hear(got.Events)
	}
	return nil
}

// heard answers whether the connection is still one: what was sent on it before the answer has been heard by then.
func (s *Store) heard(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	return conn.Ping(ctx)
}

// poll passes on what changed of late.
func (s *Store) poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	var jobs, agents []string
	err := s.pool.QueryRow(ctx, fmt.Sprintf(`with since as (select clock_timestamp() - %d * interval '1 second' as at) select
		array(select id from jobs where status = 'pending' and pending_at > (select at from since) limit %[2]d),
		array(select id from agents where changed_at > (select at from since) limit %[2]d)`, int(slowPollBack/time.Second), maxSlowPoll)).Scan(&jobs, &agents)
	if err != nil {
		return err
	}
	if len(jobs) == maxSlowPoll || len(agents) == maxSlowPoll {
		s.hear([]store.Event{{Kind: store.EventResync}})
		return nil
	}
	events := make([]store.Event, 0, len(jobs)+len(agents))
	for _, id := range jobs {
		events = append(events, store.Event{Kind: store.EventJobPending, JobID: id})
	}
	for _, id := range agents {
		events = append(events, store.Event{Kind: store.EventAgentChanged, AgentID: id})
	}
	s.hear(events)
	return nil
}
