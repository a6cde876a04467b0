package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
)

// An epoch's states, in the order in which it goes through them:
//
//	open ──seal──► sealed ──all acknowledged──► (shipped) ──► gone
//	  └─ no room for Close ─► lingering ─┘
//
// A lingering epoch takes no more entries and isn't closed yet, because that would write a table that the disk has no room for.
type phase uint8

const (
	phaseOpen phase = iota
	phaseLingering
	phaseSealed
	phaseGone
)

// epoch is one badger database, or what is left of it.
type epoch struct {
	id  uint64
	dir string

	// mu guards what follows; the writer holds it while it seals. Where Spool.mu is needed as
	// well, it is taken second.
	mu    sync.RWMutex
	phase phase
	kv    kv       // while open or lingering
	file  *os.File // the value log; of a sealed epoch, once loaded
	ix    *index   // its refs are nil until loaded

	// Only the writer touches these.
	room   epochUsage
	met    map[string]bool // attempts whose meta is written
	sealed chan struct{}   // closed when the seal that goes on in the background is over; nil = none does

	// Guarded by Spool.mu. spans is the index's own map while the epoch is open, and then only
	// changed under both mutexes.
	spans     map[string]*span
	disk      int64
	damaged   bool
	broken    bool      // a commit or sync failed: nothing written since the last good sync counts
	shippedAt time.Time // zero = something isn't acknowledged, or it isn't kept
	lastWrite time.Time
}

// epochUsage follows, from above, how far badger's files are filled.
type epochUsage struct {
	layout         layout
	vlog, wal, mem int64
}

func (u *epochUsage) add(entries []entry) {
	for _, e := range entries {
		k := int64(len(e.key))
		u.vlog += k + int64(len(e.value)) + entryOverhead
		u.wal += k + valuePointer + entryOverhead
		u.mem += k + valuePointer + nodeOverhead
		// What badger ends each transaction with.
		const end = 64
		u.vlog, u.wal, u.mem = u.vlog+end, u.wal+end, u.mem+end+nodeOverhead
	}
}

// fits says whether the entries can go in without badger rolling a file, which would happen in a
// goroutine of its own and on a disk that may be full.
func (u epochUsage) fits(entries []entry) bool {
	const slack = 4 << 10
	u.add(entries)
	return u.vlog+vlogFileHeader+slack < u.layout.vlog && u.wal+slack < u.layout.wal && u.mem+slack < u.layout.wal
}

func epochName(id uint64) string { return fmt.Sprintf("%08d", id) }

func parseEpochName(name string) (uint64, bool) {
	id, err := strconv.ParseUint(name, 10, 64)
	return id, err == nil && epochName(id) == name
}

// createEpoch makes an epoch that can take its size in entries whatever happens to the disk. Every
// step before the marker is gone leaves a directory in which nothing was ever accepted.
func createEpoch(dir string, id uint64, size int64, wrap func(kv) kv, log *zap.Logger) (_ *epoch, err error) {
	if err := os.Mkdir(dir, dirMode); err != nil {
		return nil, err
	}
	marker := filepath.Join(dir, openingName)
	if err := os.WriteFile(marker, []byte(strconv.Itoa(os.Getpid())+"\n"), fileMode); err != nil {
		return nil, err
	}
	l := layoutFor(size)
	ballast := filepath.Join(dir, ballastName)
	if err := allocate(ballast, size-l.discard, true); err != nil {
		return nil, err
	}
	// badger ends the process when it can't make this file, and takes one that is there. Its first
	// page is written, because closing writes to it through a mapping.
	discard := filepath.Join(dir, discardName)
	if err := os.WriteFile(discard, make([]byte, 4<<10), fileMode); err != nil {
		return nil, err
	}
	if err := allocate(discard, l.discard, true); err != nil {
		return nil, err
	}
	if err := os.Truncate(ballast, l.ballast); err != nil {
		return nil, err
	}
	if free, _, err := fsSpace(dir); err != nil || free < 2*size {
		// A file system may hold freed blocks back until its journal is written.
		if err := syncDir(dir); err != nil {
			return nil, err
		}
	}
	d, err := openDB(dir, l, log)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if err := os.Remove(marker); err != nil {
		return nil, err
	}
	// The first entry is only as durable as the file that it is in.
	if err := errors.Join(syncFile(filepath.Join(dir, vlogName)), syncDir(dir), syncDir(filepath.Dir(dir))); err != nil {
		return nil, err
	}
	values, err := os.Open(filepath.Join(dir, vlogName))
	if err != nil {
		return nil, err
	}
	e := &epoch{id: id, dir: dir, kv: d, file: values, ix: newIndex(), disk: size, lastWrite: time.Now(), met: map[string]bool{}}
	e.spans = e.ix.spans
	e.room.layout = l
	if wrap != nil {
		e.kv = wrap(d)
	}
	return e, nil
}

