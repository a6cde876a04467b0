package shipper

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"agentd/agent/protocol"
	"agentd/spool"
)

// flights counts the requests under way.
type flights struct {
	all      int
	replay   int // from the spool
	troubled int // of lanes whose last request failed
	turn     int // counts requests, so that replays get their turn
}

// trouble is a row of failures of one lane: the first of each kind is logged, and the recovery.
type trouble struct {
	fails  int
	since  time.Time
	action protocol.Action
}

// replayTurn: when there is more live output than requests for it, every fourth is a replay all the same.
const replayTurn = 4

// shipLoop gives requests to lanes. A lane has one at a time, so its records stay in order.
// Lanes in trouble, and replays, get at most half of the requests each: whatever hangs, live
// output of the others goes on.
func (s *Shipper) shipLoop(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		s.mu.Lock()
		now := time.Now()
		s.stamps.shipLooked.Store(now.UnixNano())
		next := s.rouse(now)
		for now.After(s.link.pausedUntil) || now.Equal(s.link.pausedUntil) {
			l := s.pick(now)
			if l == nil {
				break
			}
			replay, troubled := l.replaying(), l.fails > 0
			s.count(replay, troubled, 1)
			l.queued = false
			s.setFlying(l, true)
			wg.Go(func() {
				s.shipOne(ctx, l)
				s.mu.Lock()
				defer s.mu.Unlock()
				s.count(replay, troubled, -1)
				s.setFlying(l, false)
				s.release(l)
				s.wakeOrSleep(l)
				s.settleEnd(l)
				s.tellChanged()
				knock(s.shipWake)
			})
		}
		if now.Before(s.link.pausedUntil) && (next.IsZero() || next.Before(s.link.pausedUntil)) {
			next = s.link.pausedUntil
		}
		s.mu.Unlock()
		var later <-chan time.Time
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), time.Millisecond))
			later = timer.C
		}
		select {
		case <-ctx.Done():
		case <-s.shipWake:
		case <-later:
		}
	}
}

func (s *Shipper) setFlying(l *lane, flying bool) {
	l.flying = flying
	if l.log != nil {
		l.log.flying.Store(flying)
		if !flying && s.cfg.Spool == nil && s.cfg.WhenFull == WhenFullDropOldest {
			s.queue.Wake()
		}
	}
}

func (s *Shipper) count(replay, troubled bool, by int) {
	s.flights.all += by
	if replay {
		s.flights.replay += by
	}
	if troubled {
		s.flights.troubled += by
	}
}

// rouse moves the lanes whose time has come to the ready ones, and says when the next one's will.
func (s *Shipper) rouse(now time.Time) (next time.Time) {
	for l := range s.asleep {
		if !now.Before(l.wakeAt) {
			delete(s.asleep, l)
			s.ready = append(s.ready, l)
		} else if next.IsZero() || l.wakeAt.Before(next) {
			next = l.wakeAt
		}
	}
	return next
}

// pick takes the next lane that may have a request.
func (s *Shipper) pick(now time.Time) *lane {
	most := s.cfg.MaxRequests
	if s.link.slow() {
		most = min(most, 2) // more would only make each wait longer, and heartbeats with them
	}
	if s.flights.all >= most {
		return nil
	}
	half := most / 2
	may := func(l *lane) bool {
		return (l.fails == 0 || s.flights.troubled < half) && (!l.replaying() || s.flights.replay < half)
	}
	s.flights.turn++
	live := func(l *lane) bool { return may(l) && !l.replaying() }
	replay := func(l *lane) bool { return may(l) && l.replaying() }
	order := [2]func(*lane) bool{live, replay}
	if s.flights.turn%replayTurn == 0 {
		order = [2]func(*lane) bool{replay, live}
	}
	for _, suits := range order {
		if i := slices.IndexFunc(s.ready, suits); i >= 0 {
			l := s.ready[i]
			s.ready = slices.Delete(s.ready, i, i+1)
			return l
		}
	}
	return nil
}

// wakeOrSleep queues l again after a request.
func (s *Shipper) wakeOrSleep(l *lane) {
	if l.wakeAt.After(time.Now()) && s.hasWork(l) {
		l.queued = true
		s.asleep[l] = true
		return
	}
	s.wake(l)
}

// shipOne makes one request for l.
func (s *Shipper) shipOne(ctx context.Context, l *lane) {
	s.mu.Lock()
	asked := l.asked
	s.mu.Unlock()
	if !asked {
		answer, err := s.cfg.Sender.LogNext(ctx, l.ref)
		s.counters.request("next", err)
		if ctx.Err() == nil {
			s.settleAsked(l, answer.Next, err)
		}
		return
	}
	b, err := s.plan(l)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed(l, err, protocol.Retry, 0)
		return
	}
	if b == nil {
		return
	}
	start := time.Now()
	answer, err := s.cfg.Sender.ShipLog(ctx, l.ref, b.body)
	if ctx.Err() != nil && err != nil {
		return // we are stopping: the answer, whatever it was, is asked for again at the next start
	}
	s.counters.request("ship", err)
	s.settle(l, b, answer.Next, err, time.Since(start))
}

func (s *Shipper) settleAsked(l *lane, next int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		if protocol.ActionFor(err) == protocol.Orphan {
			s.orphaned(l, err)
			return
		}
		s.failed(l, err, protocol.ActionFor(err), 0)
		return
	}
	l.asked = true
	if s.cfg.Spool != nil && l.spoolNext > 0 {
		s.cfg.Spool.SetState(l.key, spool.Waiting) // it may have been an orphan
	}
	if end := s.end(l); next > end {
		// The server has more than we found: the queue file was damaged, or lost.
		s.cfg.Logger.Warn("server knew more records than were found at start", zap.String("job", l.ref.JobID),
			zap.Int64("attempt", l.ref.Attempt), zap.Int64("next", next), zap.Int64("found", end))
		if l.q != nil && !l.complete() {
			l.q.SkipTo(next)
		}
		s.counters.accepted.Add(next - end)
		if l.q == nil {
			l.spoolNext = next
		}
	}
	s.advance(l, next)
	s.ownUp(l)
	s.recoveredFrom(l)
}
