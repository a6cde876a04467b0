package postgres_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/postgres"
)

// fleet is two instances as one Store: each call goes to the next of them. Only the reaper, whose times to spare are an
// instance's own, is always the first one's, and so is Watch.
type fleet struct {
	url string
	all []*postgres.Store
	n   atomic.Uint64
}

func openFleet(t testing.TB, url string) *fleet {
	t.Helper()
	f := &fleet{url: url}
	for range 2 {
		f.all = append(f.all, open(t, postgres.Config{URL: url + "&pool_max_conns=2"}))
	}
	slices.Reverse(f.all) // the reaper's spares from the end of all this on
	return f
}

func (f *fleet) any() *postgres.Store { return f.all[f.n.Add(1)%uint64(len(f.all))] }

func (f *fleet) Close() error {
	var errs []error
	for _, s := range f.all {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

func (f *fleet) Watch(ctx context.Context, g func(store.Event)) error { return f.all[0].Watch(ctx, g) }
func (f *fleet) Rest(d time.Duration)                                 { f.all[0].Rest(d) }
func (f *fleet) Reap(ctx context.Context, ttl time.Duration) (int, error) {
	return f.all[0].Reap(ctx, ttl)
}

func (f *fleet) ServerID(ctx context.Context) (string, error) { return f.any().ServerID(ctx) }
func (f *fleet) Ping(ctx context.Context) error               { return f.any().Ping(ctx) }
func (f *fleet) Secret(ctx context.Context, name string) ([]byte, error) {
	return f.any().Secret(ctx, name)
}

func (f *fleet) PutNonce(ctx context.Context, nonce store.Sum, publicKey []byte, ttl time.Duration) error {
	return f.any().PutNonce(ctx, nonce, publicKey, ttl)
}

func (f *fleet) TakeNonce(ctx context.Context, nonce store.Sum, publicKey []byte) (bool, error) {
	return f.any().TakeNonce(ctx, nonce, publicKey)
}
func (f *fleet) PutToken(ctx context.Context, t store.Token) error { return f.any().PutToken(ctx, t) }
func (f *fleet) Link(ctx context.Context, p store.LinkParams) (store.Linked, error) {
	return f.any().Link(ctx, p)
}

func (f *fleet) Authenticate(ctx context.Context, key store.Sum) (store.Auth, error) {
	return f.any().Authenticate(ctx, key)
}

// Touch is lazy: only the instance that did it is sure to tell of it at once.
func (f *fleet) Touch(ctx context.Context, agentID string) error { return f.all[0].Touch(ctx, agentID) }
func (f *fleet) Agents(ctx context.Context, after string, limit int) ([]store.Agent, string, error) {
	return f.all[0].Agents(ctx, after, limit)
}

func (f *fleet) Agent(ctx context.Context, id string) (store.Agent, error) {
	return f.any().Agent(ctx, id)
}

func (f *fleet) SetRevoked(ctx context.Context, id string, revoked bool) (store.Agent, error) {
	return f.any().SetRevoked(ctx, id, revoked)
}

func (f *fleet) ExpireKeys(ctx context.Context, id string) (store.Agent, error) {
	return f.any().ExpireKeys(ctx, id)
}

func (f *fleet) Submit(ctx context.Context, n store.NewJob) (store.Job, bool, error) {
	return f.any().Submit(ctx, n)
}
func (f *fleet) Job(ctx context.Context, id string) (store.Job, error) { return f.any().Job(ctx, id) }
func (f *fleet) Jobs(ctx context.Context, filter store.JobFilter) ([]store.Job, string, error) {
	return f.any().Jobs(ctx, filter)
}

func (f *fleet) Lease(ctx context.Context, p store.LeaseParams) (store.Offer, error) {
	return f.any().Lease(ctx, p)
}

func (f *fleet) Renew(ctx context.Context, ref store.Ref, ttl time.Duration, beat store.Beat) (store.Lease, error) {
	return f.any().Renew(ctx, ref, ttl, beat)
}

func (f *fleet) Complete(ctx context.Context, ref store.Ref, c protocol.Completion) error {
	return f.any().Complete(ctx, ref, c)
}

func (f *fleet) Release(ctx context.Context, ref store.Ref, reason string) error {
	return f.any().Release(ctx, ref, reason)
}

func (f *fleet) Cancel(ctx context.Context, id, reason string) (store.Job, error) {
	return f.any().Cancel(ctx, id, reason)
}

func (f *fleet) Retry(ctx context.Context, id string) (store.Job, error) {
	return f.any().Retry(ctx, id)
}

func (f *fleet) AppendLog(ctx context.Context, ref store.Ref, b store.LogBatch) (int64, error) {
	return f.any().AppendLog(ctx, ref, b)
}

func (f *fleet) LogNext(ctx context.Context, ref store.Ref) (int64, error) {
	return f.any().LogNext(ctx, ref)
}

func (f *fleet) ReadLog(ctx context.Context, jobID string, attempt, from int64, maxBytes int) ([]store.LogBatch, error) {
	return f.any().ReadLog(ctx, jobID, attempt, from, maxBytes)
}
