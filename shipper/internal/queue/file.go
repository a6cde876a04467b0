package queue

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// ErrFull means that no page is free for this purpose now.
var ErrFull = errors.New("queue: full")

// ErrSlots means that too many attempts are in the queue.
var ErrSlots = errors.New("queue: no slot free: too many attempts wait in memory")

// Options is how a queue file is made.
type Options struct {
	Size    int64 // bytes; a file that already exists keeps its own size while it holds anything
	Reserve int64 // bytes that only sealing may use, so that what was read can always be sealed
}

// File is an open queue.
type File struct {
	f       *os.File
	mem     []byte
	lay     layout
	reserve int // pages

	mu      sync.Mutex
	room    sync.Cond // signalled when pages were freed, or the queue was stopped
	free    []int     // guarded by mu
	slots   []int     // free ones; guarded by mu
	stopped bool      // guarded by mu

	used atomic.Int64 // pages in use
}

// Found is what Open found in the file.
type Found struct {
	Attempts []*Attempt // none of them can be read into any more
	Damage   int        // things that should have been readable and weren't; what they covered is a hole in numbers, or a lost Run
	Renamed  string     // the file was no queue: it was renamed to this, and a new one made
	Kept     string     // a copy of what was damaged, see keepDamaged
	KeptErr  error      // there is no such copy
}

// Open maps the queue at path, made if need be, and reads what is in it.
func Open(path string, o Options) (*File, Found, error) {
	q, found, err := open(path, o)
	if err != nil {
		return nil, Found{}, fmt.Errorf("queue: open %s: %w", path, err)
	}
	return q, found, nil
}

func open(path string, o Options) (*File, Found, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, Found{}, err
	}
	q := &File{f: f}
	q.room.L = &q.mu
	found, err := q.load(path, o)
	if err != nil {
		q.Close() //nolint:errcheck // the first error counts
		return nil, Found{}, err
	}
	return q, found, nil
}

func (q *File) load(path string, o Options) (Found, error) {
	if err := unix.Flock(int(q.f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return Found{}, ErrLocked
		}
		return Found{}, err
	}
	boot := bootID()
	info, err := q.f.Stat()
	if err != nil {
		return Found{}, err
	}
	var found Found
	head := make([]byte, supersSize)
	n, _ := q.f.ReadAt(head, 0)
	lay, err := parseLayout(head[:n])
	switch {
	case err == nil:
		if err := q.mapFile(lay); err != nil {
			return found, err
		}
		img := parse(q.mem, info.Size(), lay, lay.boot == boot)
		if len(img.attempts) == 0 && img.damage == 0 && lay.size != o.Size&^(osPage-1) {
			break // empty, and of another size: made anew below
		}
		found.Damage = img.damage
		if img.damage > 0 { // before its pages are used again
			found.Kept, found.KeptErr = q.keepDamaged(path, img)
		}
		q.adopt(img, boot, o, &found)
		return found, nil
	case info.Size() > 0:
		// Not ours to delete, whatever it is.
		found.Renamed = fmt.Sprintf("%s.damaged-%d", path, info.ModTime().Unix())
		found.Damage = 1
		if err := os.Rename(path, found.Renamed); err != nil {
			return found, err
		}
		again, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return found, err
		}
		q.f.Close()
		q.f = again
		if err := unix.Flock(int(q.f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return found, err
		}
	}
	return found, q.make(boot, o)
}

// make lays out an empty file.
func (q *File) make(boot [16]byte, o Options) error {
	if err := q.unmap(); err != nil {
		return err
	}
	if err := q.f.Truncate(0); err != nil {
		return err
	}
	lay := newLayout(o.Size)
	if lay.pages < 8 {
		return fmt.Errorf("size of %d bytes: too small", o.Size)
	}
	lay.boot = boot
	if _, err := rand.Read(lay.mark[:]); err != nil {
		return err
	}
	lay.mark[sentinel-1] |= 0xF8 // never the last byte of a piece of UTF-8
	if err := q.mapFile(lay); err != nil {
		return err
	}
	q.writeSuper()
	q.adopt(&image{lay: lay}, boot, o, &Found{})
	return nil
}

