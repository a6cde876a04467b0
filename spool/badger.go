package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// kv is what the spool needs of a database, and the seam where tests put faults.
type kv interface {
	// commit writes, in order, and enters where each value is; what it wrote may be durable or not. After an
	// error the handle is never written to again.
	commit(entries []entry) error
	// sync makes all commits durable that returned before it was called; it may run beside commit.
	// After an error nothing is known of them, and a second sync that succeeds says nothing either.
	sync() error
	close() error
}

type entry struct {
	key, value []byte
	valueAt    int64 // in the value log, once committed
}

// layout shares an epoch's size out among its files.
type layout struct {
	vlog, wal, discard, ballast int64
}

const (
	// discardSize is badger's own constant: it maps that much.
	discardSize = 1 << 20
	// smallFiles is room for MANIFEST, KEYREGISTRY, LOCK, INDEX and directory blocks.
	smallFiles = 128 << 10
	// groupEntries bounds a chunk's entries, and so what waits in memory for one fdatasync.
	groupEntries = 512
	// entryOverhead is above what badger adds to key and value in either log.
	entryOverhead = 22 + versionSuffix + vlogSum
	// nodeOverhead is above what its memtable adds to a key and a value pointer.
	nodeOverhead = 128
)

func layoutFor(size int64) layout {
	l := layout{
		discard: discardSize,
		wal:     min(max(size/32, 1<<20), 4<<20), // badger takes half as much again for its memtable, and two epochs may be open
		ballast: min(max(size/32, 512<<10), 4<<20),
	}
	l.vlog = size - l.discard - l.wal - l.ballast - smallFiles
	return l
}

// db is one badger database that is written once and never opened again.
type db struct {
	badger    *badger.DB
	log       *badgerLog
	vlog, wal *mirror
	walEnd    atomic.Int64 // of the entries whose values are in the value log
}

// openDB makes a new database in dir. Its files exist afterwards with all of their blocks.
//
// Until they have them, and a mirror each, badger writes to sparse mapped files: on a full disk that is a SIGBUS. The
// ballast has just been there, so that somebody else would have to take the space in the
// milliseconds between; if they do, the fault happens in this goroutine and comes back as an error.
func openDB(dir string, l layout, log *zap.Logger) (_ *db, err error) {
	blog := &badgerLog{log: log}
	opts := badger.DefaultOptions(dir).
		WithLogger(blog).
		// badger would sync both of its logs, and only log a failure of the value log's. We sync the
		// value log ourselves, which is all that recovery needs.
		WithSyncWrites(false).
		// Every value goes to the value log, which then holds all there is to know: a sealed or a
		// crashed epoch is read from it, without badger.
		WithValueThreshold(0).
		WithValueLogFileSize(l.vlog).
		WithValueLogMaxEntries(1 << 30). // the file never rolls: the epoch is sealed before
		WithMemTableSize(l.wal).
		WithNumMemtables(1).
		WithBaseTableSize(l.wal).
		WithNumCompactors(0).
		WithCompactL0OnClose(false).
		WithBlockCacheSize(0).
		WithIndexCacheSize(0).
		WithCompression(options.None).
		WithBloomFalsePositive(0).
		WithDetectConflicts(false).
		WithMetricsEnabled(false).
		WithNumGoroutines(1)
	if err := spareDescriptors(); err != nil {
		return nil, err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer recoverFault(&err)
	b, err := badger.Open(opts)
	if err != nil {
		return nil, err
	}
	d := &db{badger: b, log: blog}
	for _, m := range []struct {
		of   **mirror
		name string
		size int64
	}{{&d.vlog, vlogName, l.vlog}, {&d.wal, walName, l.wal}} {
		path := filepath.Join(dir, m.name)
		if err = allocate(path, m.size, false); err == nil {
			*m.of, err = newMirror(path, m.size)
		}
		if err != nil {
			return nil, errors.Join(err, b.Close(), d.vlog.close()) // empty: Close writes nothing
		}
	}
	_ = unix.Madvise(d.vlog.mem, unix.MADV_HUGEPAGE) // without such pages it is slower, and no more
	d.walEnd.Store(d.wal.at)
	return d, nil
}

// spareDescriptors fails while that is still an error. Inside Open, one descriptor too few ends the process.
func spareDescriptors() (err error) {
	const needed = 16 // badger holds 8 of them; the rest is for INDEX, directories and readers
	var held []*os.File
	defer func() {
		for _, f := range held {
			err = errors.Join(err, f.Close())
		}
	}()
	for range needed {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return fmt.Errorf("too few file descriptors: %w", err)
		}
		held = append(held, f)
	}
	return nil
}

