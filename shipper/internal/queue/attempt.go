package queue

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
)

// Attempt is one attempt's part of the queue. Its methods may be called concurrently, but for
// Append and Skip, which the caller must keep one at a time.
type Attempt struct {
	Ident

	q     *File
	slot  int
	gen   uint64
	least int          // pages it gets in any case while there are any
	pages atomic.Int64 // that it has
	raw   [Streams]*Raw

	mu      sync.Mutex
	st      state   // guarded by mu
	batches []Batch // held, oldest first; guarded by mu
	chain   []int   // pages of the chain; guarded by mu
	chain0  int64   // seq of chain[0]; guarded by mu
	ended   bool    // the slot is given back; guarded by mu
}

// Begin gives an attempt its slot.
func (q *File) Begin(id Ident) (*Attempt, error) {
	if err := id.validate(); err != nil {
		return nil, err
	}
	q.mu.Lock()
	if len(q.slots) == 0 {
		q.mu.Unlock()
		return nil, ErrSlots
	}
	slot := q.slots[len(q.slots)-1]
	q.slots = q.slots[:len(q.slots)-1]
	q.mu.Unlock()

	var gen [8]byte
	rand.Read(gen[:])
	a := q.newAttempt(slot, binary.LittleEndian.Uint64(gen[:]), id)
	b := q.slot(slot)
	encodeIdent(b, a.gen, id)
	clear(b[stateAt : stateAt+2*stateSize])
	a.st.seq = 1
	a.st.encode(b[a.stateOffset():], a.gen)
	store(b, slotLive)
	return a, nil
}

func (q *File) newAttempt(slot int, gen uint64, id Ident) *Attempt {
	// A line that isn't complete in each of two streams, one page more to read into for each, and two of the chain.
	a := &Attempt{Ident: id, q: q, slot: slot, gen: gen, least: 2*(id.MaxLine/q.lay.pageData()+2) + 2}
	for i := range a.raw {
		a.raw[i] = &Raw{a: a, stream: i}
	}
	return a
}

// revive makes an attempt of what an image says of it. Its streams can't be read into any more:
// whatever held their pipes has gone.
func (q *File) revive(m *imaged, taken []bool) *Attempt {
	a := q.newAttempt(m.slot, m.gen, m.id)
	a.st, a.batches = m.st, m.batches
	keep := func(page int) {
		taken[page] = true
		a.pages.Add(1)
	}
	data := int64(q.lay.pageData())
	// The chain is kept from its oldest batch to its end, damaged stretches included: a page that is
	// missing gets none in its place, since nothing is ever read from there.
	head := a.st.tail
	if len(a.batches) > 0 {
		head = a.batches[0].pos
	}
	a.st.head = head
	if len(a.batches) == 0 {
		a.st.head = (a.st.tail + data - 1) / data * data
		a.st.tail = a.st.head
	}
	a.chain0 = a.st.head / data
	for seq := a.chain0; seq*data < a.st.tail; seq++ {
		p, ok := m.chain[seq]
		if !ok {
			p = -1
		} else {
			keep(p)
		}
		a.chain = append(a.chain, p)
	}
	// A tail whose page is missing goes on in a new one.
	if n := len(a.chain); n > 0 && a.chain[n-1] < 0 {
		a.st.tail = (a.chain0 + int64(n)) * data
	}
	for i := range m.raw {
		r, from := a.raw[i], &m.raw[i]
		for _, n := range from.intents {
			run := from.runs[n]
			q.commitRun(q.page(run.page), a.gen, run.head, run.Pos, len(run.Data))
		}
		r.revive(from, a.st.used[i], keep, q)
	}
	a.st.closed = true
	a.writeState()
	return a
}

func (a *Attempt) stateOffset() int { return stateAt + int(a.st.seq&1)*stateSize }

// writeState publishes a.st in the older of the two places. The caller holds mu, or is alone.
func (a *Attempt) writeState() {
	a.st.seq++
	a.st.encode(a.q.slot(a.slot)[a.stateOffset():], a.gen)
}

// writeStates publishes a.st in both places, where no batch says the same: if one of them is damaged, numbers that were given
// out must not be given out again.
func (a *Attempt) writeStates() {
	a.writeState()
	a.writeState()
}

// Raw is one of the attempt's streams.
func (a *Attempt) Raw(stream int) *Raw { return a.raw[stream] }

// Next is the next number to give out.
func (a *Attempt) Next() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.st.next
}

// Parts says which streams are in the middle of a line, by their last record: bit per stream.
func (a *Attempt) Parts() uint8 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.st.part
}

// Closed says whether the log was complete when it was written last.
func (a *Attempt) Closed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.st.closed
}

// MarkClosed notes that no more will be read.
func (a *Attempt) MarkClosed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.st.closed = true
	a.writeState()
}

// Released is the number below which nothing is held any more.
func (a *Attempt) Released() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.st.headNext
}

// Bytes is what the attempt takes up, in whole pages.
func (a *Attempt) Bytes() int64 { return a.pages.Load() * int64(a.q.lay.pageSize) }

// Batches are the sealed batches that are held, oldest first.
func (a *Attempt) Batches() []Batch {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.batches)
}

// Skip gives out count numbers for which there is nothing: what they stood for is used up.
func (a *Attempt) Skip(count int64, used [Streams]int64, part uint8) {
	a.mu.Lock()
	a.st.next += count
	a.st.used, a.st.part = used, part
	a.writeStates()
	a.mu.Unlock()
	a.releaseRaw(used)
}

// SkipTo makes next the next number, if it is above the present one: the server knows more than we do.
func (a *Attempt) SkipTo(next int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if next > a.st.next {
		a.st.next = next
		a.writeStates()
	}
}

func (a *Attempt) releaseRaw(used [Streams]int64) {
	for i, r := range a.raw {
		r.release(used[i])
	}
}

// End gives the slot and every page back. Nothing of the attempt may be used afterwards.
func (a *Attempt) End() {
	a.mu.Lock()
	if a.ended {
		a.mu.Unlock()
		return
	}
	a.ended = true
	chain := slices.DeleteFunc(a.chain, func(p int) bool { return p < 0 })
	a.chain, a.batches = nil, nil
	a.mu.Unlock()
	a.q.clearSlot(a.slot)
	a.q.give(a, chain...)
	for _, r := range a.raw {
		r.end()
	}
	a.q.mu.Lock()
	a.q.slots = append(a.q.slots, a.slot)
	a.q.mu.Unlock()
}

// WaitRoom waits until the attempt may have a page to read into. False = the queue was stopped, or stop says so.
func (a *Attempt) WaitRoom(stop func() bool) bool {
	a.q.mu.Lock()
	defer a.q.mu.Unlock()
	for !a.q.stopped && !stop() {
		if a.q.mayTake(a, forReading) {
			return true
		}
		a.q.room.Wait()
	}
	return false
}

// Wake makes those who wait for room ask stop again.
func (q *File) Wake() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.room.Broadcast()
}

var errEnded = errors.New("queue: the attempt has ended")