// mapFile allocates all of the file, so that no store into the mapping can fail for lack of space, and maps it.
func (q *File) mapFile(lay layout) error {
	if lay.size > math.MaxInt {
		return ErrNotQueue
	}
	if err := unix.Fallocate(int(q.f.Fd()), 0, 0, lay.size); err != nil {
		return fmt.Errorf("allocate %d bytes: %w", lay.size, err)
	}
	mem, err := unix.Mmap(int(q.f.Fd()), 0, int(lay.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map %d bytes: %w", lay.size, err)
	}
	q.mem, q.lay = mem, lay
	return nil
}

func (q *File) writeSuper() {
	b := q.lay.encode()
	for at := 0; at < supersSize; at += superSize {
		copy(q.mem[at:], b)
	}
}

// adopt takes over what the image holds and frees everything else.
func (q *File) adopt(img *image, boot [16]byte, o Options, found *Found) {
	taken := make([]bool, q.lay.pages)
	slots := make([]bool, q.lay.slots)
	for _, m := range img.attempts {
		a := q.revive(m, taken)
		slots[m.slot] = true
		found.Attempts = append(found.Attempts, a)
	}
	if q.lay.boot != boot {
		q.lay.boot = boot // after the intents of this boot have become runs, in revive
		q.writeSuper()
	}
	for i := q.lay.pages - 1; i >= 0; i-- {
		if !taken[i] {
			store(q.page(i), kindFree)
			q.free = append(q.free, i)
		}
	}
	for i := q.lay.slots - 1; i >= 0; i-- {
		if !slots[i] {
			q.clearSlot(i)
			q.slots = append(q.slots, i)
		}
	}
	q.used.Store(int64(q.lay.pages - len(q.free)))
	q.reserve = min(int(o.Reserve)/q.lay.pageData()+3, q.lay.pages/4)
}

func (q *File) slot(i int) []byte {
	at := q.lay.slotAt(i)
	return q.mem[at : at+slotSize]
}

func (q *File) page(i int) []byte {
	at := q.lay.pageAt(i)
	return q.mem[at : at+int64(q.lay.pageSize) : at+int64(q.lay.pageSize)]
}

func (q *File) clearSlot(i int) {
	b := q.slot(i)
	store(b, slotFree)
	clear(b[4:16]) // so that a flipped byte in the word alone revives nothing
}

// purpose is what a page is wanted for.
type purpose int

const (
	forReading purpose = iota
	forRemark
	forSealing
)

// take hands out a page, or none. Readers get one only beyond the reserve, and within their
// attempt's share: eight times what is free beyond an eighth of all, or the few pages without which
// it couldn't move. So a single noisy attempt gets about three quarters, two get two fifths each, and
// whoever comes later finds what it needs, even if nothing is given back.
func (q *File) take(a *Attempt, why purpose) (int, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.mayTake(a, why) {
		return 0, false
	}
	i := q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	a.pages.Add(1)
	q.used.Add(1)
	return i, true
}

func (q *File) mayTake(a *Attempt, why purpose) bool {
	switch why {
	case forReading:
		beyond := len(q.free) - q.reserve
		return beyond > 0 && (a.pages.Load() < int64(a.least) || a.pages.Load() < 8*int64(beyond-q.lay.pages/8))
	case forRemark:
		return len(q.free) > q.reserve/2
	default:
		return len(q.free) > 0
	}
}

func (q *File) give(a *Attempt, pages ...int) {
	if len(pages) == 0 {
		return
	}
	for _, i := range pages {
		store(q.page(i), kindFree)
	}
	q.mu.Lock()
	q.free = append(q.free, pages...)
	q.mu.Unlock()
	a.pages.Add(-int64(len(pages)))
	q.used.Add(-int64(len(pages)))
	q.room.Broadcast()
}

// Stop wakes everyone who waits for room, for good.
func (q *File) Stop() {
	q.mu.Lock()
	q.stopped = true
	q.mu.Unlock()
	q.room.Broadcast()
}

// Size is the file's size in bytes, Used what of it is in use, Fill the used part of the pages.
func (q *File) Size() int64 { return q.lay.size }

// Used is how many bytes are in use, in whole pages.
func (q *File) Used() int64 { return q.used.Load() * int64(q.lay.pageSize) }

// Fill is the used fraction of what readers may use.
func (q *File) Fill() float64 { return float64(q.used.Load()) / float64(q.lay.pages-q.reserve) }

// Close unmaps the file. Nothing of it may be used afterwards.
func (q *File) Close() error {
	return errors.Join(q.unmap(), q.f.Close())
}

func (q *File) unmap() error {
	if q.mem == nil {
		return nil
	}
	err := unix.Munmap(q.mem)
	q.mem = nil
	return err
}

// bootID is the kernel's; zero where it can't be read, which never equals another's.
func bootID() (id [16]byte) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		rand.Read(id[:])
		return id
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if err != nil || len(raw) != len(id) {
		rand.Read(id[:])
		return id
	}
	copy(id[:], raw)
	return id
}
