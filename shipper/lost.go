package shipper

import "agentd/agent/protocol"

// MemoryLost says that what memory held of an attempt's log is gone: the host has rebooted, or the queue file was
// lost. A gap record behind what the server and the spool have owns up to it: up to records, if the log's length was known,
// else one number that stands for any, since nobody can say how many. Call it for attempts that an earlier
// process ran and that Recovered doesn't have in memory. It does nothing if memory has the attempt after all, or the
// second time: by then the first gap may be stored, and would be taken for a line that another gap must follow.
func (s *Shipper) MemoryLost(ref protocol.AttemptRef, records int64) {
	if s.cfg.Spool == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := keyOf(ref)
	if s.owned[key] {
		return
	}
	l := s.lanes[key]
	if l == nil {
		end := s.ended[key] // what of it was in the spool may have been shipped by now
		l = &lane{key: key, ref: ref, next: end, spoolNext: end}
		s.addLane(l)
	}
	if l.q != nil {
		return
	}
	s.owned[key] = true
	l.memoryLost, l.lostTo = true, records
	l.final, l.finalSaid = true, false
	if l.asked {
		s.ownUp(l)
	}
	s.wake(l)
}

// ownUp adds the gap, once the server has said what it has. The caller holds mu.
func (s *Shipper) ownUp(l *lane) {
	if !l.memoryLost {
		return
	}
	l.memoryLost = false
	end := s.end(l)
	to := end + 1
	if l.lostTo > 0 {
		to = l.lostTo
	}
	if to <= end {
		return // all of it had left memory
	}
	s.counters.accepted.Add(to - end)
	l.spoolNext = to // the spool is asked for it, and has nothing there: that makes the gap record
	s.addGap(l, span{first: end, next: to, reason: protocol.GapDamaged})
}
