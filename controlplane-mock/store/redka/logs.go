package redka

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"strconv"
	"time"

	redkadb "github.com/nalgeon/redka"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/rules"
)

// logKey names an attempt's log.
type logKey struct {
	jobID   string
	attempt int64
}

func (k logKey) key(kind string) string {
	return kind + "/" + k.jobID + "/" + strconv.FormatInt(k.attempt, 10)
}

func (k logKey) body(first int64) string { return k.key("body") + "/" + strconv.FormatInt(first, 10) }

// maxTails is how many logs' ends are kept in memory. One that isn't costs a look-up.
const maxTails = 1 << 14

// tails are the ends of logs: shown is what is committed, under mu; over belongs to the leader of the
// group of logs.db under way.
type tails struct {
	shown map[logKey]int64 // guarded by Store.mu
	over  map[logKey]int64
	grown []store.Event
}

func (s *Store) beginLogs() { s.tails.over, s.tails.grown = map[logKey]int64{}, nil }

func (s *Store) abortLogs() {
	s.tails.over, s.tails.grown = nil, nil
	_ = s.segments.drop()
}

func (s *Store) commitLogs() {
	s.mu.Lock()
	maps.Copy(s.tails.shown, s.tails.over)
	for k := range s.tails.shown {
		if len(s.tails.shown) <= maxTails {
			break
		}
		delete(s.tails.shown, k) // any will do: it is read again when it is needed
	}
	s.mu.Unlock()
	events := s.tails.grown
	s.tails.over, s.tails.grown = nil, nil
	s.watchers.tell(events)
}

// reloadLogs forgets the ends after the database was opened again.
func (s *Store) reloadLogs() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.tails.shown)
	return nil
}

// claim checks that ref may speak for its attempt's log, which it may for ever.
func (s *Store) claim(ctx context.Context, ref store.Ref) error {
	st, err := s.stateOf(ctx, ref.JobID)
	if err != nil {
		return err
	}
	if st.Claimed(ref) == nil {
		return store.ErrNotFound
	}
	return nil
}

// stateOf is the committed state of a job, settled or not. Not to be changed.
func (s *Store) stateOf(ctx context.Context, id string) (*rules.State, error) {
	s.mu.Lock()
	closed, j := s.closed, s.mem.jobs[id]
	s.mu.Unlock()
	if closed {
		return nil, store.ErrStopped
	}
	if j != nil {
		return &j.state, nil
	}
	var st rules.State
	err := s.stateDB.view(ctx, func(tx *redkadb.Tx) error {
		found, err := get(tx, stateKey(id), &st)
		if err == nil && !found {
			err = store.ErrNotFound
		}
		return err
	})
	return &st, err
}

// AppendLog stores a batch durably.
func (s *Store) AppendLog(ctx context.Context, ref store.Ref, b store.LogBatch) (int64, error) {
	if err := s.claim(ctx, ref); err != nil {
		return 0, err
	}
	if b.First < 0 || b.Count < 0 || b.First > maxScore-b.Count {
		return 0, fmt.Errorf("redka: record numbers %d+%d are out of range", b.First, b.Count)
	}
	k := logKey{ref.JobID, ref.Attempt}
	end := b.First + b.Count
	var next int64
	var err error
	if b.Count == 0 {
		next, err = s.next(ctx, k)
	} else {
		err = s.logs.apply(ctx, len(b.Body), func(tx *redkadb.Tx) error {
			next, err = s.append(tx, k, b)
			return err
		})
	}
	if err != nil || !b.Final {
		return next, err
	}
	// In the other database. If we die in between, the agent has no answer and sends this again.
	return next, s.alter(ctx, ref.JobID, 0, func(_ *store.NewJob, st *rules.State) (bool, error) {
		if !st.SetLogLength(ref.Attempt, end) {
			return false, nil
		}
		s.over.events = append(s.over.events, store.Event{Kind: store.EventLogAppended, JobID: ref.JobID, Attempt: ref.Attempt})
		return true, nil
	})
}

// append adds what is new of b. For the leader.
func (s *Store) append(tx *redkadb.Tx, k logKey, b store.LogBatch) (int64, error) {
	next, err := s.tail(tx, k)
	if err != nil {
		return 0, err
	}
	switch {
	case b.First > next:
		return next, &store.GapError{Next: next}
	case b.First+b.Count <= next:
		return next, nil
	case b.First < next:
		trim := b.Trim
		if b, err = trim(next); err != nil {
			return next, err
		}
		if b.First != next || b.Count <= 0 {
			return next, errors.New("redka: a trimmed batch doesn't start at next")
		}
	}
	end := b.First + b.Count
	h := header{LogBatch: b, size: int64(len(b.Body)), crc: crc32.Checksum(b.Body, castagnoli)}
	h.ReceivedAt = time.Now()
	if len(b.Body) <= inline {
		err = tx.Str().Set(k.body(b.First), b.Body)
	} else {
		h.segment, h.at, err = s.segments.write(b.Body)
	}
	if err != nil {
		return next, broken(err)
	}
	if _, err := tx.ZSet().Add(k.key("index"), h.append(nil), float64(end)); err != nil {
		return next, broken(err)
	}
	if err := tx.Str().Set(k.key("next"), int(end)); err != nil {
		return next, broken(err)
	}
	s.tails.over[k] = end
	s.tails.grown = append(s.tails.grown, store.Event{Kind: store.EventLogAppended, JobID: k.jobID, Attempt: k.attempt})
	return end, nil
}

