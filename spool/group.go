package spool

import (
	"bytes"
	"fmt"
	"time"

	"go.uber.org/zap"
)

const (
	// commitTries: a second fresh epoch that fails like the first means that it isn't the epoch.
	commitTries = 3
	// maxSyncs bounds what is written and not yet durable, and with it the memory that waits.
	maxSyncs = 4
)

// chunk is what one transaction takes, on its way from the writer to the syncer. The writer copies
// the next one into badger while the syncer waits for the disk.
type chunk struct {
	items   []item
	group   *group
	epoch   *epoch
	err     error // the chunk wasn't written and won't be
	tries   int
	start   time.Time
	barrier chan struct{} // not a chunk: everything before it is settled
}

// group is the calls that went together. Once chunks are under way, only the syncer touches left and err, and only the writer failed.
type group struct {
	requests []*request
	left     int
	err      error
	failed   error // of a chunk that won't be written. None behind it is written either: a kill would leave a call's end without its middle
}

// group collects the calls that are under way, so that they share one fsync. It waits only for
// callers that have already come in.
func (s *Spool) group(r *request) *group {
	g := &group{requests: []*request{r}}
	size, count := r.size(), len(r.items)
	timer := time.NewTimer(groupWait)
	defer timer.Stop()
	for size < groupEnough && count < groupEntries/2 && s.arriving.Load() > 0 {
		select {
		case r := <-s.requests:
			s.arriving.Add(-1)
			g.requests = append(g.requests, r)
			size, count = size+r.size(), count+len(r.items)
		case <-timer.C:
			return g
		}
	}
	return g
}

func (r *request) size() int {
	n := 0
	for _, it := range r.items {
		n += len(it.value)
	}
	return n
}

// commitGroup writes the group in as few transactions as fit.
func (s *Spool) commitGroup(g *group) {
	var items []item
	for _, r := range g.requests {
		items = append(items, r.items...)
	}
	var chunks []*chunk
	for len(items) > 0 {
		n, size := 0, 0
		// Half of the entries are left for metas: each batch may be the first of its attempt.
		for n < len(items) && n < groupEntries/2 && (n == 0 || size+len(items[n].value) <= groupMax) {
			size += len(items[n].value)
			n++
		}
		chunks = append(chunks, &chunk{items: items[:n], group: g})
		items = items[n:]
	}
	g.left = len(chunks)
	for _, c := range chunks {
		s.write(c)
	}
}

// write hands one chunk to badger and then to the syncer. Once one was refused, the rest of its
// attempt mustn't overtake it: retry settles that first.
func (s *Spool) write(c *chunk) {
	s.retry()
	s.writeOnce(c)
}

func (s *Spool) writeOnce(c *chunk) {
	c.start = time.Now()
	if c.group.failed != nil {
		s.giveUp(c, c.group.failed)
		return
	}
	e, entries, err := s.writable(c.items)
	if err != nil {
		s.giveUp(c, err)
		return
	}
	s.mu.Lock()
	overtakes := len(s.refused) > 0 // since we looked, in the change of epochs
	if overtakes {
		s.refused = append(s.refused, c)
	}
	s.mu.Unlock()
	if overtakes {
		s.tellFailed()
		return
	}
	c.epoch = e
	e.room.add(entries)
	for _, it := range c.items {
		e.met[it.attempt] = true
	}
	if !e.isBroken(s) { // else the syncer refuses it behind what broke it
		if err := e.kv.commit(entries); err != nil {
			s.mu.Lock()
			e.broken = true
			s.mu.Unlock()
			s.log.Error("commit failed", zap.Uint64("epoch", e.id), zap.Error(err))
		}
	}
	for i := range c.items { // between them are the metas
		for !bytes.Equal(entries[0].key, c.items[i].key) {
			entries = entries[1:]
		}
		c.items[i].ref.valueAt = entries[0].valueAt
		entries = entries[1:]
	}
	s.syncs <- c
}

// giveUp has a chunk answered that won't be written.
func (s *Spool) giveUp(c *chunk, err error) {
	c.err, c.group.failed = err, err
	s.syncs <- c
}

