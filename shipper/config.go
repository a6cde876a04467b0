package shipper

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"agentd/agent/protocol"
	"agentd/spool"
)

// Durability says when a batch may leave for the control plane.
const (
	// DurabilitySpill ships from memory and uses the disk only when the control plane is behind:
	// a power cut can lose the last two seconds of output.
	DurabilitySpill = "spill"
	// DurabilityStrict sends every batch through the spool, with fsync, before it ships.
	DurabilityStrict = "strict"
)

// What happens to new output when memory and spool are full.
const (
	WhenFullBlock      = "block"       // the job's pipe fills, and the job waits
	WhenFullDropOldest = "drop_oldest" // the oldest waiting records become a gap
	WhenFullDropNewest = "drop_newest" // the newest records become a gap
)

// CompressionAuto is snappy while the server keeps up and offers it, zstd for the spool and on a
// slow link. The other values are the names of encodings, and "none".
const CompressionAuto = "auto"

const (
	defaultMemory      = 50 << 20
	minMemory          = 1 << 20  // below it the reserve for sealing leaves nothing to work with
	defaultMaxLine     = 64 << 10 // a screenful of JSON; longer lines travel in pieces
	minMaxLine         = 64       // a piece must hold a few runes
	maxMaxLine         = 512 << 10
	defaultMaxRequests = 8 // enough to hide a few slow answers, few enough for a small server
)

// Sender brings log bodies to the control plane. Repeating either call is harmless.
type Sender interface {
	// ShipLog sends a stretch of a log. Only the answer's Next lets the shipper forget. It must
	// not keep the body's frames after it returns, and it must have a deadline of its own.
	ShipLog(ctx context.Context, ref protocol.AttemptRef, body protocol.LogBody) (protocol.Next, error)
	// LogNext asks how far the server has a log.
	LogNext(ctx context.Context, ref protocol.AttemptRef) (protocol.Next, error)
}

// Spool is where batches wait on disk. *spool.Spool is one.
type Spool interface {
	// Append makes the batches durable, and must not return nil before they are. Order per attempt
	// is the order of calls. spool.ErrFull passes.
	Append(ctx context.Context, batches ...spool.Batch) error
	// SetMeta says what is stored beside an attempt's batches, before the first of them.
	SetMeta(attempt string, meta []byte)
	SetState(attempt string, state spool.State)
	// Ack says that everything below next may be forgotten.
	Ack(attempt string, next int64)
	Attempts() []spool.AttemptInfo
	// Read finds the batch that covers from. A *spool.HoleError says what is lost; io.EOF, that
	// there is nothing at or after from.
	Read(attempt string, from int64) (spool.Batch, error)
	// DropOldest gives the oldest batches up and returns how many bytes that freed.
	DropOldest() (freed int64, err error)
	DeadLetter(b spool.Batch, reason string) error
	// Changed is closed when space was freed.
	Changed() <-chan struct{}
}

// Config is everything a Shipper needs to know. The zero value of a field is its default.
type Config struct {
	QueueFile   string // required; on tmpfs where there is one
	Memory      int64  // bytes of the queue file; 0 = 50 MB, at least 1 MiB
	Spool       Spool  // nil = none: memory only
	Sender      Sender // required
	Durability  string // DurabilitySpill (default) or DurabilityStrict
	Compression string // "auto" (default), "zstd", "snappy", "gzip", "none"
	MaxLine     int    // bytes of one record's content; 0 = 64 KiB
	WhenFull    string // WhenFullBlock (default), WhenFullDropOldest, WhenFullDropNewest
	MaxRequests int    // concurrent log requests; 0 = 8
	Logger      *zap.Logger
}

func (c Config) withDefaults() Config {
	c.Memory = cmp.Or(c.Memory, defaultMemory)
	c.Durability = cmp.Or(c.Durability, DurabilitySpill)
	c.Compression = cmp.Or(c.Compression, CompressionAuto)
	c.MaxLine = cmp.Or(c.MaxLine, defaultMaxLine)
	c.WhenFull = cmp.Or(c.WhenFull, WhenFullBlock)
	c.MaxRequests = cmp.Or(c.MaxRequests, defaultMaxRequests)
	c.Logger = cmp.Or(c.Logger, zap.NewNop())
	if sp, ok := any(c.Spool).(*spool.Spool); ok && sp == nil {
		c.Spool = nil // a nil pointer in an interface is no spool either
	}
	return c
}

func (c Config) validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.QueueFile == "" {
		fault("logs.queueFile: required")
	}
	if c.Sender == nil {
		fault("logs.sender: required")
	}
	if c.Memory < minMemory {
		fault("logs.memory: %d bytes, and the least is %d", c.Memory, minMemory)
	}
	if c.MaxLine < minMaxLine || c.MaxLine > maxMaxLine {
		fault("logs.max_line: %d bytes, not within %d and %d", c.MaxLine, minMaxLine, maxMaxLine)
	}
	if int64(c.MaxLine) > c.Memory/16 {
		fault("logs.max_line: %d bytes, more than a sixteenth of logs.memory", c.MaxLine)
	}
	if c.MaxRequests < 2 {
		fault("logs.maxRequests: %d, and one attempt's trouble must leave one for the others", c.MaxRequests)
	}
	switch c.Durability {
	case DurabilitySpill:
	case DurabilityStrict:
		if c.Spool == nil {
			fault("logs.durability: strict needs a spool")
		}
	default:
		fault("logs.durability: %q, not spill or strict", c.Durability)
	}
	switch c.Compression {
	case CompressionAuto, "zstd", "snappy", "gzip", "none":
	default:
		fault("logs.compression: %q, not auto, zstd, snappy, gzip or none", c.Compression)
	}
	switch c.WhenFull {
	case WhenFullBlock, WhenFullDropOldest, WhenFullDropNewest:
	default:
		fault("logs.spool.when_full: %q, not block, drop_oldest or drop_newest", c.WhenFull)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("shipper: config: %w", err)
	}
	return nil
}
