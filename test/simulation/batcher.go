package main

import "time"

// batcher is controlplane-mock/store/postgres's: what comes while a flush is under way, and for gap after the last one began,
// goes into one flush.
type batcher[T any] struct {
	*engine
	flush func(items []T, done func())
	gap   time.Duration // from the beginning of one flush to the next, but for urgent items
	lanes int           // flushes at a time
	most  int           // items in a flush

	queue   []T
	running int
	began   time.Duration
	urgent  bool
	waiting int // counts waits for the gap, so that one that was cut short is known; 0: none
	waits   int
	flushes int           // under way
	changed time.Duration // when their number did last
	used    time.Duration // by all flushes until then
}

func newBatcher[T any](b *batcher[T]) *batcher[T] {
	b.began = -b.gap
	return b
}

func (b *batcher[T]) add(item T, urgent bool) {
	b.queue = append(b.queue, item)
	if urgent {
		b.hurry()
	}
	if b.running == 0 || b.running < b.lanes && len(b.queue) > 1 {
		b.running++
		b.lane()
	}
}

// hurry ends the wait for the gap.
func (b *batcher[T]) hurry() {
	b.urgent = true
	if b.waiting != 0 {
		b.waiting = 0
		b.take()
	}
}

func (b *batcher[T]) lane() {
	rest := b.gap - (b.now - b.began)
	if rest <= 0 || b.urgent {
		b.take()
		return
	}
	b.waits++
	this := b.waits
	b.waiting = this
	b.after(rest, func() {
		if b.waiting == this {
			b.waiting = 0
			b.take()
		}
	})
}

func (b *batcher[T]) take() {
	if len(b.queue) == 0 {
		b.running--
		return
	}
	b.urgent, b.began = false, b.now
	n := min(len(b.queue), b.most)
	items := b.queue[:n:n]
	if b.queue = b.queue[n:]; len(b.queue) == 0 {
		b.queue = nil
	}
	b.count(1)
	b.flush(items, func() {
		b.count(-1)
		b.lane()
	})
}

// count notes that a flush begins or ends.
func (b *batcher[T]) count(change int) {
	b.used += time.Duration(b.flushes) * (b.now - b.changed)
	b.changed = b.now
	b.flushes += change
}

// work is how long flushes have been under way so far.
func (b *batcher[T]) work() time.Duration {
	b.count(0)
	return b.used
}
