package spool

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

const (
	// defaultMaxSize is what a host usually spares for logs without being asked.
	defaultMaxSize = 2 << 30
	// defaultMinFree leaves room for whoever else writes to the file system.
	defaultMinFree = 0.05
	// maxEpochSize bounds what one preallocation takes and what a drain leaves behind.
	maxEpochSize = 128 << 20
	// minEpochSize is what badger's fixed parts and a few batches of the largest size need.
	minEpochSize = 8 << 20
	// epochsPerCap: space comes back an epoch at a time, so an eighth is how finely the cap is shared out.
	epochsPerCap = 8
)

// Config says where a spool lives and how much it may take. The zero value of every field but Dir
// is its default.
type Config struct {
	// Dir is the spool's own directory. It is made, with mode 0700, when it doesn't exist.
	Dir string
	// MaxSize bounds the disk space in bytes, preallocation included. 0 = 2 GiB. At least 16 MiB.
	MaxSize int64
	// MinFree is the fraction of the file system that is left free for others. 0 = 0.05; negative = none.
	MinFree float64
	// EpochSize is what one epoch takes at most, in bytes. 0 = an eighth of MaxSize or of the file
	// system, whichever is smaller, between 8 MiB and 128 MiB.
	EpochSize int64
	// KeepShipped is how long acknowledged epochs stay readable, as long as the cap has room. 0 = not at all.
	KeepShipped time.Duration
	// Logger takes state changes. nil = none.
	Logger *zap.Logger
}

func (c Config) withDefaults() Config {
	if c.MaxSize == 0 {
		c.MaxSize = defaultMaxSize
	}
	if c.MinFree == 0 {
		c.MinFree = defaultMinFree
	}
	if c.MinFree < 0 {
		c.MinFree = 0
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("dir: empty"))
	}
	if c.MaxSize < 2*minEpochSize {
		errs = append(errs, fmt.Errorf("max_size: %d is below %d", c.MaxSize, 2*minEpochSize))
	}
	if c.MinFree >= 1 {
		errs = append(errs, fmt.Errorf("min_free: %v is no fraction below 1", c.MinFree))
	}
	if c.EpochSize != 0 && (c.EpochSize < minEpochSize || c.EpochSize > c.MaxSize) {
		errs = append(errs, fmt.Errorf("epoch_size: %d is not between %d and max_size", c.EpochSize, minEpochSize))
	}
	if c.KeepShipped < 0 {
		errs = append(errs, fmt.Errorf("keep_shipped: %v is negative", c.KeepShipped))
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("spool: config: %w", errors.Join(errs...))
}

// epochSize derives the size of an epoch from the cap and the file system's size.
func (c Config) epochSize(fsTotal int64) int64 {
	if c.EpochSize != 0 {
		return c.EpochSize
	}
	room := c.MaxSize
	if fsTotal > 0 {
		room = min(room, fsTotal)
	}
	return min(max(room/epochsPerCap, minEpochSize), maxEpochSize)
}
