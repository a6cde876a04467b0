package queue

import (
	"hash/crc32"
	"sort"
)

// Append adds a sealed batch whose numbers begin at or after Next, and with it the fact that the
// streams are used up to used: both become true at once. ErrFull = not enough pages are free.
func (a *Attempt) Append(b Batch, data []byte, used [Streams]int64, part uint8) error {
	if err := a.append(b, data, used, part); err != nil {
		return err
	}
	a.releaseRaw(used)
	return nil
}

func (a *Attempt) append(b Batch, data []byte, used [Streams]int64, part uint8) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ended {
		return errEnded
	}
	size := int64(a.q.lay.pageData())
	b.pos = a.st.tail
	if b.pos%size+batchHead > size {
		b.pos = (b.pos/size + 1) * size // a header lies within one page
	}
	b.Len, b.crc = len(data), crc32.Checksum(data, castagnoli)
	end := align(b.pos + batchHead + int64(len(data)))
	if err := a.extend((end + size - 1) / size); err != nil {
		return err
	}
	h := a.at(b.pos)
	b.encode(h, a.gen, used, part)
	for pos := b.pos + batchHead; len(data) > 0; {
		n := copy(a.at(pos), data)
		pos, data = pos+int64(n), data[n:]
	}
	store(h[104:], commitWord) // now it is a batch, and its raw bytes are used up
	a.batches = append(a.batches, b)
	a.st.tail, a.st.next, a.st.used, a.st.part = end, b.End(), used, part
	a.writeState()
	return nil
}

// extend gives the chain pages up to the sequence number end, all or none.
func (a *Attempt) extend(end int64) error {
	had := len(a.chain)
	for a.chain0+int64(len(a.chain)) < end {
		p, ok := a.q.take(a, forSealing)
		if !ok {
			a.q.give(a, a.chain[had:]...)
			a.chain = a.chain[:had]
			return ErrFull
		}
		a.chain = append(a.chain, p)
	}
	size := int64(a.q.lay.pageData())
	for i := had; i < len(a.chain); i++ {
		seq := a.chain0 + int64(i)
		pageID{kind: kindChain, gen: a.gen, seq: seq, start: seq * size, slot: a.slot}.encode(a.q.page(a.chain[i]))
	}
	return nil
}

// at is the rest of the page at pos in the chain. The caller holds mu.
func (a *Attempt) at(pos int64) []byte {
	size := int64(a.q.lay.pageData())
	return a.q.page(a.chain[pos/size-a.chain0])[pageHead+pos%size:]
}

// Data is b's data, in pieces that lie in the mapped file: valid until b is released. False = it
// isn't held any more, or is damaged.
func (a *Attempt) Data(b Batch) ([][]byte, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if b.Damaged || a.ended || len(a.batches) == 0 || b.pos < a.batches[0].pos {
		return nil, false
	}
	var out [][]byte
	for pos, left := b.pos+batchHead, b.Len; left > 0; {
		p := a.at(pos)
		p = p[:min(len(p), left):min(len(p), left)]
		out = append(out, p)
		pos, left = pos+int64(len(p)), left-len(p)
	}
	return out, true
}

// Release forgets every batch that ends at or below next, and returns how many records that were.
func (a *Attempt) Release(next int64) (records int64) {
	a.mu.Lock()
	n := 0
	for n < len(a.batches) && a.batches[n].End() <= next {
		records += a.batches[n].Count
		n++
	}
	if a.ended || n == 0 && next <= a.st.headNext {
		a.mu.Unlock()
		return records
	}
	a.batches = a.batches[:copy(a.batches, a.batches[n:])]
	size := int64(a.q.lay.pageData())
	a.st.headNext = max(a.st.headNext, min(next, a.st.next))
	if len(a.batches) > 0 {
		a.st.head = a.batches[0].pos
	} else {
		// Nothing is held: the last page is given back, too, and the chain goes on in a fresh one.
		a.st.head = (a.st.tail + size - 1) / size * size
		a.st.tail = a.st.head
	}
	a.writeState() // before the pages go: a chain must never be found without its beginning
	drop := int(a.st.head/size - a.chain0)
	pages := make([]int, 0, drop)
	for _, p := range a.chain[:drop] {
		if p >= 0 {
			pages = append(pages, p)
		}
	}
	a.chain = a.chain[:copy(a.chain, a.chain[drop:])]
	a.chain0 += int64(drop)
	a.mu.Unlock()
	a.q.give(a, pages...)
	return records
}

// Find is the batch that covers n, or the first one above it, with its data as by Data.
func (a *Attempt) Find(n int64) (Batch, [][]byte, bool) {
	a.mu.Lock()
	i := sort.Search(len(a.batches), func(i int) bool { return a.batches[i].End() > n })
	if a.ended || i == len(a.batches) {
		a.mu.Unlock()
		return Batch{}, nil, false
	}
	b := a.batches[i]
	a.mu.Unlock()
	parts, ok := a.Data(b)
	b.Damaged = b.Damaged || !ok
	return b, parts, true
}
