package spool

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Reader reads a spool's directory without taking it and without changing anything: while a daemon
// holds it, after a crash, on a full disk, from a copy. It sees what is there when it looks; Refresh
// looks again. It is not safe for concurrent use.
type Reader struct {
	dir    string
	epochs map[uint64]*readEpoch
	states map[string]cursor
	holes  map[string]holesOf
	damage []error
	recent uint64 // the epoch whose file is open
}

type readEpoch struct {
	id      uint64
	spans   map[string]*span
	refs    map[string][]ref // nil until loaded
	file    *os.File
	sealed  bool
	shipped time.Time
}

// OpenReader looks at a directory.
func OpenReader(dir string) (*Reader, error) {
	if _, err := os.ReadDir(dir); err != nil {
		return nil, fmt.Errorf("spool: %w", err)
	}
	r := &Reader{dir: dir, epochs: map[uint64]*readEpoch{}}
	return r, r.Refresh()
}

// Refresh takes in what was written or removed since. Sealed epochs aren't read again.
func (r *Reader) Refresh() error {
	r.damage = nil
	cs, hs, damaged := stateFiles(r.dir)
	for _, name := range sortedKeys(damaged) {
		r.damage = append(r.damage, damaged[name])
	}
	r.states, r.holes = cs, hs
	seen := map[uint64]bool{}
	for _, name := range dirNames(filepath.Join(r.dir, epochsDir)) {
		id, ok := parseEpochName(name)
		if !ok {
			continue
		}
		seen[id] = true
		if e := r.epochs[id]; e != nil && e.sealed {
			continue
		}
		if err := r.look(id); err != nil && !errors.Is(err, fs.ErrNotExist) { // removed meanwhile
			return fmt.Errorf("spool: epoch %d: %w", id, err)
		}
	}
	for id, e := range r.epochs {
		if !seen[id] {
			e.close()
			delete(r.epochs, id)
		}
	}
	return nil
}

func (r *Reader) epochDir(id uint64) string { return filepath.Join(r.dir, epochsDir, epochName(id)) }

func (r *Reader) look(id uint64) error {
	if e := r.epochs[id]; e != nil {
		e.close()
	}
	dir := r.epochDir(id)
	e := &readEpoch{id: id}
	ix, err := openIndex(dir, false)
	if err == nil {
		e.sealed = true
	} else {
		if !errors.Is(err, fs.ErrNotExist) {
			if !isDamage(err) {
				return err
			}
			r.damage = append(r.damage, &DamageError{Epoch: id, File: indexName, Detail: err.Error()})
		}
		res, err := scanEpoch(dir)
		if err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(dir, openingName)); err == nil {
			res.damage = nil // it is being made, or wasn't: nothing was accepted
		}
		for _, d := range res.damage {
			r.damage = append(r.damage, &DamageError{Epoch: id, File: vlogName, Detail: d.Error()})
		}
		ix = res.ix
		e.refs = ix.refs
	}
	e.spans = ix.spans
	if info, err := os.Stat(filepath.Join(dir, shippedName)); err == nil {
		e.shipped = info.ModTime()
	}
	r.epochs[id] = e
	return nil
}

func (e *readEpoch) close() {
	if e.file != nil {
		_ = e.file.Close() // only read
		e.file = nil
	}
}

// load opens an epoch's value log; one at a time is open.
func (r *Reader) load(e *readEpoch) error {
	if e.file != nil {
		return nil
	}
	if last := r.epochs[r.recent]; last != nil {
		last.close()
	}
	f, ix, err := loadEpoch(r.epochDir(e.id))
	if err != nil {
		return err
	}
	e.file, e.refs = f, ix.refs
	r.recent = e.id
	return nil
}

// Close ends the reading.
func (r *Reader) Close() error {
	for _, e := range r.epochs {
		e.close()
	}
	return nil
}

func (r *Reader) sorted() []*readEpoch {
	out := make([]*readEpoch, 0, len(r.epochs))
	for _, id := range sortedKeys64(r.epochs) {
		out = append(out, r.epochs[id])
	}
	return out
}

