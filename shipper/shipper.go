package shipper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"agentd/agent/protocol"
	"agentd/shipper/internal/queue"
)

const (
	// frameMax is what a batch may have before compression. Lines of a few bytes grow twentyfold as
	// records, so that sealBytes alone would not bound a batch.
	frameMax = 1 << 20
	// finalSpill bounds how long a shipper that ends waits for the disk. What hasn't reached the
	// spool by then stays in the queue file, and is found there at the next start.
	finalSpill = 20 * time.Second
	// endedKept is how many finished attempts are remembered, for a Final that comes late.
	endedKept = 1024
)

// Shipper owns the queue file and the logs of all attempts.
type Shipper struct {
	cfg        Config
	queue      *queue.File
	sealBytes  int64
	frameBytes int
	sealers    chan *sealer
	recovered  []Recovered
	counters   counters

	sealIdle  atomic.Bool   // the seal loop waits for a knock
	sealWake  chan struct{} // capacity 1, as the other two
	shipWake  chan struct{}
	spilWake  chan struct{}
	spillIdle atomic.Bool
	spoolOut  atomic.Bool // the spool took nothing the last time
	stamps    stamps

	mu        sync.Mutex
	lanes     map[string]*lane // every attempt of which anything is held; guarded by mu
	order     []*lane          // the same, as opened; guarded by mu
	ready     []*lane          // have work, first come first served; guarded by mu
	asleep    map[*lane]bool   // have work, later; guarded by mu
	flights   flights          // guarded by mu
	link      link             // guarded by mu
	ended     map[string]int64 // finished attempts: how many records; guarded by mu
	endedRing []string         // the same, oldest first; guarded by mu
	owned     map[string]bool  // attempts whose lost memory was owned up to: few, those of a process before; guarded by mu
	changed   chan struct{}    // closed and renewed when a lane moved on; guarded by mu
}

// New maps the queue file, checks what it holds and queues it again, with what the spool holds. It starts nothing.
func New(cfg Config) (*Shipper, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Shipper{
		cfg: cfg,
		// A sixty-fourth: a small queue must hold a few batches of each of a few attempts.
		sealBytes:  min(sealBytes*31/32, cfg.Memory/64), // a little less than four pages of 64 KiB hold
		frameBytes: int(min(frameMax, cfg.Memory/16)),
		sealers:    make(chan *sealer, min(max(runtime.GOMAXPROCS(0), 2), 4)),
		sealWake:   make(chan struct{}, 1),
		shipWake:   make(chan struct{}, 1),
		spilWake:   make(chan struct{}, 1),
		lanes:      map[string]*lane{},
		asleep:     map[*lane]bool{},
		ended:      map[string]int64{},
		owned:      map[string]bool{},
		changed:    make(chan struct{}),
	}
	s.link.init()
	for range cap(s.sealers) {
		s.sealers <- &sealer{}
	}
	q, found, err := queue.Open(cfg.QueueFile, queue.Options{Size: cfg.Memory, Reserve: int64(s.frameBytes)})
	if err != nil {
		return nil, fmt.Errorf("shipper: %w", err)
	}
	s.queue = q
	if found.Damage > 0 {
		cfg.Logger.Error("queue file was damaged", zap.Int("places", found.Damage),
			zap.String("renamed", found.Renamed), zap.String("kept", found.Kept), zap.Error(found.KeptErr))
	}
	s.recover(found.Attempts)
	return s, nil
}

// Run ships until ctx ends, then moves the rest to the spool and returns.
func (s *Shipper) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { s.sealLoop(ctx) })
	wg.Go(func() { s.spillLoop(ctx) })
	s.shipLoop(ctx)
	wg.Wait()
	s.queue.Stop() // whoever still reads finds no room and gives up
	return s.finish(ctx)
}

// Close unmaps the queue file. Call it after Run has returned and every Log is closed.
func (s *Shipper) Close() error {
	if err := s.queue.Close(); err != nil {
		return fmt.Errorf("shipper: close: %w", err)
	}
	return nil
}

// finish brings what memory holds to the spool.
func (s *Shipper) finish(ctx context.Context) error {
	for _, l := range s.logsToSeal() {
		l.seal() //nolint:errcheck // what can't be sealed stays in the queue file as it is
	}
	if s.cfg.Spool == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalSpill)
	defer cancel()
	for {
		group := s.spillable(true)
		if len(group) == 0 {
			return nil
		}
		if err := s.spill(ctx, group); err != nil {
			s.cfg.Logger.Warn("rest of the logs stayed in the queue file", zap.Error(err))
			return fmt.Errorf("shipper: final spill: %w", err)
		}
		for _, l := range s.logsToSeal() { // there is room now for what wasn't sealed yet
			l.seal() //nolint:errcheck // as above
		}
	}
}

