package redka

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	redkadb "github.com/nalgeon/redka"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/rules"
)

// jobDoc is the value of job/<id>. The payload and the environment have keys of their own, so
// that going through many jobs doesn't read what may be 256 KiB each.
type jobDoc struct {
	Seq       int64        `json:"seq"`
	CreatedAt time.Time    `json:"createdAt"`
	Spec      store.NewJob `json:"spec"`
}

func jobKey(id string) string     { return "job/" + id }
func stateKey(id string) string   { return "state/" + id }
func payloadKey(id string) string { return "payload/" + id }
func envKey(id string) string     { return "env/" + id }
func idemKey(key string) string   { return "idem/" + key }

func resultKey(id string, attempt int64) string {
	return "result/" + id + "/" + strconv.FormatInt(attempt, 10)
}

const (
	setJobs   = "jobs"   // ids of all jobs, by number
	setLive   = "live"   // ids of those not settled
	setAgents = "agents" // ids of agents, by number
	setTokens = "tokens" // sums by wall-clock end in milliseconds
	setNonces = "nonces"
)

// maxScore is above every score: numbers, milliseconds, record numbers are exact in a float64 up to it.
const maxScore = 1 << 53

// get reads key into v, a pointer to what is stored there as JSON. found is false where there is nothing.
func get(tx *redkadb.Tx, key string, v any) (found bool, err error) {
	raw, err := tx.Str().Get(key)
	if errors.Is(err, redkadb.ErrNotFound) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, v)
	}
	return err == nil, broken(err)
}

func put(tx *redkadb.Tx, key string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return broken(err)
	}
	return broken(tx.Str().Set(key, raw))
}

// fromDocs puts a job together.
func fromDocs(d *jobDoc, st rules.State) *job {
	return &job{spec: &d.Spec, seq: d.Seq, createdAt: d.CreatedAt, state: st, bucket: bucketOf(&d.Spec)}
}

func bucketOf(n *store.NewJob) bucketKey {
	if len(n.Labels) == 0 {
		return bucketKey{agentID: n.AgentID}
	}
	labels, err := json.Marshal(n.Labels) // sorts by key
	if err != nil {
		panic("BUG: labels that are not JSON: " + err.Error())
	}
	return bucketKey{agentID: n.AgentID, labels: string(labels)}
}

// readJob reads a job, settled or not; nil if there is none.
func readJob(tx *redkadb.Tx, id string) (*job, error) {
	values, err := tx.Str().GetMany(jobKey(id), stateKey(id))
	if err != nil || values[jobKey(id)] == nil {
		return nil, broken(err)
	}
	return parseJob(values, id)
}

func parseJob(values map[string]redkadb.Value, id string) (*job, error) {
	var d jobDoc
	var st rules.State
	if err := json.Unmarshal(values[jobKey(id)], &d); err != nil {
		return nil, broken(fmt.Errorf("%s: %w", jobKey(id), err))
	}
	if err := json.Unmarshal(values[stateKey(id)], &st); err != nil {
		return nil, broken(fmt.Errorf("%s: %w", stateKey(id), err))
	}
	return fromDocs(&d, st), nil
}

// job is the job as the changes so far have left it; nil if there is none. For the leader.
func (s *Store) job(tx *redkadb.Tx, id string) (*job, error) {
	if j := s.over.jobs[id]; j != nil {
		return j, nil
	}
	if j := s.mem.jobs[id]; j != nil {
		return j, nil
	}
	return readJob(tx, id)
}

// putJob writes the changed state of old, and tells. For the leader.
func (s *Store) putJob(tx *redkadb.Tx, old *job, st rules.State) error {
	id := old.spec.ID
	for i := range st.Attempts {
		a := &st.Attempts[i]
		if a.Result == nil {
			continue
		}
		if err := tx.Str().Set(resultKey(id, a.Number), []byte(a.Result)); err != nil {
			return broken(err)
		}
		a.Result = nil
	}
	if err := put(tx, stateKey(id), &st); err != nil {
		return err
	}
	if was, is := old.state.Status.Settled(), st.Status.Settled(); !was && is {
		if _, err := tx.ZSet().Delete(setLive, id); err != nil {
			return broken(err)
		}
	} else if was && !is {
		if _, err := tx.ZSet().Add(setLive, id, float64(old.seq)); err != nil {
			return broken(err)
		}
	}
	s.stage(old.with(st))
	s.over.events = append(s.over.events, store.Event{Kind: store.EventJobChanged, JobID: id})
	if st.Status == store.Pending && old.state.Status != store.Pending {
		s.over.events = append(s.over.events, store.Event{Kind: store.EventJobPending, JobID: id, Wants: store.WantsOf(old.spec)})
	}
	return nil
}

// stage puts j where the group's other changes see it, and sends renewals of it the slow way.
func (s *Store) stage(j *job) {
	s.over.jobs[j.spec.ID] = j
	s.mu.Lock()
	s.busy[j.spec.ID] = struct{}{}
	s.mu.Unlock()
}
