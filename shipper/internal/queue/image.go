package queue

import (
	"cmp"
	"hash/crc32"
	"slices"
)

// Run is what one read returned, or a marker that bytes of the stream are lost.
type Run struct {
	Data []byte // in the mapped file: valid until it is released
	Pos  int64  // of its first byte in the stream
	Time int64  // microseconds since the epoch
	Lost bool   // at this place bytes are missing: the file was damaged

	page int
	head int // where its header is within the page
}

// end is the position after the run's last byte.
func (r Run) end() int64 { return r.Pos + int64(len(r.Data)) }

// image is what a queue file says, read without changing it.
type image struct {
	lay      layout
	attempts []*imaged
	damage   int          // things that should have been readable and weren't
	bad      map[int]bool // pages that they lie in, or may lie in
	badSlots map[int]bool
	orphans  int // pages in use that can't be read any more: nobody can say whose they are
}

type imaged struct {
	slot    int
	gen     uint64
	id      Ident
	st      state
	batches []Batch
	chain   map[int64]int // seq → page
	raw     [Streams]rawImage
}

type rawImage struct {
	pages   []int // sorted by seq
	seqs    []int64
	starts  []int64
	runs    []Run
	intents []int // of runs: those that were read, but not yet committed
	end     int64
}

// parse reads mem, of which the file had only the first size bytes, and which may be anything but well formed.
// trustIntents says that mem is the very memory that the process left, not what a disk kept of it.
func parse(mem []byte, size int64, lay layout, trustIntents bool) *image {
	img := &image{lay: lay, bad: map[int]bool{}, badSlots: map[int]bool{}}
	bySlot := map[int]*imaged{}
	for i := range lay.slots {
		at := lay.slotAt(i)
		if at+slotSize > int64(len(mem)) {
			break
		}
		b := mem[at : at+slotSize]
		if load(b) == slotFree {
			continue
		}
		gen, id, ok := parseIdent(b)
		if !ok {
			img.damage++
			img.badSlots[i] = true
			continue
		}
		a := &imaged{slot: i, gen: gen, id: id, chain: map[int64]int{}}
		stA, okA := parseState(b[stateAt:], gen)
		stB, okB := parseState(b[stateAt+stateSize:], gen)
		switch {
		case okA && (!okB || stA.seq > stB.seq):
			a.st = stA
		case okB:
			a.st = stB
		default:
			img.damage++
			img.badSlots[i] = true
		}
		bySlot[i] = a
		img.attempts = append(img.attempts, a)
	}
	img.findPages(mem, bySlot)
	for _, a := range img.attempts {
		img.walkChain(mem, a)
		for i := range a.raw {
			img.walkRaw(mem, a, i, trustIntents)
		}
	}
	if img.orphans > 0 || size < lay.size {
		img.loseEnds()
	}
	return img
}

// loseEnds says of each attempt that its end may be lost. Pages in the middle are missed by those behind them; the last one of a stream
// is missed by nothing, so where pages went whose owner can't be told, it may have been anybody's.
func (img *image) loseEnds() {
	img.damage++
	for _, a := range img.attempts {
		r := &a.raw[0]
		r.runs = append(r.runs, Run{Pos: r.end, Lost: true, page: -1})
		r.end++ // so that what is lost can be used up, and isn't found lost again
	}
}

func (img *image) findPages(mem []byte, bySlot map[int]*imaged) {
	type found struct {
		page int
		pageID
	}
	raw := map[*imaged]*[Streams][]found{}
	for i := range img.lay.pages {
		at := img.lay.pageAt(i)
		if at+int64(img.lay.pageSize) > int64(len(mem)) {
			break
		}
		id, ok := parsePage(mem[at : at+pageHead])
		a := bySlot[id.slot]
		if !ok || a == nil || a.gen != id.gen {
			// Free, damaged, or left over from an attempt that has ended.
			if !ok && id.kind != kindFree {
				img.orphans++
			}
			if !ok && id.kind != kindFree || ok && img.badSlots[id.slot] {
				img.bad[i] = true
			}
			continue
		}
		if id.kind == kindChain {
			a.chain[id.seq] = i
			continue
		}
		if raw[a] == nil {
			raw[a] = new([Streams][]found)
		}
		raw[a][id.stream] = append(raw[a][id.stream], found{i, id})
	}
	for a, streams := range raw {
		for s, pages := range streams {
			slices.SortFunc(pages, func(x, y found) int { return cmp.Compare(x.seq, y.seq) })
			r := &a.raw[s]
			for _, p := range pages {
				r.pages, r.seqs, r.starts = append(r.pages, p.page), append(r.seqs, p.seq), append(r.starts, p.start)
			}
		}
	}
}

func (img *image) page(mem []byte, i int) []byte {
	at := img.lay.pageAt(i)
	return mem[at : at+int64(img.lay.pageSize)]
}