// seal closes the database and leaves an INDEX. It returns false when the disk has no room for
// what Close writes: the epoch lingers, and the next tick tries again.
func (e *epoch) seal(log *zap.Logger) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase != phaseOpen && e.phase != phaseLingering {
		return true, nil
	}
	e.phase = phaseLingering
	if !e.roomToClose() {
		return false, nil
	}
	cerr := e.kv.close()
	e.kv = nil
	e.phase = phaseSealed
	if errors.Is(cerr, errAbandoned) {
		log.Warn("database couldn't be closed and stays in memory", zap.Uint64("epoch", e.id), zap.Error(cerr))
		cerr = nil
	}
	known := e.ix
	res, err := scanEpoch(e.dir)
	if err != nil {
		// The disk doesn't let us look. What is known stays known; reading tries again.
		e.ix = &index{spans: known.spans}
		return true, errors.Join(cerr, err)
	}
	missing := res.ix.addLost(known)
	if missing > 0 || len(res.damage) > 0 {
		log.Error("sealed epoch doesn't hold what was written to it",
			zap.Uint64("epoch", e.id), zap.Int("batches", missing), zap.Errors("damage", res.damage))
		e.markDamaged()
	}
	e.ix = res.ix
	punch(filepath.Join(e.dir, discardName), 0)
	return true, errors.Join(cerr, writeIndex(e.dir, res.ix))
}

// roomToClose frees what is only there to be freed, and says whether that suffices for the table
// that Close makes of the memtable. A mapped file that doesn't get its blocks ends the process.
func (e *epoch) roomToClose() bool {
	const page = 64 << 10
	punch(filepath.Join(e.dir, walName), (e.room.wal+2*page)/page*page)
	need := 2*e.room.wal + smallFiles
	if free, _, err := fsSpace(e.dir); err != nil || free < need {
		return false // the ballast alone could be taken by others before it is used
	}
	err := os.Remove(filepath.Join(e.dir, ballastName))
	return err == nil || errors.Is(err, fs.ErrNotExist)
}

// discard closes an epoch of which everything is acknowledged. Its values go first, so that Close
// has room.
func (e *epoch) discard() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	var err error
	if e.kv != nil {
		release(filepath.Join(e.dir, vlogName))
		if err = e.kv.close(); errors.Is(err, errAbandoned) {
			err = nil // its directory goes all the same
		}
		e.kv = nil
	}
	if e.file != nil {
		err = errors.Join(err, e.file.Close())
		e.file = nil
	}
	e.phase = phaseGone
	e.ix = &index{}
	return err
}

// load makes the entries of a sealed epoch findable and its value log readable.
func (e *epoch) load() (loaded bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase != phaseSealed || e.ix.refs != nil && e.file != nil {
		return false, nil
	}
	file, ix, err := loadEpoch(e.dir)
	if err != nil {
		return false, err
	}
	if e.file != nil { // it couldn't be scanned when it was sealed
		_ = e.file.Close() // only read
	}
	e.file = file
	e.ix = ix
	return true, nil
}

func (e *epoch) unload() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.phase == phaseSealed && e.file != nil {
		_ = e.file.Close() // only read
		e.file = nil
		e.ix = &index{}
	}
}

// read returns the batch that covers n. ok is false when the epoch has no readable one.
func (e *epoch) read(attempt string, n int64) (b Batch, q ref, ok bool, err error) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.phase == phaseGone || e.ix.refs == nil {
		return Batch{}, ref{}, false, nil
	}
	q, ok = e.ix.find(attempt, n)
	if !ok {
		return Batch{}, ref{}, false, nil
	}
	b, err = readRef(e.file, attempt, q)
	return b, q, true, err
}

func (e *epoch) lose(attempt string, q ref) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ix.lose(attempt, q)
	e.markDamaged()
}

// markDamaged makes sure that the epoch ends in quarantine, also when that happens after a restart.
func (e *epoch) markDamaged() {
	f, err := os.OpenFile(filepath.Join(e.dir, damagedName), os.O_CREATE|os.O_WRONLY, fileMode)
	if err == nil {
		_ = f.Close() // empty
	}
}
