package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// kv is what the spool needs of a database, and the seam where tests put faults.
type kv interface {
	// commit writes; what it wrote may be durable or not. After an error the handle is never
	// written to again.
	commit(entries []entry) error
	// sync makes all commits durable that returned before it was called; it may run beside commit.
	// After an error nothing is known of them, and a second sync that succeeds says nothing either.
	sync() error
	// get calls use with the value, which is valid until use returns.
	get(key []byte, use func([]byte) error) error
	close() error
}

type entry struct{ key, value []byte }

// layout shares an epoch's size out among its files.
type layout struct {
	vlog, wal, discard, ballast int64
}

const (
	// discardSize is badger's own constant: it maps that much.
	discardSize = 1 << 20
	// smallFiles is room for MANIFEST, KEYREGISTRY, LOCK, INDEX and directory blocks.
	smallFiles = 128 << 10
	// groupEntries bounds a transaction's entries: badger refuses more than 15 % of a memtable, and
	// with the smallest one that is some 700 of our longest keys.
	groupEntries = 512
	// entryOverhead is above what badger adds to key and value in either log.
	entryOverhead = 22 + versionSuffix + vlogSum
	// nodeOverhead is above what its memtable adds to a key and a value pointer.
	nodeOverhead = 128
)

func layoutFor(size int64) layout {
	l := layout{
		discard: discardSize,
		wal:     min(max(size/16, 1<<20), 8<<20),
		ballast: min(max(size/32, 512<<10), 4<<20),
	}
	l.vlog = size - l.discard - l.wal - l.ballast - smallFiles
	return l
}

// db is one badger database that is written once and never opened again.
type db struct {
	badger *badger.DB
	log    *badgerLog
	vlog   *os.File // to sync it; badger has it mapped
	at     int64    // about where the value log goes on, never above
	mapped uintptr  // where badger has mapped it; 0 = not known
}

// openDB makes a new database in dir. Its files exist afterwards with all of their blocks.
//
// Until they have them, badger writes to sparse mapped files: on a full disk that is a SIGBUS. The
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
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(interface{ Addr() uintptr })
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("%w: disk filled up while an epoch was opened (fault at %x)", ErrFull, fault.Addr())
		}
	}()
	b, err := badger.Open(opts)
	if err != nil {
		return nil, err
	}
	d := &db{badger: b, log: blog}
	for name, size := range map[string]int64{vlogName: l.vlog, walName: l.wal} {
		if err := allocate(filepath.Join(dir, name), size, false); err != nil {
			return nil, errors.Join(err, b.Close()) // empty: Close writes nothing
		}
	}
	// Open before the first write: a descriptor hears of every failed write-back since then, once.
	if d.vlog, err = os.OpenFile(filepath.Join(dir, vlogName), os.O_RDWR, 0); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	d.at = vlogFileHeader
	d.mapped = mappingOf(filepath.Join(dir, vlogName))
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

func (d *db) commit(entries []entry) error {
	txn := d.badger.NewTransaction(true)
	defer txn.Discard()
	for _, e := range entries {
		if err := txn.Set(e.key, e.value); err != nil {
			return err
		}
	}
	d.populate(entries)
	if err := txn.Commit(); err != nil {
		return err
	}
	// Some of badger's failures are only logged.
	if d.log.failed.Load() {
		return errors.New("badger failed to write, see the log")
	}
	return nil
}

// populate has the kernel map the pages that the next entries go to, all in one call. Without it
// badger takes a page fault every 4 KiB, which costs more than all the rest of the copying (1.55 s
// against 0.5 s for 512 MB). It is a hint: when it fails, the faults happen as usual.
func (d *db) populate(entries []entry) {
	start := d.at
	for _, e := range entries {
		// meta, user meta and expiry; one byte at least for each length
		d.at += int64(len(e.key)) + versionSuffix + int64(len(e.value)) + vlogSum + 3
		d.at += int64(uvarintLen(len(e.key)+versionSuffix) + uvarintLen(len(e.value)))
	}
	d.at += 3 + 2 + int64(len(txnEndKey)) + versionSuffix + 1 + vlogSum // and its value, one digit at least
	if d.mapped == 0 {
		return
	}
	const page = 4 << 10
	from := start / page * page
	to := (d.at + page - 1) / page * page
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, d.mapped+uintptr(from), uintptr(to-from), unix.MADV_POPULATE_WRITE)
}

func uvarintLen(n int) int {
	var b [binary.MaxVarintLen64]byte
	return binary.PutUvarint(b[:], uint64(n)) //nolint:gosec // a length
}

// mappingOf finds where this process has mapped a file, or 0.
func mappingOf(path string) uintptr {
	path, err := filepath.EvalSymlinks(path) // epochs are under an absolute directory
	if err != nil {
		return 0
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(maps)) {
		// 7f…-7f… rw-s 00000000 fe:00 1234   /path
		fields := strings.SplitN(strings.TrimSpace(line), " ", 6)
		if len(fields) < 6 || strings.TrimSpace(fields[5]) != path || fields[2] != "00000000" {
			continue
		}
		low, _, _ := strings.Cut(fields[0], "-")
		at, err := strconv.ParseUint(low, 16, 64)
		if err == nil {
			return uintptr(at)
		}
	}
	return 0
}

func (d *db) sync() error {
	for {
		// Mapped pages count: they belong to the same file.
		if err := unix.Fdatasync(int(d.vlog.Fd())); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

func (d *db) get(key []byte, use func([]byte) error) error {
	return d.badger.View(func(txn *badger.Txn) error {
		item, err := txn.Get(key)
		if err != nil {
			return err
		}
		return item.Value(use)
	})
}

func (d *db) close() error { return errors.Join(d.badger.Close(), d.vlog.Close()) }

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