// walkChain finds the batches of a, from its oldest on. Where a header can't be read it goes on at
// the next one that can: the numbers tell what is missing.
func (img *image) walkChain(mem []byte, a *imaged) {
	data := int64(img.lay.pageData())
	last := int64(-1) // the highest page
	first := int64(-1)
	for seq := range a.chain {
		last = max(last, seq)
		if first < 0 || seq < first {
			first = seq
		}
	}
	// With both states lost, head is 0: begin at the first page there is.
	pos := max(a.st.head, max(first, 0)*data)
	end := int64(0) // of the batch before
	missed := false
	for pos/data <= last {
		off := pos % data
		p, there := a.chain[pos/data]
		if !there || off+batchHead > data {
			if !there && pos < a.st.tail {
				missed = true
			}
			pos = (pos/data + 1) * data
			continue
		}
		h, used, part, ok := parseBatch(img.page(mem, p)[pageHead+off:], a.gen, pos)
		if ok = ok && h.First >= end && h.End() > a.st.headNext && fits(used); !ok {
			if pos < a.st.tail {
				missed, img.bad[p] = true, true
			}
			pos += 8
			continue
		}
		if missed {
			img.damage++
			missed = false
		}
		if !img.checkData(mem, a, &h) {
			img.damage++
		}
		a.batches = append(a.batches, h)
		end = h.End()
		if end >= a.st.next {
			a.st.next, a.st.used, a.st.part = end, used, part
		}
		pos = align(h.pos + batchHead + int64(h.Len))
		a.st.tail = max(a.st.tail, pos)
	}
	if missed {
		img.damage++
	}
	a.st.tail = max(a.st.tail, align(a.st.head))
}

func fits(used [Streams]int64) bool {
	for _, u := range used {
		if u < 0 {
			return false
		}
	}
	return true
}

func align(n int64) int64 { return (n + 7) &^ 7 }

// checkData compares b's data with its CRC. A batch that is longer than its chain is damaged, too.
func (img *image) checkData(mem []byte, a *imaged, b *Batch) bool {
	crc, data := uint32(0), int64(img.lay.pageData())
	for pos, left := b.pos+batchHead, int64(b.Len); left > 0; {
		p, ok := a.chain[pos/data]
		if !ok {
			b.Damaged = true
			break
		}
		off := pos % data
		n := min(left, data-off)
		crc = crc32.Update(crc, castagnoli, img.page(mem, p)[pageHead+off:pageHead+off+n])
		pos, left = pos+n, left-n
	}
	if b.Damaged = b.Damaged || crc != b.crc; b.Damaged {
		for seq := b.pos / data; seq*data < b.pos+batchHead+int64(b.Len); seq++ {
			p, ok := a.chain[seq]
			if !ok {
				break
			}
			img.bad[p] = true
		}
	}
	return !b.Damaged
}

// walkRaw finds the runs of a stream that no batch has used up.
func (img *image) walkRaw(mem []byte, a *imaged, stream int, trustIntents bool) {
	r := &a.raw[stream]
	used := a.st.used[stream]
	pos := used // the next byte we expect
	lost := func() {
		img.damage++
		r.runs = append(r.runs, Run{Pos: pos, Lost: true, page: -1})
	}
	for i, p := range r.pages {
		page, start := img.page(mem, p), r.starts[i]
		if start > pos {
			lost()
		}
		at, damaged := start, false
		for off := pageHead; off+runHead < len(page); {
			h := page[off:]
			word := load(h)
			intent, length := int(le.Uint32(h[4:])), int(le.Uint32(h[16:]))
			room := len(page) - off - runHead
			good := length <= room && runCRC(h, a.gen, at) == le.Uint32(h[24:])
			if word == runNone || word != runIntent && word != runDone && !good {
				break
			}
			run := Run{Pos: at, Time: int64(le.Uint64(h[8:])), page: p, head: off}
			if word == runIntent {
				if !trustIntents || intent > room {
					break
				}
				run.Data = page[off+runHead : off+runHead+img.lay.wasRead(page, off+runHead, intent)]
				if len(run.Data) > 0 {
					r.intents = append(r.intents, len(r.runs))
					r.runs = append(r.runs, run)
					at = run.end()
				}
				break
			}
			if !good {
				damaged, img.bad[p] = true, true
				break
			}
			run.Data = page[off+runHead : off+runHead+length]
			at = run.end()
			off = int(align(int64(off + runHead + length)))
			if run.end() <= used {
				continue
			}
			if crc32.Checksum(run.Data, castagnoli) != le.Uint32(h[20:]) {
				img.damage++
				img.bad[p] = true
				run = Run{Pos: max(run.Pos, used), Lost: true, page: -1}
			}
			r.runs = append(r.runs, run)
		}
		pos = max(pos, at)
		if damaged {
			lost()
			pos++ // so that what is lost can be used up, and isn't found lost again
			if i+1 < len(r.pages) {
				pos = max(pos, r.starts[i+1])
			}
		}
	}
	r.end = pos
}

func runCRC(h []byte, gen uint64, pos int64) uint32 {
	var b [16]byte
	le.PutUint64(b[:], gen)
	le.PutUint64(b[8:], uint64(pos))
	return crc32.Update(crc32.Checksum(b[:], castagnoli), castagnoli, h[8:24])
}

// parts calls f for each memory page's part of n bytes at off within a page of the file: where a copy can stop.
func parts(off, n int, f func(from, to int) bool) {
	for from := off; from < off+n; {
		to := min((from+osPage)&^(osPage-1), off+n)
		if !f(from, to) {
			return
		}
		from = to
	}
}

// markSpace writes the sentinel at the end of each part of the space before a read.
func (l *layout) markSpace(page []byte, off, n int) {
	parts(off, n, func(from, to int) bool {
		k := min(sentinel, to-from)
		copy(page[to-k:to], l.mark[sentinel-k:])
		return true
	})
}

// wasRead is how many of n intended bytes a read that nobody saw the end of has written.
func (l *layout) wasRead(page []byte, off, n int) int {
	read := 0
	parts(off, n, func(from, to int) bool {
		k := min(sentinel, to-from)
		if string(page[to-k:to]) != string(l.mark[sentinel-k:]) {
			read = to - off
		}
		return true
	})
	return read
}
