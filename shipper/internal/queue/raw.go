package queue

import (
	"hash/crc32"
	"sync"
	"sync/atomic"
)

// minRoom is the least space worth a read: below it a run goes to a fresh page.
const minRoom = 512

// Raw is what one stream of an attempt printed and no batch has used up yet. One goroutine at a
// time reads into it (Space, then Put, or Intend and Commit or Abort); another may seal from it.
type Raw struct {
	a      *Attempt
	stream int

	total   atomic.Int64 // position after the last committed byte
	usedPos atomic.Int64 // up to which batches have used it up

	mu    sync.Mutex
	pages []rawPage // oldest first; guarded by mu
	runs  []Run     // not used up, oldest first; guarded by mu
	seq   int64     // of the next page; guarded by mu
	off   int       // of the next run's header in the last page; written by the reader only, and under mu
	busy  bool      // a read into the last page is under way; guarded by mu

	into int   // the page that Space found; the reader's own
	time int64 // of the read; the reader's own
}

type rawPage struct {
	page int
	end  int64 // position after its last byte; of the last page: so far
}

func (r *Raw) revive(from *rawImage, used int64, keep func(int), q *File) {
	r.usedPos.Store(used)
	r.total.Store(from.end)
	r.runs = from.runs
	for i, p := range from.pages {
		end := from.end
		if i+1 < len(from.pages) {
			end = from.starts[i+1]
		}
		r.seq = from.seqs[i] + 1
		if end > used {
			keep(p)
			r.pages = append(r.pages, rawPage{p, end})
		}
	}
	r.off = q.lay.pageSize // full: nothing is read into a page that an earlier process began
}

// Pending is how many bytes no batch has used up. Total is how many were read in all.
func (r *Raw) Pending() int64 { return r.total.Load() - r.usedPos.Load() }

// Total is the position after the last byte read.
func (r *Raw) Total() int64 { return r.total.Load() }

// Used is the position up to which batches have used the stream up.
func (r *Raw) Used() int64 { return r.usedPos.Load() }

// Space makes sure that there is room to read into, and says how much. ErrFull = not now.
// After it Put, Commit or Abort must be called.
func (r *Raw) Space(remark bool) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.a.q
	if n := len(r.pages); n > 0 {
		if room := q.lay.pageSize - r.off - runHead; room >= minRoom {
			r.busy, r.into = true, r.pages[n-1].page
			return room, nil
		}
	}
	why := forReading
	if remark {
		why = forRemark
	}
	p, ok := q.take(r.a, why)
	if !ok {
		return 0, ErrFull
	}
	b := q.page(p)
	store(b[pageHead:], runNone)
	total := r.total.Load()
	pageID{kind: kindRaw, gen: r.a.gen, seq: r.seq, start: total, slot: r.a.slot, stream: r.stream}.encode(b)
	r.seq++
	r.pages = append(r.pages, rawPage{p, total})
	r.off, r.busy, r.into = pageHead, true, p
	return q.lay.pageSize - r.off - runHead, nil
}

// Intend announces a read of n bytes at the time now and returns where to. n is at most what Space said.
func (r *Raw) Intend(n int, now int64) []byte {
	h, to := r.prepare(n, now)
	r.a.q.lay.markSpace(r.a.q.page(r.into), r.off+runHead, n)
	store(h, runIntent)
	return to
}

// Put makes p, at most what Space said, part of the stream: with Commit's last store, and not at all if the process dies before it.
func (r *Raw) Put(p []byte, now int64) {
	_, to := r.prepare(len(p), now)
	copy(to, p)
	r.Commit(len(p))
}

// prepare begins a run's header. Without mu: only the reader moves off, and while busy is set nobody frees the page.
func (r *Raw) prepare(n int, now int64) (head, to []byte) {
	b := r.a.q.page(r.into)
	head = b[r.off:]
	r.time = now
	le.PutUint32(head[4:], uint32(n))
	le.PutUint64(head[8:], uint64(now))
	at := r.off + runHead
	return head, b[at : at+n : at+n]
}

// Commit makes the first n bytes of the intended space part of the stream.
func (r *Raw) Commit(n int) {
	if n == 0 {
		r.Abort()
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	last := &r.pages[len(r.pages)-1]
	b := r.a.q.page(last.page)
	pos := r.total.Load()
	r.a.q.commitRun(b, r.a.gen, r.off, pos, n)
	at := r.off + runHead
	r.runs = append(r.runs, Run{Data: b[at : at+n : at+n], Pos: pos, Time: r.time, page: last.page, head: r.off})
	r.off = int(align(int64(at + n)))
	last.end = pos + int64(n)
	r.busy = false
	r.total.Store(last.end)
}

// commitRun turns an intent into a run: everything but the last store is nothing without it.
func (q *File) commitRun(page []byte, gen uint64, off int, pos int64, n int) {
	h, at := page[off:], off+runHead
	le.PutUint32(h[4:], uint32(n)) // the next header goes where the sentinel of what wasn't read may be
	if next := int(align(int64(at + n))); next+runHead <= len(page) {
		store(page[next:], runNone)
	}
	le.PutUint32(h[16:], uint32(n))
	le.PutUint32(h[20:], crc32.Checksum(page[at:at+n], castagnoli))
	le.PutUint32(h[24:], runCRC(h, gen, pos))
	store(h, runDone)
}

// Abort says that nothing was read. A page that holds nothing else is given back.
func (r *Raw) Abort() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.busy {
		return
	}
	r.busy = false
	last := r.pages[len(r.pages)-1]
	store(r.a.q.page(last.page)[r.off:], runNone)
	r.dropPages()
}

// Runs appends to dst what is not used up. It stays valid until a batch uses it up.
func (r *Raw) Runs(dst []Run) []Run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(dst, r.runs...)
}

// release frees what lies below used.
func (r *Raw) release(used int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.usedPos.Store(used)
	n := 0
	for n < len(r.runs) && (r.runs[n].end() < used || r.runs[n].end() == used && !r.runs[n].Lost || r.runs[n].Lost && r.runs[n].Pos < used) {
		n++
	}
	if n > 0 {
		rest := copy(r.runs, r.runs[n:])
		clear(r.runs[rest:])
		r.runs = r.runs[:rest]
	}
	r.dropPages()
}

// dropPages frees the pages that are used up. The last one stays while a read into it is under way.
func (r *Raw) dropPages() {
	used, n := r.usedPos.Load(), 0
	for n < len(r.pages) && r.pages[n].end <= used && (n < len(r.pages)-1 || !r.busy) {
		n++
	}
	if n == 0 {
		return
	}
	var few [8]int
	pages := few[:0]
	for _, p := range r.pages[:n] {
		pages = append(pages, p.page)
	}
	r.pages = r.pages[:copy(r.pages, r.pages[n:])]
	r.a.q.give(r.a, pages...)
}

func (r *Raw) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	pages := make([]int, 0, len(r.pages))
	for _, p := range r.pages {
		pages = append(pages, p.page)
	}
	r.pages, r.runs, r.busy = nil, nil, false
	r.a.q.give(r.a, pages...)
}
