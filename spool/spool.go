package spool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

const (
	epochsDir     = "epochs"
	trashDir      = "trash"
	quarantineDir = "quarantine"
	deadDir       = "dead"
	cursorsName   = "cursors"
	holesName     = "holes"

	// maxLoaded bounds descriptors and memory: at most so many sealed epochs have their entries loaded.
	// Lanes read in order, so that a few are enough.
	maxLoaded = 4
)

// Spool is the store. Its methods may be called at any time and concurrently; those that write wait
// for Run.
type Spool struct {
	cfg       Config
	log       *zap.Logger
	epochSize int64
	wrapKV    func(kv) kv // tests
	values    buffers

	requests chan *request
	commands chan func()
	kick     chan struct{} // something may have become removable
	failed   chan struct{} // the syncer refused something
	done     chan struct{} // closed when Run has ended
	running  atomic.Bool
	arriving atomic.Int64 // Append calls that the writer hasn't taken yet
	syncs    chan *chunk  // from the writer to the syncer

	loadMu sync.Mutex
	loaded []*epoch // least recently used first

	// Only the goroutine of Run touches these.
	open    *epoch
	nextID  uint64
	spare   *spare // the next epoch, made ahead
	sealing *epoch // in the background

	behind sync.WaitGroup // what Run does in the background

	mu           sync.Mutex
	refused      []*chunk // what an epoch that failed took and didn't make durable, in order
	cursorsDirty bool
	lock         *os.File // nil until the directory could be made
	epochs       []*epoch // oldest first
	attempts     map[string]*attempt
	holesDirty   bool
	changed      chan struct{}
	full         bool
	dead         int64
	deadBytes    int64
	spareDisk    int64 // what the next epoch takes already
	nextDead     uint64
	quarantined  int64
	appended     uint64
	appendBytes  uint64
	corrupt      uint64
	commits      Histogram
}

// attempt is what is known beside the epochs. Guarded by Spool.mu.
type attempt struct {
	meta     []byte
	expected bool  // the meta was set for a batch that is still to come
	acked    int64 // -1 = not known
	end      int64
	state    State
	holes    []hole // sorted by first
}

// hole is a range that was given up knowingly.
type hole struct {
	First  int64  `json:"first"`
	Next   int64  `json:"next"`
	Reason string `json:"reason"`
}

// Open takes the directory and reads what it holds, at a cost that grows with the number of epochs
// and not with what is in them. It starts nothing. A full disk is no reason to fail.
func Open(cfg Config) (*Spool, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	cfg.Dir = dir
	s := &Spool{
		cfg: cfg, log: cfg.Logger,
		requests: make(chan *request), commands: make(chan func()), syncs: make(chan *chunk, maxSyncs),
		kick: make(chan struct{}, 1), failed: make(chan struct{}, 1), done: make(chan struct{}), changed: make(chan struct{}),
		attempts: map[string]*attempt{},
		commits:  newHistogram(),
	}
	if err := s.takeDir(); err != nil && !isFull(err) {
		if _, locked := errors.AsType[*LockedError](err); locked {
			return nil, err
		}
		return nil, fmt.Errorf("spool: %w", err)
	}
	_, total, err := fsSpace(existingParent(cfg.Dir))
	if err != nil {
		return nil, err
	}
	s.epochSize = cfg.epochSize(total)
	if err := s.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("spool: %w", err), s.unlock())
	}
	return s, nil
}

// takeDir makes and locks the directory. On a full disk it is tried again before the first epoch.
func (s *Spool) takeDir() error {
	if s.lock != nil {
		return nil
	}
	for _, d := range []string{"", epochsDir, trashDir, quarantineDir, deadDir} {
		if err := os.MkdirAll(filepath.Join(s.cfg.Dir, d), dirMode); err != nil {
			return err
		}
	}
	f, err := lockDir(s.cfg.Dir)
	s.lock = f
	return err
}

func (s *Spool) unlock() error {
	if s.lock == nil {
		return nil
	}
	f := s.lock
	s.lock = nil
	return f.Close()
}

func existingParent(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
}

// SetMeta says what is to be stored beside an attempt's first batch in every epoch (at most 4 KiB).
// It must come before the attempt's first Append, and again before one that follows when nothing of the attempt was held any more;
// it is known again after a restart.
func (s *Spool) SetMeta(id string, meta []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.attempt(id)
	a.meta, a.expected = append([]byte{}, meta[:min(len(meta), maxMeta)]...), true
}

// SetState says whether an attempt's batches wait to be shipped or have nobody to take them.
func (s *Spool) SetState(id string, st State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempt(id).state = st
	s.holesDirty = true
}

// Ack says that everything below next is stored elsewhere. Only this lets the spool forget.
func (s *Spool) Ack(id string, next int64) {
	s.mu.Lock()
	a := s.attempts[id]
	news := a != nil && next > a.acked
	if news {
		a.acked = next
		a.holes = slices.DeleteFunc(a.holes, func(h hole) bool { return h.Next <= next })
	}
	s.mu.Unlock()
	if news {
		s.wake()
	}
}

