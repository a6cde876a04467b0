package postgres

import (
	"context"
	"encoding/json"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jackc/pgx/v5"

	"agentd/controlplane-mock/store"
)

// notify tells all instances, when the transaction commits.
func (s *Store) notify(b *pgx.Batch, events ...store.Event) {
	for _, e := range events {
		raw, err := json.Marshal(e)
		if err != nil {
			panic("BUG: an event that is not JSON: " + err.Error())
		}
		b.Queue("select pg_notify($1, $2)", s.channel, string(raw))
	}
}

// Watch listens until ctx ends, on a connection of its own that it makes again when it is lost.
func (s *Store) Watch(ctx context.Context, f func(store.Event)) error {
	wait := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(100*time.Millisecond), // a restarted database is back in about that time
		backoff.WithMaxInterval(5*time.Second), backoff.WithMaxElapsedTime(0))
	for ctx.Err() == nil {
		if s.listen(ctx, f) {
			wait.Reset()
		}
		timer := time.NewTimer(wait.NextBackOff())
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
	return nil
}

// listen tells f of events until the connection fails or ctx ends; listened says that there was one.
func (s *Store) listen(ctx context.Context, f func(store.Event)) (listened bool) {
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return false
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing is lost with it
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{s.channel}.Sanitize()); err != nil {
		return false
	}
	f(store.Event{Kind: store.EventResync}) // what happened before is not told
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return true
		}
		var e store.Event
		if json.Unmarshal([]byte(n.Payload), &e) != nil {
			e = store.Event{Kind: store.EventResync} // a newer instance's kind of event
		}
		f(e)
	}
}
