package shipper

import "time"

const (
	// paceAge is how far behind a log may be while the server takes it: half of what makes the spool step in.
	paceAge = spillAge / 2
	// paceFill likewise is below spillFill: how much of the memory the logs that the server takes may fill between them.
	paceFill = 0.6
	// keepsUpFor is how long after its last answer, or the request that follows it, a server still counts as taking the log.
	keepsUpFor = 500 * time.Millisecond
)

// keepPace holds a job that prints faster than the server takes it, for as long as the server does. Memory that empties
// by itself is no reason to write to disk; and what waits for less than spillAge stays within the bound on what a
// power cut costs. A server that has stopped answering holds nobody: then there is the spool.
func (l *Log) keepPace() {
	if l.s.cfg.Spool == nil || l.s.cfg.WhenFull != WhenFullBlock || l.unseen.Load() > 0 {
		return // it was not just sealed: nothing has changed
	}
	for {
		behind, changed := l.s.aheadOfServer(l)
		if !behind {
			return
		}
		timer := time.NewTimer(keepsUpFor / 4)
		select {
		case <-changed:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// aheadOfServer says whether log should wait, and for what.
func (s *Shipper) aheadOfServer(log *Log) (bool, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	l := s.lanes[keyOf(log.ref)]
	if l == nil || l.q == nil || l.replaying() || l.orphan || l.fails > 0 || now.Sub(l.heardAt) > keepsUpFor {
		return false, nil
	}
	// Of its own part alone: another log that fills memory, because its lane is stuck, must not slow this one.
	if float64(l.q.Bytes()) > paceFill*float64(s.queue.Size())/float64(s.inMemory()) {
		return true, s.changed
	}
	b, _, ok := l.q.Find(l.next)
	return ok && now.Sub(time.UnixMicro(b.Oldest)) > paceAge, s.changed
}

// inMemory is how many logs share the memory. The caller holds mu.
func (s *Shipper) inMemory() (n int) {
	for _, l := range s.order {
		if l.q != nil && l.q.Bytes() > 0 {
			n++
		}
	}
	return max(n, 1)
}
