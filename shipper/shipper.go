package shipper

import (
	"context"
	"errors"
	"io"

	"agentd/agent/protocol"
)

var errSkeleton = errors.New("shipper: not there yet")

// Shipper owns the queue file and the logs of all attempts.
type Shipper struct{ cfg Config }

// New maps the queue file, checks what it holds and queues it again. It starts nothing.
func New(cfg Config) (*Shipper, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Shipper{cfg: cfg}, nil
}

// Run ships until ctx ends, then moves the rest to the spool and returns.
func (s *Shipper) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Close unmaps the queue file. Call it after Run has returned and every Log is closed.
func (s *Shipper) Close() error { return nil }

// SetServer takes over what a link said about log bodies.
func (s *Shipper) SetServer(maxLogBody int64, encodings []string) {}

// Open begins the log of an attempt, at number 0.
func (s *Shipper) Open(ref protocol.AttemptRef) (*Log, error) { return nil, errSkeleton }

// Recovered are the attempts that were found at start, in queue file or spool. Their logs ship by themselves.
func (s *Shipper) Recovered() []Recovered { return nil }

// Final says that the attempt will get no completion (its lease is lost), so that the log itself tells the server where it ends.
func (s *Shipper) Final(ref protocol.AttemptRef) {}

// Flush waits until everything is acknowledged, or ctx ends.
func (s *Shipper) Flush(ctx context.Context) error { return nil }

// Stats says where all records are.
func (s *Shipper) Stats() Stats { return Stats{} }

// AttemptStats says where an attempt's records are; false = nothing of it is held any more.
func (s *Shipper) AttemptStats(jobID string, attempt int64) (AttemptStats, bool) {
	return AttemptStats{}, false
}

// Log is the log of one attempt while the job runs.
type Log struct{}

// Stream reads a pipe into the log until EOF. Each stream may be read by one goroutine at a time.
func (l *Log) Stream(s protocol.Stream) io.ReaderFrom { return nil }

// Remark adds a record of the agent's own. It never blocks.
func (l *Log) Remark(text string) {}

// Close ends the log and returns how many numbers it covers, for the completion. The rest ships in the background.
func (l *Log) Close() int64 { return 0 }