func sortedKeys64[V any](m map[uint64]V) []uint64 {
	ids := make([]uint64, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Attempts lists everything that can be read, acknowledged or not: State is Shipped for what is only
// kept to be read. Dead letters are listed by DeadLetters.
func (r *Reader) Attempts() []AttemptInfo {
	infos := map[string]*AttemptInfo{}
	get := func(id string) *AttemptInfo {
		in := infos[id]
		if in == nil {
			in = &AttemptInfo{Attempt: id, First: -1}
			infos[id] = in
		}
		return in
	}
	for _, e := range r.sorted() {
		for id, sp := range e.spans {
			in := get(id)
			if in.First < 0 || sp.first < in.First {
				in.First = sp.first
			}
			in.Next = max(in.Next, sp.next)
			in.Batches += sp.batches
			in.Bytes += sp.bytes
			in.Decoded += sp.decoded
			in.Meta = sp.meta
			if at := time.UnixMicro(sp.oldest); sp.oldest != 0 && (in.Oldest.IsZero() || at.Before(in.Oldest)) {
				in.Oldest = at
			}
		}
	}
	for id, h := range r.holes {
		in := get(id)
		for _, h := range h.Holes {
			if in.First < 0 || h.First < in.First {
				in.First = h.First
			}
			in.Next = max(in.Next, h.Next)
		}
	}
	out := make([]AttemptInfo, 0, len(infos))
	for id, in := range infos {
		if c, ok := r.states[id]; ok {
			in.Next = max(in.Next, c.End)
			if in.State = c.State; c.Next >= in.Next {
				in.State = Shipped
			}
		}
		out = append(out, *in)
	}
	slices.SortFunc(out, func(a, b AttemptInfo) int { return cmp.Compare(a.Attempt, b.Attempt) })
	return out
}

// Read is as Spool.Read: a batch, a *HoleError, or io.EOF.
func (r *Reader) Read(id string, from int64) (Batch, error) {
	end, next, reason := r.states[id].End, int64(-1), ReasonMissing
	for _, e := range r.sorted() {
		sp := e.spans[id]
		if sp == nil {
			continue
		}
		if end = max(end, sp.next); sp.next <= from {
			continue
		}
		if err := r.load(e); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return Batch{}, fmt.Errorf("spool: epoch %d: %w", e.id, err)
		}
		ix := index{refs: e.refs}
		for {
			q, ok := ix.find(id, from)
			if !ok {
				break
			}
			b, err := readRef(e.file, id, q)
			if err == nil {
				return b, nil
			}
			r.damage = append(r.damage, &DamageError{Epoch: e.id, File: vlogName, Offset: q.valueAt, Detail: err.Error()})
			ix.lose(id, q)
		}
		if ix.covers(id, from) {
			reason = ReasonCorrupt
		}
		if n, ok := ix.after(id, from); ok && (next < 0 || n < next) {
			next = n
		}
	}
	for _, h := range r.holes[id].Holes {
		if end = max(end, h.Next); h.First <= from && from < h.Next {
			reason = h.Reason
			if next < 0 || h.Next < next {
				next = h.Next
			}
		} else if h.First > from && (next < 0 || h.First < next) {
			next = h.First
		}
	}
	if from >= end {
		return Batch{}, io.EOF
	}
	if next < 0 {
		next = end
	}
	return Batch{}, &HoleError{Attempt: id, First: from, Next: next, Reason: reason}
}

// Batches goes through an attempt from a number on. A hole comes as a *HoleError, and the going on
// continues behind it; any other error ends it.
func (r *Reader) Batches(id string, from int64) iter.Seq2[Batch, error] {
	return batches(r.Read, id, from)
}

// Batches is as Reader's, on a spool in use.
func (s *Spool) Batches(id string, from int64) iter.Seq2[Batch, error] {
	return batches(s.Read, id, from)
}

func batches(read func(string, int64) (Batch, error), id string, from int64) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		for {
			b, err := read(id, from)
			if errors.Is(err, io.EOF) {
				return
			}
			h, isHole := errors.AsType[*HoleError](err)
			if !yield(b, err) || err != nil && !isHole {
				return
			}
			if isHole {
				from = h.Next
			} else {
				from = b.Next()
			}
		}
	}
}

// Damage lists what was found unreadable so far.
func (r *Reader) Damage() []error { return slices.Clone(r.damage) }

// DeadLetters lists the dead-letter area; a letter that can't be read comes as an error.
func (r *Reader) DeadLetters() iter.Seq2[DeadLetter, error] { return deadLetters(r.dir) }

// DeadLetters is as Reader's.
func (s *Spool) DeadLetters() iter.Seq2[DeadLetter, error] { return deadLetters(s.cfg.Dir) }

func deadLetters(dir string) iter.Seq2[DeadLetter, error] {
	return func(yield func(DeadLetter, error) bool) {
		for _, name := range dirNames(filepath.Join(dir, deadDir)) {
			if filepath.Ext(name) == ".tmp" {
				continue
			}
			if d, err := readDead(dir, name); !yield(d, err) {
				return
			}
		}
	}
}

// Quarantine lists what was put aside.
func (r *Reader) Quarantine() []Quarantined {
	var out []Quarantined
	dir := filepath.Join(r.dir, quarantineDir)
	for _, name := range dirNames(dir) {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			out = append(out, Quarantined{Name: name, Bytes: diskUsage(filepath.Join(dir, name)), Time: info.ModTime()})
		}
	}
	return out
}

// Stats returns what the directory shows: the counters of a process stay empty.
func (r *Reader) Stats() Stats {
	st := Stats{Epochs: len(r.epochs), DiskUsed: diskUsage(r.dir), Quarantined: diskUsage(filepath.Join(r.dir, quarantineDir))}
	for _, e := range r.epochs {
		for id, sp := range e.spans {
			if c, ok := r.states[id]; !ok || sp.next > c.Next {
				st.Batches += sp.batches
				st.Bytes += sp.bytes
			}
		}
	}
	st.DeadLetters = int64(len(dirNames(filepath.Join(r.dir, deadDir))))
	if free, total, err := fsSpace(r.dir); err == nil {
		st.DiskFree, st.DiskTotal = free, total
	}
	return st
}
