package leasekeeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"agentd/agent/protocol"
)

const (
	// maxHold is the longest that a heartbeat is held: a third of the default TTL of 10 s, so that
	// two may be missed before a lease runs out.
	maxHold = 3 * time.Second
	// minPace keeps a server that answers every held heartbeat at once from being asked in a tight loop.
	minPace = 100 * time.Millisecond
	// guardTick bounds how late a closing window is seen after the machine slept: Go's timers stand still meanwhile.
	guardTick = time.Second
	// killTime is what SIGKILL needs until every process is gone. Seven processes took 20 ms; a
	// loaded machine that pages gets fifty times that.
	killTime = time.Second
	// The bounds of the time that an answer may take beyond its hold before the heartbeat counts as missed.
	minAnswer = 500 * time.Millisecond
	maxAnswer = 10 * time.Second
)

// Sender carries heartbeats. protocol.Client is one.
type Sender interface {
	// Heartbeat renews the lease, and accepts the offer the first time. An error whose
	// protocol.CodeOf is not empty is the server's word; any other says nothing about the lease.
	Heartbeat(ctx context.Context, jobID string, wait time.Duration, req protocol.HeartbeatRequest) (protocol.Heartbeat, error)
	// FreshHeartbeats makes the next heartbeat go out on a fresh connection: the old one may be
	// black-holed. Must not block.
	FreshHeartbeats()
}

// Config says which lease is kept. Ref, TTL and Sender are required.
type Config struct {
	Ref       protocol.AttemptRef
	TTL       time.Duration // the offer's; answers replace it
	Exclusive bool
	Grace     time.Duration // the job's own grace period
	Sender    Sender
	// Backlog is what heartbeats report of the attempt's log; nil = nothing. Must not block.
	Backlog func() (spooledBytes int64, oldest time.Duration)
	// Clock counts suspend and is never set back; nil = Boottime.
	Clock func() time.Duration
	// Beat is told of each answered heartbeat and how late its answer was; nil = nobody. Must not block.
	Beat func(lateness time.Duration)
	// Alive is told, each time round, within which time the keeper will be heard of again; nil = nobody. Must not block.
	Alive  func(within time.Duration)
	Logger *zap.Logger // nil = none
}

func (c Config) withDefaults() Config {
	if c.Backlog == nil {
		c.Backlog = func() (int64, time.Duration) { return 0, 0 }
	}
	if c.Clock == nil {
		c.Clock = Boottime
	}
	if c.Beat == nil {
		c.Beat = func(time.Duration) {}
	}
	if c.Alive == nil {
		c.Alive = func(time.Duration) {}
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

func (c Config) validate() error {
	var faults []error
	if c.Ref.JobID == "" {
		faults = append(faults, errors.New("ref.jobID is missing"))
	}
	if c.TTL <= 0 {
		faults = append(faults, fmt.Errorf("ttl must be positive, not %v", c.TTL))
	}
	if c.Grace < 0 {
		faults = append(faults, fmt.Errorf("grace must not be negative, not %v", c.Grace))
	}
	if c.Sender == nil {
		faults = append(faults, errors.New("sender is missing"))
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("leasekeeper: %w", err)
	}
	return nil
}

// Boottime is CLOCK_BOOTTIME: the time since boot, suspend included.
func Boottime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("BUG: leasekeeper: CLOCK_BOOTTIME is missing: " + err.Error()) // Linux has it since 2.6.39
	}
	return time.Duration(ts.Nano())
}
