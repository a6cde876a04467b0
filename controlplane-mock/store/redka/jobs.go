package redka

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	redkadb "github.com/nalgeon/redka"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/rules"
)

// idemDoc is the value of idem/<key>.
type idemDoc struct {
	JobID string    `json:"jobId"`
	Sum   store.Sum `json:"sum"`
}

// Submit stores a new pending job.
func (s *Store) Submit(ctx context.Context, n store.NewJob) (store.Job, bool, error) {
	created, id := true, n.ID
	err := s.state.apply(ctx, len(n.Payload), func(tx *redkadb.Tx) error {
		if n.IdempotencyKey != "" {
			var first idemDoc
			found, err := get(tx, idemKey(n.IdempotencyKey), &first)
			if err != nil {
				return err
			}
			if found {
				if first.Sum != n.BodySum {
					return store.ErrConflict
				}
				created, id = false, first.JobID
				return nil
			}
		}
		if j, err := s.job(tx, n.ID); err != nil {
			return err
		} else if j != nil {
			return store.ErrConflict
		}
		return s.insert(tx, n)
	})
	if err != nil {
		return store.Job{}, false, err
	}
	job, err := s.Job(ctx, id)
	return job, created, err
}

func (s *Store) insert(tx *redkadb.Tx, n store.NewJob) error {
	s.over.seq++
	d := jobDoc{Seq: s.over.seq, CreatedAt: stamp(time.Now()), Spec: n}
	d.Spec.Payload, d.Spec.Env = nil, nil
	st := rules.New(&n)
	if err := put(tx, metaSeq, d.Seq); err != nil {
		return err
	}
	if err := put(tx, jobKey(n.ID), &d); err != nil {
		return err
	}
	if err := put(tx, stateKey(n.ID), &st); err != nil {
		return err
	}
	if err := tx.Str().Set(payloadKey(n.ID), []byte(n.Payload)); err != nil {
		return broken(err)
	}
	if len(n.Env) > 0 {
		if err := put(tx, envKey(n.ID), n.Env); err != nil {
			return err
		}
	}
	if n.IdempotencyKey != "" {
		if err := put(tx, idemKey(n.IdempotencyKey), idemDoc{n.ID, n.BodySum}); err != nil {
			return err
		}
	}
	for _, set := range []string{setJobs, setLive} {
		if _, err := tx.ZSet().Add(set, n.ID, float64(d.Seq)); err != nil {
			return broken(err)
		}
	}
	s.stage(fromDocs(&d, st))
	s.over.events = append(s.over.events, store.Event{Kind: store.EventJobPending, JobID: n.ID, Wants: store.WantsOf(&n)})
	return nil
}

// stamp is t as it is stored: without its monotonic reading, in UTC, in microseconds.
func stamp(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }

// Job is a job with all its attempts.
func (s *Store) Job(ctx context.Context, id string) (store.Job, error) {
	var out store.Job
	s.mu.Lock()
	j := s.mem.jobs[id] // as the last commit left it, if it isn't settled
	s.mu.Unlock()
	err := s.stateDB.view(ctx, func(tx *redkadb.Tx) error {
		var err error
		if j == nil {
			if j, err = readJob(tx, id); err != nil {
				return err
			}
		}
		if j == nil {
			return store.ErrNotFound
		}
		out, err = s.whole(tx, j)
		return err
	})
	if err != nil {
		return store.Job{}, err
	}
	return out, s.addLogs(ctx, []*store.Job{&out})
}

// whole is j with what is kept apart from it.
func (s *Store) whole(tx *redkadb.Tx, j *job) (store.Job, error) {
	out := store.Job{
		NewJob: *j.spec, Status: j.state.Status, Reason: j.state.Reason, CancelRequested: j.state.CancelRequested,
		CancelReason: j.state.CancelReason, CreatedAt: j.createdAt, Attempts: make([]store.Attempt, len(j.state.Attempts)),
	}
	id := out.ID
	keys := []string{payloadKey(id), envKey(id)}
	for i := range j.state.Attempts {
		out.Attempts[i] = j.state.Attempts[i]
		keys = append(keys, resultKey(id, out.Attempts[i].Number))
	}
	values, err := tx.Str().GetMany(keys...)
	if err != nil {
		return store.Job{}, err
	}
	out.Payload = json.RawMessage(values[payloadKey(id)])
	if env := values[envKey(id)]; env != nil {
		if err := json.Unmarshal(env, &out.Env); err != nil {
			return store.Job{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range out.Attempts {
		a := &out.Attempts[i]
		a.Result = json.RawMessage(values[resultKey(id, a.Number)])
		if l := s.mem.leases[id]; l != nil && l.attempt == a.Number {
			a.SpooledBytes = l.spooled
		}
	}
	return out, nil
}

// scanPage is how many jobs a listing reads at a time while it looks for those that match.
const scanPage = 256

// Jobs lists jobs oldest first. The cursor is the last one's number.
func (s *Store) Jobs(ctx context.Context, f store.JobFilter) ([]store.Job, string, error) {
	after := int64(0)
	if f.After != "" {
		var err error
		if after, err = strconv.ParseInt(f.After, 10, 64); err != nil || after < 0 {
			return nil, "", store.ErrNotFound
		}
	}
	set := setJobs
	if f.Status != "" && !f.Status.Settled() {
		set = setLive // so that history doesn't slow down a look at what goes on
	}
	var items []store.Job
	next, lastSeq := "", int64(0)
	err := s.stateDB.view(ctx, func(tx *redkadb.Tx) error {
		for {
			page, err := readPage(tx, set, after)
			if err != nil || len(page) == 0 {
				return err
			}
			for _, j := range page {
				after = j.seq
				if !matches(j, &f) {
					continue
				}
				if len(items) == f.Limit && f.Limit > 0 {
					next = strconv.FormatInt(lastSeq, 10)
					return nil
				}
				item, err := s.whole(tx, j)
				if err != nil {
					return err
				}
				items = append(items, item)
				lastSeq = j.seq
			}
		}
	})
	if err != nil {
		return nil, "", err
	}
	all := make([]*store.Job, len(items))
	for i := range items {
		all[i] = &items[i]
	}
	return items, next, s.addLogs(ctx, all)
}

func readPage(tx *redkadb.Tx, set string, after int64) ([]*job, error) {
	ids, err := tx.ZSet().RangeWith(set).ByScore(float64(after+1), maxScore).Count(scanPage).Run()
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	keys := make([]string, 0, 2*len(ids))
	for _, id := range ids {
		keys = append(keys, jobKey(id.Elem.String()), stateKey(id.Elem.String()))
	}
	values, err := tx.Str().GetMany(keys...)
	if err != nil {
		return nil, err
	}
	jobs := make([]*job, 0, len(ids))
	for _, id := range ids {
		j, err := parseJob(values, id.Elem.String())
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

func matches(j *job, f *store.JobFilter) bool {
	if f.Status != "" && j.state.Status != f.Status || f.Type != "" && j.spec.Type != f.Type {
		return false
	}
	if f.AgentID == "" || j.spec.AgentID == f.AgentID {
		return true
	}
	for i := range j.state.Attempts {
		if a := &j.state.Attempts[i]; a.Accepted && a.AgentID == f.AgentID {
			return true
		}
	}
	return false
}