// commit gives each entry a transaction of its own: badger keeps a transaction's entries in a map, and writes them in
// no order. A process that is killed in the middle would leave the end of a group and not its beginning, and whoever goes
// by the highest number would take what is missing for stored. Transactions are written in the order in which they
// are committed, though, one after the other in a goroutine of badger's, so that they may all be under way at once: waiting for each
// cost half of the time. They must be begun before the first is committed, since beginning one waits for all that are.
func (d *db) commit(entries []entry) error {
	txns := make([]*badger.Txn, len(entries))
	for i, e := range entries {
		txns[i] = d.badger.NewTransaction(true)
		defer txns[i].Discard() // a second time for those that are committed, which is harmless
		if err := txns[i].Set(e.key, e.value); err != nil {
			return err
		}
	}
	done := make(chan error, len(entries))
	for _, txn := range txns {
		txn.CommitWith(func(err error) { done <- err })
	}
	var err error
	for range txns {
		err = errors.Join(err, <-done)
	}
	if err != nil {
		return err
	}
	// Some of badger's failures are only logged.
	if d.log.failed.Load() {
		return errors.New("badger failed to write, see the log")
	}
	end, err := d.vlog.locate(entries)
	if err != nil {
		return err
	}
	walEnd, err := d.wal.locate(slices.Clone(entries))
	if err != nil {
		return err
	}
	if err := d.vlog.flush(end); err != nil {
		return err
	}
	d.walEnd.Store(walEnd)
	return nil
}

// sync makes the values durable, and only then lets the write-ahead log list them: what that has was promised.
func (d *db) sync() error {
	walEnd := d.walEnd.Load()
	for {
		err := unix.Fdatasync(int(d.vlog.file.Fd()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		return d.wal.flush(walEnd)
	}
}

// errAbandoned: the database can't be closed any more. Its goroutines and its memtable stay until the
// process ends; what was committed is in the value log.
var errAbandoned = errors.New("database was abandoned")

func (d *db) close() error {
	if err := d.empty(); err != nil {
		return errors.Join(errAbandoned, err, d.vlog.close(), d.wal.close())
	}
	return errors.Join(d.badger.Close(), d.vlog.close(), d.wal.close())
}

// empty has badger drop its keys, which nobody needs any more: values are read by our own index. It
// is how Close is kept from writing a table in a goroutine of badger's, where a disk that somebody
// else fills in that moment would end the process. Dropping writes one too, but in this goroutine,
// where the fault is an error.
func (d *db) empty() (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer recoverFault(&err)
	return d.badger.DropPrefix([]byte{keyVersion})
}

func recoverFault(err *error) {
	r := recover()
	if r == nil {
		return
	}
	fault, ok := r.(interface{ Addr() uintptr })
	if !ok {
		panic(r)
	}
	*err = fmt.Errorf("%w: a page couldn't be written (fault at %x)", ErrFull, fault.Addr())
}

// badgerLog keeps badger quiet, but for its errors.
type badgerLog struct {
	log    *zap.Logger
	failed atomic.Bool
}

func (l *badgerLog) Errorf(format string, args ...any) {
	l.failed.Store(true)
	l.log.Error("badger reported an error", zap.String("err", strings.TrimSpace(fmt.Sprintf(format, args...))))
}
func (l *badgerLog) Warningf(string, ...any) {}
func (l *badgerLog) Infof(string, ...any)    {}
func (l *badgerLog) Debugf(string, ...any)   {}