// barrier waits until everything that was written is durable or refused.
func (s *Spool) barrier() {
	c := &chunk{barrier: make(chan struct{})}
	s.syncs <- c
	<-c.barrier
}

// settleAll waits as barrier does, until nothing is refused any more: each chunk is tried a few times only.
func (s *Spool) settleAll() {
	for {
		s.barrier()
		s.mu.Lock()
		none := len(s.refused) == 0
		s.mu.Unlock()
		if none {
			return
		}
		s.retry()
	}
}

// retry writes what an epoch refused into a new one, in order. A handle that failed is never written
// to again, and never synced again: what a failed fsync left behind can't be known.
func (s *Spool) retry() {
	for {
		s.mu.Lock()
		none := len(s.refused) == 0
		s.mu.Unlock()
		if none {
			return
		}
		s.barrier() // what is still under way to the same epoch is refused too
		s.mu.Lock()
		refused := s.refused
		s.refused = nil
		broken := s.open != nil && s.open.broken
		s.mu.Unlock()
		if broken {
			if err := s.sealOpen(); err != nil {
				s.log.Error("failed epoch wasn't sealed", zap.Error(err))
			}
		}
		for _, c := range refused {
			if c.tries++; c.tries >= commitTries {
				s.giveUp(c, fmt.Errorf("spool: append: %d epochs failed one after the other", c.tries))
				continue
			}
			s.writeOnce(c)
		}
	}
}

// syncLoop makes durable what the writer wrote, as much at a time as has come together, and answers.
func (s *Spool) syncLoop() {
	for c := range s.syncs {
		chunks := []*chunk{c}
	more:
		for len(chunks) < maxSyncs && chunks[len(chunks)-1].barrier == nil {
			select {
			case c, ok := <-s.syncs:
				if !ok {
					break more
				}
				chunks = append(chunks, c)
			default:
				break more
			}
		}
		for len(chunks) > 0 {
			n := 1
			for n < len(chunks) && chunks[n].barrier == nil && chunks[n].epoch == chunks[0].epoch {
				n++
			}
			s.settle(chunks[:n])
			chunks = chunks[n:]
		}
	}
}

// settle takes chunks of one epoch.
func (s *Spool) settle(chunks []*chunk) {
	if b := chunks[0].barrier; b != nil {
		close(b)
		return
	}
	if e := chunks[0].epoch; e != nil && chunks[0].err == nil {
		broken := e.isBroken(s)
		if !broken {
			if err := e.kv.sync(); err != nil {
				broken = true
				s.log.Error("sync failed, the epoch is given up", zap.Uint64("epoch", e.id), zap.Error(err))
			}
		}
		if broken {
			s.mu.Lock()
			e.broken = true
			s.refused = append(s.refused, chunks...)
			s.mu.Unlock()
			s.tellFailed()
			return
		}
		s.committed(e, chunks)
	}
	for _, c := range chunks {
		if c.group.err == nil {
			c.group.err = c.err
		}
		if c.group.left--; c.group.left > 0 {
			continue
		}
		for _, r := range c.group.requests {
			r.answer <- c.group.err
		}
	}
}

func (s *Spool) tellFailed() {
	select {
	case s.failed <- struct{}{}:
	default:
	}
}

func (e *epoch) isBroken(s *Spool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return e.broken
}

// committed enters what is durable.
func (s *Spool) committed(e *epoch, chunks []*chunk) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	sort := false
	for _, c := range chunks {
		for _, it := range c.items {
			sp, a := e.ix.spans[it.attempt], s.attempt(it.attempt)
			if sp == nil {
				e.ix.setMeta(it.attempt, it.meta)
			} else if it.ref.first < sp.next {
				sort = true
			}
			e.ix.add(it.attempt, it.ref)
			a.end, a.meta, a.expected = max(a.end, it.ref.next), it.meta, false
			s.appended++
			s.appendBytes += uint64(it.ref.valueLen)
		}
		s.commits.observe(time.Since(c.start))
	}
	if sort {
		e.ix.sort()
	}
	e.lastWrite = time.Now()
	s.cursorsDirty = true
}
