package protocol

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// The back-off of protocol.md §1.
const (
	// FirstBackOff bounds the first pause: short enough that a blip goes unnoticed.
	FirstBackOff = 500 * time.Millisecond
	// LongestBackOff bounds every later one: 2,000 agents that come back after an outage spread over as long.
	LongestBackOff = 30 * time.Second
	// LongestHeartbeatBackOff leaves several tries within the default TTL of 10 s.
	LongestHeartbeatBackOff = 2 * time.Second
)

// NewBackOff is exponential with full jitter: each pause is anything between nothing and a
// bound that starts at FirstBackOff and doubles up to longest (0 = LongestBackOff). The first
// pause is jittered, too, so that agents that failed together don't come back together.
// It never stops: the protocol doesn't give up.
func NewBackOff(longest time.Duration) backoff.BackOff {
	if longest <= 0 {
		longest = LongestBackOff
	}
	b := &fullJitter{longest: longest}
	b.Reset()
	return b
}

type fullJitter struct {
	longest time.Duration
	bound   time.Duration // of the next pause
}

func (b *fullJitter) Reset() { b.bound = min(FirstBackOff, b.longest) }

func (b *fullJitter) NextBackOff() time.Duration {
	pause := rand.N(b.bound + 1) //nolint:gosec // jitter, not a secret
	b.bound = min(2*b.bound, b.longest)
	return pause
}

// Pause waits before the call that failed with err is repeated: as long as the server asked
// for, if it did, and the back-off's jittered pause on top, so that those who were told the
// same don't come back in the same second. It ends early with ctx's cause.
func Pause(ctx context.Context, b backoff.BackOff, err error) error {
	wait := b.NextBackOff()
	if asked, ok := RetryAfter(err); ok {
		wait += asked
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
