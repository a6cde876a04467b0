package agent

import (
	"context"
	"errors"
	"net/http"
	"time"

	"agentd/agent/protocol"
)

const (
	// cutsToLearn polls that end at about the same age are a proxy's doing (protocol §3).
	cutsToLearn = 3
	// minCut: what breaks off sooner is a restart or a refusal, not a proxy's idle timeout. Proxies'
	// defaults begin at 20 s; the shortest that people set is a few seconds.
	minCut = 2 * time.Second
	// sameAge is how far apart the ages may be: timers of proxies tick in seconds.
	sameAge = time.Second
	// leastWait: below it polling would be a busy loop, and a proxy that cuts so soon is broken.
	leastWait = time.Second
)

// learnedWait is the wait that a proxy on the way lets through. It belongs to the poll loop.
type learnedWait struct {
	learned time.Duration // 0 = nothing learned
	age     time.Duration // of the last cut
	cuts    int           // in a row, at about the same age
}

func (l *learnedWait) of(wait time.Duration) time.Duration {
	if l.learned > 0 {
		wait = min(wait, l.learned)
	}
	return wait
}

// cut looks at a poll that failed at the given age and says whether a shorter wait was learned of it.
func (l *learnedWait) cut(wait, age time.Duration, err error) (shorter time.Duration, learned bool) {
	if !brokenOff(err) || age < minCut || age > wait+sameAge {
		l.cuts = 0
		return 0, false
	}
	if diff := (age - l.age).Abs(); l.cuts > 0 && diff <= sameAge {
		l.cuts++
	} else {
		l.cuts = 1
	}
	l.age = age
	if l.cuts < cutsToLearn {
		return 0, false
	}
	l.cuts = 0
	// A fifth less, in whole seconds as the wire has it: room for the way there and back.
	l.learned = max(leastWait, (age * 4 / 5).Truncate(time.Second))
	return l.learned, true
}

// answered forgets cuts, not what was learned: with a shorter wait polls are answered, and
// that says nothing about a longer one.
func (l *learnedWait) answered() { l.cuts = 0 }

// brokenOff: a connection that ended without an answer, or a gateway's word for it. Not our own deadline, and not a refusal.
func brokenOff(err error) bool {
	e, ok := errors.AsType[*protocol.Error](err)
	if !ok || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	return e.Code == "" && (e.Status == 0 || e.Status == http.StatusBadGateway || e.Status == http.StatusGatewayTimeout)
}
