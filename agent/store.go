package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"agentd/agent/protocol"
	"agentd/shipper"
	"agentd/spool"
)

// store is shipper and spool behind the seam.
type store struct {
	*shipper.Shipper
	spool *spool.Spool
	block bool // a full spool holds jobs up; otherwise their output becomes gaps, as the operator chose

	mu     sync.Mutex
	bytes  map[string]int64 // guarded by mu: what waits in the spool, by attempt
	looked time.Time        // guarded by mu: when bytes was made
}

// spoolFresh is how old the figures in heartbeats may be: looking through the spool is O(attempts), and every attempt asks.
const spoolFresh = 2 * time.Second

// openLogs makes shipper and spool.
func (a *Agent) openLogs(sender shipper.Sender) error {
	l := a.cfg.Logs
	sp, err := spool.Open(spool.Config{
		Dir: filepath.Join(a.cfg.StateDir, "spool"), MaxSize: l.Spool.MaxSize, MinFree: l.Spool.MinFree,
		KeepShipped: l.Spool.KeepShipped, Logger: a.log,
	})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a.closers = append(a.closers, sp.Close)
	s, err := shipper.New(shipper.Config{
		QueueFile: filepath.Join(a.cfg.RuntimeDir, "queue"), Memory: l.Memory, Spool: sp, Sender: sender,
		Durability: l.Durability, Compression: l.Compression, MaxLine: l.MaxLine, WhenFull: l.Spool.WhenFull, Logger: a.log,
	})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a.closers = append(a.closers, s.Close)
	a.spool = sp
	a.logs = &store{Shipper: s, spool: sp, block: l.Spool.WhenFull == shipper.WhenFullBlock}
	return nil
}

// Spool is the agent's spool, for those who list and export what waits in it.
func (a *Agent) Spool() *spool.Spool { return a.spool }

// Run ships until ctx ends. The spool outlives the shipper, which moves the rest of memory into it.
func (s *store) Run(ctx context.Context) error {
	disk, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ship, stopShip := context.WithCancel(ctx)
	defer stopShip()
	var wg sync.WaitGroup
	var shipped, stored error
	wg.Go(func() {
		stored = s.spool.Run(disk)
		stopShip() // without its disk the shipper can't keep its promise
	})
	wg.Go(func() {
		shipped = s.Shipper.Run(ship)
		stop()
	})
	wg.Wait()
	return errors.Join(shipped, stored)
}

// Open begins an attempt's log.
func (s *store) Open(ref protocol.AttemptRef) (jobLog, error) {
	l, err := s.Shipper.Open(ref)
	if err != nil {
		return nil, err // not a nil *Log in an interface
	}
	return l, nil
}

// Backlog is for heartbeats.
func (s *store) Backlog(jobID string, attempt int64) (int64, time.Duration) {
	st, _ := s.AttemptStats(jobID, attempt)
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.looked) > spoolFresh {
		s.bytes, s.looked = map[string]int64{}, time.Now()
		for _, a := range s.spool.Attempts() {
			s.bytes[a.Attempt] = a.Bytes
		}
	}
	return s.bytes[key(jobID, attempt)], st.OldestUnshipped
}

// Full says why no output can be taken in at the moment.
func (s *store) Full() string {
	if st := s.spool.Stats(); s.block && st.Full {
		return fmt.Sprintf("the spool is full: %d bytes wait, %d bytes are free on the disk; jobs are taken again when logs have shipped or space is freed",
			st.Bytes, st.DiskFree)
	}
	return ""
}

// Changed is closed when there may be room again.
func (s *store) Changed() <-chan struct{} { return s.spool.Changed() }