// tail is the log's end as the changes so far have left it. For the leader.
func (s *Store) tail(tx *redkadb.Tx, k logKey) (int64, error) {
	if next, ok := s.tails.over[k]; ok {
		return next, nil
	}
	s.mu.Lock()
	next, ok := s.tails.shown[k]
	s.mu.Unlock()
	if ok {
		return next, nil
	}
	_, err := get(tx, k.key("next"), &next)
	return next, err
}

// next is the log's committed end.
func (s *Store) next(ctx context.Context, k logKey) (int64, error) {
	s.mu.Lock()
	next, ok := s.tails.shown[k]
	s.mu.Unlock()
	if ok {
		return next, nil
	}
	err := s.logsDB.view(ctx, func(tx *redkadb.Tx) error {
		_, err := get(tx, k.key("next"), &next)
		return err
	})
	return next, err
}

// LogNext answers what is stored.
func (s *Store) LogNext(ctx context.Context, ref store.Ref) (int64, error) {
	if err := s.claim(ctx, ref); err != nil {
		return 0, err
	}
	return s.next(ctx, logKey{ref.JobID, ref.Attempt})
}

// addLogs fills in how far each attempt's log has come.
func (s *Store) addLogs(ctx context.Context, jobs []*store.Job) error {
	var keys []string
	for _, j := range jobs {
		for i := range j.Attempts {
			keys = append(keys, logKey{j.ID, j.Attempts[i].Number}.key("next"))
		}
	}
	const most = 10_000 // parameters of one statement; SQLite's limit is 32,766
	values := map[string]redkadb.Value{}
	for len(keys) > 0 {
		part := keys[:min(len(keys), most)]
		keys = keys[len(part):]
		err := s.logsDB.view(ctx, func(tx *redkadb.Tx) error {
			got, err := tx.Str().GetMany(part...)
			maps.Copy(values, got)
			return err
		})
		if err != nil {
			return err
		}
	}
	for _, j := range jobs {
		for i := range j.Attempts {
			a := &j.Attempts[i]
			next, err := values[logKey{j.ID, a.Number}.key("next")].Int()
			if err != nil {
				return err
			}
			a.LogNext = int64(next)
		}
	}
	return nil
}

// readAhead is how many batch headers a read looks at in one go.
const readAhead = 64

// ReadLog returns stored batches that cover numbers from on.
func (s *Store) ReadLog(ctx context.Context, jobID string, attempt, from int64, maxBytes int) ([]store.LogBatch, error) {
	st, err := s.stateOf(ctx, jobID)
	if err != nil {
		return nil, err
	}
	if st.Find(attempt) == nil {
		return nil, store.ErrNotFound
	}
	k := logKey{jobID, attempt}
	var out []store.LogBatch
	err = s.logsDB.view(ctx, func(tx *redkadb.Tx) error {
		heads, err := tx.ZSet().RangeWith(k.key("index")).ByScore(float64(max(from, 0)+1), maxScore).Count(readAhead).Run()
		if err != nil {
			return err
		}
		size := int64(0)
		for _, raw := range heads {
			h, err := parseHeader(raw.Elem.Bytes())
			if err != nil {
				return err
			}
			if size += h.size; len(out) > 0 && size > int64(maxBytes) {
				return nil
			}
			if err := s.readBody(tx, k, h); err != nil {
				return fmt.Errorf("the batch at %d: %w", h.First, err)
			}
			out = append(out, h.LogBatch)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("redka: log of job %s attempt %d: %w", jobID, attempt, err)
	}
	return out, nil
}

// readBody reads the body that h describes, and checks that it is the one that was stored.
func (s *Store) readBody(tx *redkadb.Tx, k logKey, h *header) error {
	if h.segment == 0 {
		v, err := tx.Str().Get(k.body(h.First))
		if err != nil {
			return err
		}
		h.Body = v.Bytes()
	} else {
		var err error
		if h.Body, err = s.segments.read(h); err != nil {
			return err
		}
	}
	if int64(len(h.Body)) != h.size || crc32.Checksum(h.Body, castagnoli) != h.crc {
		return errors.New("its body is damaged")
	}
	return nil
}

// headerSize is that of eight numbers of 8 bytes; the encoding's name follows.
const headerSize = 8 * 8

func (h *header) append(dst []byte) []byte {
	for _, v := range []int64{h.First, h.Count, h.Decoded, h.ReceivedAt.UnixMicro(), h.size, int64(h.crc), h.segment, h.at} {
		dst = binary.BigEndian.AppendUint64(dst, uint64(v))
	}
	return append(dst, h.Encoding...)
}

func parseHeader(raw []byte) (*header, error) {
	if len(raw) < headerSize {
		return nil, errors.New("a batch header is too short")
	}
	at := func(i int) int64 { return int64(binary.BigEndian.Uint64(raw[8*i:])) }
	h := &header{size: at(4), crc: uint32(at(5)), segment: at(6), at: at(7)}
	h.First, h.Count, h.Decoded, h.ReceivedAt = at(0), at(1), at(2), time.UnixMicro(at(3)).UTC()
	h.Encoding = string(raw[headerSize:])
	return h, nil
}
