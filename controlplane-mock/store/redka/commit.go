package redka

import (
	"context"
	"errors"
	"fmt"
	"sync"

	redkadb "github.com/nalgeon/redka"

	"agentd/controlplane-mock/store"
)

var (
	errAway     = errors.New("redka: the database is not open")
	errPanicked = errors.New("redka: a change in the same transaction panicked")
)

const (
	// maxGroup bounds how many changes share a transaction, so that the first of them doesn't
	// wait for too many others.
	maxGroup = 256
	// maxGroupBytes does the same for log bodies: at 200 MB/s it is 40 ms.
	maxGroupBytes = 8 << 20
)

// change is one caller's part of a group.
type change struct {
	do   func(tx *redkadb.Tx) error // decides, then writes; an error means that it wrote nothing
	size int                        // of what it writes, about
	err  error                      // set before done is closed
	done chan struct{}
	lead chan struct{} // closed when the caller is to lead the next group
}

// fault marks an error of the database, as against a change's own "no".
type fault struct{ err error }

func (f *fault) Error() string { return f.err.Error() }
func (f *fault) Unwrap() error { return f.err }

// broken makes err a fault. A change wraps every error of a statement with it.
func broken(err error) error {
	if err == nil {
		return nil
	}
	return &fault{err}
}

// committer carries out changes of one database, many in a transaction where many wait: an
// fsync costs the same for one and for a hundred. There is no goroutine behind it. Of the callers
// that wait, one leads a group with its own change in it, then hands the lead to the next.
type committer struct {
	db *database
	// begin is called before a group, flush before its transaction commits, commit or abort after
	// it, all by the leader. commit makes the group's changes visible. abort forgets them.
	begin         func()
	flush         func() error // makes durable what the group wrote beside the database; nil: nothing
	commit, abort func()
	reload        func() error // reads memory anew, after the database was opened again

	mu      sync.Mutex
	queue   []*change     // guarded by mu
	leading bool          // guarded by mu: somebody leads, or has been told to
	closed  bool          // guarded by mu
	idle    chan struct{} // guarded by mu: set while stop waits; closed when nobody leads any more

	away bool // owned by the leader: the last group failed, the handles can't be trusted
}

// apply carries out do in a transaction, and returns once it is durable and visible. A ctx that
// has ended stops it before it is queued, not after: from then on it is part of a group.
func (c *committer) apply(ctx context.Context, size int, do func(tx *redkadb.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	ch := &change{do: do, size: size, done: make(chan struct{}), lead: make(chan struct{})}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return store.ErrStopped
	}
	c.queue = append(c.queue, ch)
	if !c.leading {
		c.leading = true
		close(ch.lead)
	}
	c.mu.Unlock()
	select {
	case <-ch.done:
	case <-ch.lead:
		c.carryOut(context.WithoutCancel(ctx), c.take())
	}
	return ch.err
}

// take removes the next group from the queue. The leader's own change is its first.
func (c *committer) take() []*change {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, size := 0, 0
	for n < len(c.queue) && n < maxGroup && (n == 0 || size+c.queue[n].size <= maxGroupBytes) {
		size += c.queue[n].size
		n++
	}
	group := c.queue[:n:n]
	c.queue = c.queue[n:]
	return group
}

func (c *committer) handOver() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.queue) > 0 {
		close(c.queue[0].lead)
		return
	}
	c.queue, c.leading = nil, false
	if c.idle != nil {
		close(c.idle)
		c.idle = nil
	}
}

// carryOut commits a group, tells its callers, and hands the lead over.
func (c *committer) carryOut(ctx context.Context, group []*change) {
	err := errPanicked
	defer func() {
		// Also on a panic (a Trim callback is not our code): the others must not wait for ever.
		for _, ch := range group {
			if err != nil {
				ch.err = err
			}
			close(ch.done)
		}
		c.handOver()
	}()
	panicked := true
	defer func() {
		if panicked {
			c.away = true
			c.abort()
		}
	}()
	err = c.try(ctx, group)
	panicked = false
}

func (c *committer) try(ctx context.Context, group []*change) error {
	if c.away {
		if err := c.reopen(); err != nil {
			return err
		}
	}
	c.begin()
	err := c.db.update(ctx, func(tx *redkadb.Tx) error {
		for _, ch := range group {
			ch.err = ch.do(tx)
			if f, ok := errors.AsType[*fault](ch.err); ok {
				return f
			}
		}
		if c.flush != nil {
			return c.flush()
		}
		return nil
	})
	if err != nil {
		// Whether a commit that failed is on disk, nobody knows, and a failed fsync must not be
		// tried again on the same handle.
		c.away = true
		c.abort()
		return fmt.Errorf("redka: %s: %w", c.db.path, err)
	}
	c.commit()
	return nil
}

func (c *committer) reopen() error {
	_ = c.db.close()
	if err := c.db.open(); err != nil {
		return fmt.Errorf("redka: could not open again: %w", err)
	}
	if err := c.reload(); err != nil {
		return fmt.Errorf("redka: could not read again: %w", err)
	}
	c.away = false
	return nil
}

// stop refuses further changes and waits for those under way.
func (c *committer) stop() {
	c.mu.Lock()
	c.closed = true
	var idle chan struct{}
	if c.leading {
		if c.idle == nil {
			c.idle = make(chan struct{})
		}
		idle = c.idle
	}
	c.mu.Unlock()
	if idle != nil {
		<-idle
	}
}
