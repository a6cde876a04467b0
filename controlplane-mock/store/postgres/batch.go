package postgres

import (
	"sync"
	"time"
)

// batcher gathers what many callers want into few statements. While a flush is under way, and for gap after the last one
// began, what comes is gathered; so a lone caller waits for nothing, and a thousand cost what one does.
//
// Its goroutines live only while there is something to do.
type batcher[T any] struct {
	flush func(items []T) // carries the items out and answers each; called by as many goroutines as there are lanes
	gap   time.Duration   // at least this long from the beginning of one flush to the next, but for urgent items
	lanes int             // flushes at a time; 0: one
	most  int             // items in a flush
	size  func(T) int     // nil: an item has no size
	bytes int             // of a flush, unless it is one item
	key   func(T) string  // items of one key are never in one flush; nil: any two can be

	wg     *sync.WaitGroup // of its goroutines
	urgent chan struct{}   // holds one: don't wait for the gap

	mu      sync.Mutex
	queue   []T       // guarded by mu
	running int       // guarded by mu: lanes at work
	began   time.Time // guarded by mu: the last flush
}

func newBatcher[T any](wg *sync.WaitGroup, b *batcher[T]) *batcher[T] {
	b.wg, b.urgent, b.lanes = wg, make(chan struct{}, 1), max(b.lanes, 1)
	return b
}

// add queues an item. How it is answered is between the caller and flush.
func (b *batcher[T]) add(item T, urgent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = append(b.queue, item)
	if urgent {
		select {
		case b.urgent <- struct{}{}:
		default:
		}
	}
	// A second lane only for what the first can't take along in one flush.
	if b.running == 0 || b.running < b.lanes && len(b.queue) > 1 {
		b.running++
		b.wg.Go(b.lane)
	}
}

func (b *batcher[T]) lane() {
	for {
		b.wait()
		items := b.take()
		if items == nil {
			return
		}
		b.flush(items)
	}
}

// wait lets the gap pass, or the first urgent item end it.
func (b *batcher[T]) wait() {
	b.mu.Lock()
	rest := b.gap - time.Since(b.began)
	b.mu.Unlock()
	if rest <= 0 {
		return
	}
	timer := time.NewTimer(rest)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-b.urgent:
	}
}

// take removes the next flush's items from the queue; nil ends the lane.
func (b *batcher[T]) take() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		b.queue = nil
		b.running--
		return nil
	}
	select {
	case <-b.urgent: // whoever asked is in the queue, at its end if not within this flush: then it waits for one more
	default:
	}
	b.began = time.Now()
	var items, left []T
	size, seen := 0, map[string]struct{}{}
	for i, item := range b.queue {
		if b.size != nil {
			size += b.size(item)
		}
		if len(items) == b.most || len(items) > 0 && b.bytes > 0 && size > b.bytes {
			left = append(left, b.queue[i:]...)
			break
		}
		if b.key != nil {
			k := b.key(item)
			if _, twice := seen[k]; twice {
				left = append(left, item)
				continue
			}
			seen[k] = struct{}{}
		}
		items = append(items, item)
	}
	b.queue = left
	return items
}
