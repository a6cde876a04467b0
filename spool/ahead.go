package spool

import (
	"os"
	"path/filepath"

	"go.uber.org/zap"
)

// Changing epochs takes some tenths of a second, above all in fsyncs, and nobody is to wait for it. So the next epoch
// is made while the open one fills up, and a full one is sealed while the next one takes batches. Both happen in goroutines of Run's;
// only one of each is under way. All fields and methods here belong to the goroutine of Run.

// spare is the epoch that comes next: being made, or made. A crash leaves it as an epoch that holds nothing, which is trash.
type spare struct {
	dir   string
	done  chan struct{} // closed when it is made, or couldn't be
	epoch *epoch        // nil with an error; not to be looked at before done
	err   error
}

// aheadOf is how much of the open epoch is left when the next one is made: an eighth takes about as long to fill as an epoch to make.
// Earlier, a second database's memory would be held for nothing.
const aheadOf = 8

// prepare begins to make the next epoch when the open one is nearly full. It takes nothing that anybody else needs: there must be
// room for two.
func (s *Spool) prepare() {
	u := s.open.room
	nearly := u.vlog > u.layout.vlog-u.layout.vlog/aheadOf || u.wal > u.layout.wal-u.layout.wal/aheadOf || u.mem > u.layout.wal-u.layout.wal/aheadOf
	if s.spare != nil || !nearly || !s.roomFor(2*s.epochSize) {
		return
	}
	id := s.nextID
	s.nextID++
	n := &spare{dir: filepath.Join(s.cfg.Dir, epochsDir, epochName(id)), done: make(chan struct{})}
	s.spare = n
	s.mu.Lock()
	s.spareDisk = s.epochSize
	s.mu.Unlock()
	s.behind.Go(func() {
		defer close(n.done)
		n.epoch, n.err = createEpoch(n.dir, id, s.epochSize, s.wrapKV, s.log)
	})
}

// takeSpare waits for the epoch that is being made and returns it; nil = there is none.
func (s *Spool) takeSpare() *epoch {
	n := s.spare
	if n == nil {
		return nil
	}
	<-n.done
	s.spare = nil
	s.mu.Lock()
	s.spareDisk = 0
	s.mu.Unlock()
	if n.err != nil {
		// It is tried once more now that it is needed, and any fault is told then.
		s.log.Debug("next epoch couldn't be made ahead", zap.String("dir", n.dir), zap.Error(n.err))
		if _, err := os.Stat(n.dir); err == nil {
			s.trash(n.dir)
		}
	}
	return n.epoch
}

// dropSpare gives the next epoch's space back.
func (s *Spool) dropSpare() {
	e := s.takeSpare()
	if e == nil {
		return
	}
	if err := e.discard(); err != nil {
		s.log.Warn("unused epoch was closed with an error", zap.Uint64("epoch", e.id), zap.Error(err))
	}
	s.trash(e.dir)
}

// sealBehind ends the open epoch's life as such, and seals it while others go on.
func (s *Spool) sealBehind() {
	s.barrier()
	e := s.open
	s.open = nil
	if s.sealing != nil {
		s.awaitSeal(s.sealing)
	}
	s.sealing, e.sealed = e, make(chan struct{})
	s.behind.Go(func() {
		defer s.wake()
		defer close(e.sealed)
		if err := s.seal(e); err != nil {
			s.log.Error("epoch was sealed with an error", zap.Uint64("epoch", e.id), zap.Error(err))
		}
	})
}

// awaitSeal waits until nothing is done to e in the background.
func (s *Spool) awaitSeal(e *epoch) {
	if e.sealed == nil {
		return
	}
	<-e.sealed
	e.sealed = nil
	if s.sealing == e {
		s.sealing = nil
	}
}

// beingSealed says whether e is to be left alone for now.
func (s *Spool) beingSealed(e *epoch) bool {
	if e.sealed == nil {
		return false
	}
	select {
	case <-e.sealed:
		s.awaitSeal(e)
		return false
	default:
		return true
	}
}