// Open begins the log of an attempt, at number 0.
func (s *Shipper) Open(ref protocol.AttemptRef) (*Log, error) {
	key := keyOf(ref)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lanes[key] != nil {
		return nil, fmt.Errorf("shipper: open %s: its log is open already", key)
	}
	q, err := s.queue.Begin(queue.Ident{JobID: ref.JobID, Attempt: ref.Attempt, Token: ref.LeaseToken, MaxLine: s.cfg.MaxLine})
	if err != nil {
		return nil, fmt.Errorf("shipper: open %s: %w", key, err)
	}
	l := &Log{s: s, q: q, ref: ref}
	s.addLane(&lane{key: key, ref: ref, log: l, q: q, asked: true})
	return l, nil
}

func keyOf(ref protocol.AttemptRef) string {
	return ref.JobID + "/" + strconv.FormatInt(ref.Attempt, 10)
}

// Recovered are the attempts that were found at start, in queue file or spool. Their logs ship by
// themselves, and end with final=1.
func (s *Shipper) Recovered() []Recovered { return slices.Clone(s.recovered) }

// meta is what the spool keeps beside an attempt's batches.
type meta struct {
	JobID      string `json:"jobId"`
	Attempt    int64  `json:"attempt"`
	LeaseToken string `json:"leaseToken"`
}

func (m meta) ref() protocol.AttemptRef {
	return protocol.AttemptRef{JobID: m.JobID, Attempt: m.Attempt, LeaseToken: m.LeaseToken}
}

// RefOf reads what SetMeta stored beside an attempt's batches in the spool.
func RefOf(stored []byte) (protocol.AttemptRef, error) {
	var m meta
	if err := json.Unmarshal(stored, &m); err != nil {
		return protocol.AttemptRef{}, fmt.Errorf("shipper: attempt of a spooled batch: %w", err)
	}
	if m.JobID == "" {
		return protocol.AttemptRef{}, errors.New("shipper: attempt of a spooled batch: no job id")
	}
	return m.ref(), nil
}

// recover makes lanes of what was found. What the spool has, memory needn't hold: a kill between
// the spool's word and our release leaves it in both.
func (s *Shipper) recover(found []*queue.Attempt) {
	for _, q := range found {
		ref := protocol.AttemptRef{JobID: q.JobID, Attempt: q.Attempt, LeaseToken: q.Token}
		l := &Log{s: s, q: q, ref: ref}
		l.closed.Store(true)
		for i := range l.ended {
			l.ended[i].Store(true)
		}
		l.fresh.Store(time.Now().Add(-sealAge).UnixNano()) // the seal loop makes batches of what isn't sealed as its first act
		s.addLane(&lane{key: keyOf(ref), ref: ref, log: l, q: q, next: q.Released(), final: true})
	}
	if s.cfg.Spool != nil {
		for _, info := range s.cfg.Spool.Attempts() {
			s.recoverSpooled(info.Attempt, info.Meta, info.First, info.Next, info.Oldest)
		}
	}
	for _, l := range s.order {
		n := l.spoolNext
		if l.log != nil {
			n = max(n, l.log.countAll())
		}
		s.counters.accepted.Add(s.end(l) - l.next)
		s.recovered = append(s.recovered, Recovered{Ref: l.ref, LogRecords: n, InMemory: l.q != nil})
		s.wake(l)
	}
}

func (s *Shipper) recoverSpooled(key string, stored []byte, first, next int64, oldest time.Time) {
	l := s.lanes[key]
	if l == nil {
		ref, err := RefOf(stored)
		if err != nil {
			s.cfg.Logger.Error("spooled attempt could not be told", zap.String("attempt", key), zap.Error(err))
			return
		}
		l = &lane{key: key, ref: ref, final: true}
		s.addLane(l)
	} else {
		l.q.Release(next)
		l.q.SkipTo(next)
		first = min(first, next)
	}
	l.next, l.spoolNext = first, next
	l.spooledSince = oldest
}

// logsToSeal are the logs that may hold bytes that aren't sealed.
func (s *Shipper) logsToSeal() []*Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	logs := make([]*Log, 0, len(s.order))
	for _, l := range s.order {
		if l.log != nil && !l.log.complete.Load() {
			logs = append(logs, l.log)
		}
	}
	return logs
}

// Flush waits until everything is acknowledged, or ctx ends. Orphans are not waited for.
func (s *Shipper) Flush(ctx context.Context) error {
	for {
		s.mu.Lock()
		changed, waiting := s.changed, false
		for _, l := range s.order {
			waiting = waiting || !l.orphan && (s.hasWork(l) || l.flying || l.next < s.end(l) || l.log != nil && l.log.unseen.Load() > 0)
		}
		s.mu.Unlock()
		if !waiting {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("shipper: flush: %w", context.Cause(ctx))
		}
	}
}

func knock(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
