package agent

import (
	"context"
	"io"
	"time"

	"agentd/agent/exec"
	"agentd/agent/identity"
	"agentd/agent/journal"
	"agentd/agent/protocol"
	"agentd/agent/query"
	"agentd/leasekeeper"
	"agentd/shipper"
)

// parts are what an Agent is wired from. New makes the real ones; tests put others in their place.
type parts struct {
	plane   plane
	ident   ident
	journal entries
	logs    logs
	runner  runner
	bootID  string
	// before says how the process before this one ended, and forgets it; nil = nobody knows.
	before func() *End
	// clock counts suspend; nil = leasekeeper's own.
	clock func() time.Duration
}

// plane is the control plane as the agent itself sees it. protocol.Client is one.
type plane interface {
	leasekeeper.Sender
	NextJob(ctx context.Context, r protocol.PollRequest) (*protocol.Job, error)
	Complete(ctx context.Context, jobID string, c protocol.Completion) error // repeating it is harmless
	Release(ctx context.Context, jobID string, r protocol.Release) error     // repeating it is harmless
	query.Client
}

// ident is the agent's identity. identity.Identity is one.
type ident interface {
	Run(ctx context.Context) error // links, and renews the key until ctx ends
	Status() identity.Status
	Announce(info identity.Info) // replaces what the agent tells of itself, by a re-link soon
	Report(err error)            // passes on what the server said of the identity to another call
}

// entries is the reserved store. journal.Journal is one. A change is on disk when the call returns.
type entries interface {
	Begin(e journal.Entry) error
	SetProc(jobID string, attempt int64, p journal.Proc, startedAt time.Time) error
	SetLog(jobID string, attempt int64, l journal.LogState) error
	SetCompletion(jobID string, attempt int64, c protocol.Completion) error
	Remove(jobID string, attempt int64) error
	Entries() []journal.Entry
	Free() int
}

// logs takes the jobs' output: shipper and spool.
type logs interface {
	Run(ctx context.Context) error // returns when what is left is on disk, synced
	Open(ref protocol.AttemptRef) (jobLog, error)
	Final(ref protocol.AttemptRef) // the attempt gets no completion: the log itself says where it ends
	Recovered() []shipper.Recovered
	MemoryLost(ref protocol.AttemptRef, records int64) // of an attempt that Recovered doesn't have in memory
	SetServer(maxLogBody int64, encodings []string)
	Flush(ctx context.Context) error // until everything is acknowledged, or ctx ends
	AttemptStats(jobID string, attempt int64) (shipper.AttemptStats, bool)
	Stats() shipper.Stats
	// Backlog is what waits on disk of an attempt's log, and how old the oldest of it all is: for heartbeats.
	Backlog(jobID string, attempt int64) (spooledBytes int64, oldest time.Duration)
	// Full says why no output can be taken in at the moment; "" = it can. Changed is closed when that may have changed.
	Full() string
	Changed() <-chan struct{}
}

// jobLog is the log of one attempt. shipper.Log is one.
type jobLog interface {
	Stream(s protocol.Stream) io.ReaderFrom
	Remark(text string)
	Close() (records int64)
}

// runner runs commands. exec.Runner is one.
type runner interface {
	Run(ctx context.Context, s exec.Spec) exec.Result
	Sweep(ctx context.Context, procs []exec.Proc) []exec.Swept
}