// forget drops what is known of an attempt of which nothing is held any more. It needs mu.
func (s *Spool) forget(id string) {
	a := s.attempts[id]
	if a == nil || a.expected || len(a.holes) > 0 || a.end > a.acked || slices.ContainsFunc(s.epochs, func(e *epoch) bool { return e.spans[id] != nil }) {
		return
	}
	delete(s.attempts, id)
}

// attempt needs mu.
func (s *Spool) attempt(id string) *attempt {
	a := s.attempts[id]
	if a == nil {
		a = &attempt{acked: -1}
		s.attempts[id] = a
	}
	return a
}

// Attempts lists what isn't acknowledged, sorted by attempt.
func (s *Spool) Attempts() []AttemptInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list(false)
}

// list needs mu.
func (s *Spool) list(shipped bool) []AttemptInfo {
	infos := map[string]*AttemptInfo{}
	oldest := map[string]int64{}
	first := map[string]int64{}
	for id, a := range s.attempts {
		if shipped || a.end > max(a.acked, 0) {
			infos[id] = &AttemptInfo{Attempt: id, Meta: a.meta, Next: a.end, State: a.state}
			first[id] = -1
			if len(a.holes) > 0 {
				first[id] = a.holes[0].First
			}
		}
	}
	for _, e := range s.epochs {
		for id, sp := range e.spans {
			in, a := infos[id], s.attempts[id]
			if in == nil || !shipped && sp.next <= a.acked {
				continue
			}
			in.Batches += sp.batches
			in.Bytes += sp.bytes
			in.Decoded += sp.decoded
			if sp.oldest != 0 && (oldest[id] == 0 || sp.oldest < oldest[id]) {
				oldest[id] = sp.oldest
			}
			if first[id] < 0 || sp.first < first[id] {
				first[id] = sp.first
			}
		}
	}
	out := make([]AttemptInfo, 0, len(infos))
	for id, in := range infos {
		a := s.attempts[id]
		in.First = max(first[id], 0)
		if a.acked >= 0 && !shipped {
			in.First = a.acked
		}
		if shipped && in.Batches == 0 && a.end <= a.acked {
			continue
		}
		if a.end <= a.acked {
			in.State = Shipped
		}
		if oldest[id] != 0 {
			in.Oldest = time.UnixMicro(oldest[id])
		}
		out = append(out, *in)
	}
	slices.SortFunc(out, func(a, b AttemptInfo) int { return cmp.Compare(a.Attempt, b.Attempt) })
	return out
}

// Changed is closed when space was freed or the disk recovered. Ask for it before the Append whose
// ErrFull it is to outlast.
func (s *Spool) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// notify needs mu.
func (s *Spool) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Spool) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// inRun has f done by the goroutine of Run, and waits for it.
func (s *Spool) inRun(ctx context.Context, f func() error) error {
	result := make(chan error, 1)
	select {
	case s.commands <- func() { result <- f() }:
	case <-s.done:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
	return <-result
}

// Stats returns the counters. It asks the file system how much is free.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	st := Stats{
		Epochs: len(s.epochs), DiskUsed: s.used(), EpochSize: s.epochSize, Full: s.full,
		Appended: s.appended, AppendedBytes: s.appendBytes, Corrupt: s.corrupt,
		Quarantined: s.quarantined, DeadLetters: s.dead,
		Commits: Histogram{
			Bounds: s.commits.Bounds, Counts: slices.Clone(s.commits.Counts), Sum: s.commits.Sum,
		},
	}
	for _, e := range s.epochs {
		for id, sp := range e.spans {
			if a := s.attempts[id]; a == nil || sp.next > a.acked {
				st.Batches += sp.batches
				st.Bytes += sp.bytes
			}
		}
	}
	s.mu.Unlock()
	if free, total, err := fsSpace(existingParent(s.cfg.Dir)); err == nil {
		st.DiskFree, st.DiskTotal = free, total
	}
	return st
}

// used needs mu.
func (s *Spool) used() int64 {
	sum := s.deadBytes + s.quarantined + s.spareDisk
	for _, e := range s.epochs {
		sum += e.disk
	}
	return sum
}

// epochsOf returns the epochs that hold something of an attempt, oldest first. Needs mu.
func (s *Spool) epochsOf(id string) []*epoch {
	var out []*epoch
	for _, e := range s.epochs {
		if e.spans[id] != nil {
			out = append(out, e)
		}
	}
	return out
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// newHistogram: a group commit takes from under a millisecond (tmpfs) to seconds (a busy disk).
func newHistogram() Histogram {
	bounds := []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5}
	return Histogram{Bounds: bounds, Counts: make([]uint64, len(bounds)+1)}
}

func (h *Histogram) observe(d time.Duration) {
	i, _ := slices.BinarySearch(h.Bounds, d.Seconds())
	h.Counts[i]++
	h.Sum += d.Seconds()
}
