package spool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Names inside an epoch's directory: badger's, as it writes them for a new database that never
// rolls a file, and ours.
const (
	vlogName    = "000001.vlog"
	walName     = "00001.mem"
	discardName = "DISCARD"

	// txnEndKey is what badger ends a transaction with. Nothing else of its own is in our logs.
	txnEndKey = "!badger!txn"

	indexName   = "INDEX"
	openingName = "OPENING"
	ballastName = "ballast"
	shippedName = "SHIPPED"
)

// scanResult is what reading an epoch's files without an index found.
type scanResult struct {
	ix        *index
	damage    []error
	torn      error // how the value log ends, when it ends in the middle of a write
	dropped   bool  // which was a batch that nobody was promised
	vlogEnd   int64 // where the entries end
	walEnd    int64
	readables int
}

// scanEpoch reads the value log and, if it is there, badger's write-ahead log: the value log says
// what can be read, the other one what ought to be there. It changes nothing.
func scanEpoch(dir string) (scanResult, error) {
	res := scanResult{ix: newIndex()}
	f, err := os.Open(filepath.Join(dir, vlogName))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if names, err := os.ReadDir(dir); err == nil && len(names) == 0 {
			return res, nil // killed when it had made the directory, and before the marker was in it
		}
		res.damage = append(res.damage, errors.New(vlogName+": missing"))
	case err != nil:
		return res, err
	default:
		defer f.Close()
	}
	var size int64
	seen := map[int64]bool{} // by where an entry ends, which both logs know
	var log *logReader
	if f != nil {
		info, err := f.Stat()
		if err != nil {
			return res, err
		}
		size = info.Size()
		log = newLogReader(f, size)
		res.scanValues(log, seen)
	}
	if err := res.scanWAL(filepath.Join(dir, walName), log, seen); err != nil {
		return res, err
	}
	res.ix.sort()
	return res, nil
}

// scanValues walks the value log. Where an entry isn't one, it looks for the next value of ours: if
// there is none, the log ended in the middle of a write, and nothing was said to be durable behind it.
func (res *scanResult) scanValues(log *logReader, seen map[int64]bool) {
	var last lastEntry
	at := int64(vlogFileHeader)
	for at < log.end {
		e, err := log.entry(at)
		if errors.Is(err, errLogEnd) {
			break
		}
		if err == nil {
			err = res.take(log, e)
		}
		last.headless = false
		if err != nil {
			bad := fmt.Errorf("%s at %d: %w", vlogName, at, err)
			var found bool
			if e, found = log.resync(at + 1); !found {
				res.torn = bad
				break
			}
			last.headless = e.valueAt-versionSuffix-int64(len(e.key)) <= at+vlogEntryHeader
			res.damage = append(res.damage, bad)
			if err = res.take(log, e); err != nil {
				res.damage = append(res.damage, fmt.Errorf("%s at %d: %w", vlogName, e.valueAt, err))
			}
		}
		at = e.valueAt + e.valueLen + vlogSum
		last.taken = err == nil
		if last.taken {
			seen[at] = true
			last.key = append(last.key[:0], e.key...)
		}
	}
	res.vlogEnd = at
	if last.taken && res.torn == nil {
		res.dropTorn(log, last, seen)
	}
}

// lastEntry is the last that was found in a value log.
type lastEntry struct {
	taken    bool // into the index
	headless bool // its own header can't be read, which is noted as the last damage
	key      []byte
}

// dropTorn takes the log's last entry back when it is a batch that isn't whole: a kill in the middle of writing it leaves
// some of its bytes and not others. (Where badger copied into the file's own pages, as it once did here, the first ones could be what
// is missing: memmove stores last what isn't aligned.) Such a batch was promised to nobody, and its place isn't in the
// write-ahead log. One that is there is damaged, and comes in again with that log.
func (res *scanResult) dropTorn(log *logReader, last lastEntry, seen map[int64]bool) {
	k, err := parseKey(last.key)
	if err != nil || k.kind != kindBatch {
		return // a whole entry stands before it
	}
	refs := res.ix.refs[k.attempt]
	_, err = readRef(log.r, k.attempt, refs[len(refs)-1])
	if _, unread := errors.AsType[*fs.PathError](err); err == nil || unread {
		return
	}
	if last.headless {
		res.damage = res.damage[:len(res.damage)-1]
	}
	res.torn, res.dropped = fmt.Errorf("%s before %d: %w", vlogName, res.vlogEnd, err), true
	res.readables--
	res.ix.drop(k.attempt)
	delete(seen, res.vlogEnd)
}

// take adds one entry of the value log to the index. Entries of badger's own are passed over.
func (res *scanResult) take(log *logReader, e logEntry) error {
	k, err := parseKey(e.key)
	if err != nil {
		if string(e.key) == txnEndKey {
			return nil
		}
		return err
	}
	keyBytes := appendKey(nil, k)
	if k.kind == kindMeta {
		if e.valueLen > valueHeader+maxMeta {
			return fmt.Errorf("meta of %d bytes", e.valueLen)
		}
		value := make([]byte, e.valueLen)
		if _, err := log.r.ReadAt(value, e.valueAt); err != nil {
			return err
		}
		b, err := parseBatch(keyBytes, value)
		if err != nil {
			return err
		}
		res.ix.setMeta(k.attempt, b.Data)
		return nil
	}
	head, err := log.peek(e.valueAt, valueHeader)
	if err != nil {
		return err
	}
	h, err := parseHeader(keyBytes, head)
	if err != nil {
		return err
	}
	if int64(h.length)+valueHeader != e.valueLen || h.count != k.next-k.first {
		return fmt.Errorf("%d bytes for %d records in an entry of %d for %d", h.length, h.count, e.valueLen, k.next-k.first)
	}
	res.readables++
	res.ix.add(k.attempt, ref{
		first: k.first, next: k.next, valueAt: e.valueAt, valueLen: e.valueLen, decoded: h.decoded, stored: h.stored,
	})
	return nil
}

// scanWAL reads the keys that badger's write-ahead log lists, and looks each up in the value log
// that the walk didn't reach. What isn't there is entered as lost, so that it can't vanish silently.
func (res *scanResult) scanWAL(path string, log *logReader, seen map[int64]bool) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // closed well: badger has moved the keys into a table, and we have an index
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	wal := newLogReader(f, info.Size())
	at := int64(vlogFileHeader)
	for at < wal.end {
		e, err := wal.entry(at)
		if errors.Is(err, errLogEnd) {
			break
		}
		if err == nil {
			err = res.takePointer(wal, e, log, seen)
		}
		if err != nil {
			if !wal.torn(at, e.size) {
				res.damage = append(res.damage, fmt.Errorf("%s at %d: %w", walName, at, err))
			}
			break // an entry that fails its checksum says nothing of where the next one is
		}
		at += e.size
	}
	res.walEnd = at
	return nil
}

func (res *scanResult) takePointer(wal *logReader, e logEntry, log *logReader, seen map[int64]bool) error {
	k, kerr := parseKey(e.key)
	value, err := wal.value(e)
	if err != nil {
		return err
	}
	if kerr != nil || k.kind != kindBatch && k.kind != kindMeta {
		return nil //nolint:nilerr // the end of a transaction
	}
	fid, size, at, ok := pointerTo(value)
	if !ok || fid != 1 || seen[at+size] {
		return nil
	}
	seen[at+size] = true
	if log != nil && at >= vlogFileHeader && at+size <= log.end {
		if err := res.takeAt(log, k, at, size); err == nil {
			res.vlogEnd = max(res.vlogEnd, at+size)
			return nil
		}
	}
	res.damage = append(res.damage, fmt.Errorf("%s at %d: not what %s says", vlogName, at, walName))
	if k.kind == kindBatch {
		res.ix.add(k.attempt, ref{first: k.first, next: k.next, valueAt: at, lost: true})
	}
	return nil
}

// takeAt takes an entry whose place and size another file knows, whatever its own lengths say: key
// and value sit at its end.
func (res *scanResult) takeAt(log *logReader, k key, at, size int64) error {
	keyBytes := appendKey(nil, k)
	head := min(size, vlogEntryHeader+maxKey+versionSuffix+valueHeader)
	b, err := log.peek(at, int(head))
	if err != nil {
		return err
	}
	// The entry's own header is between 5 and 17 bytes; the value header's checksum covers the key,
	// so that only the right place passes.
	for hdr := 5; hdr <= vlogEntryHeader; hdr++ {
		v := hdr + len(keyBytes) + versionSuffix
		if v+valueHeader > len(b) {
			break
		}
		h, err := parseHeader(keyBytes, b[v:])
		if err != nil || int64(v+valueHeader+h.length+vlogSum) != size {
			continue
		}
		if k.kind == kindMeta {
			value := make([]byte, valueHeader+h.length)
			if _, err := log.r.ReadAt(value, at+int64(v)); err != nil {
				return err
			}
			m, err := parseBatch(keyBytes, value)
			if err == nil {
				res.ix.setMeta(k.attempt, m.Data)
			}
			return err
		}
		res.readables++
		res.ix.add(k.attempt, ref{
			first: k.first, next: k.next, valueAt: at + int64(v), valueLen: int64(valueHeader + h.length),
			decoded: h.decoded, stored: h.stored,
		})
		return nil
	}
	return errors.New("no value of ours")
}

// readRef reads and checks one batch. Damage is an error, whatever its kind.
func readRef(r io.ReaderAt, attempt string, q ref) (Batch, error) {
	if q.valueLen < valueHeader || q.valueLen > maxData+valueHeader {
		return Batch{}, fmt.Errorf("value of %d bytes", q.valueLen)
	}
	b := make([]byte, q.valueLen)
	if _, err := r.ReadAt(b, q.valueAt); err != nil {
		return Batch{}, err
	}
	return parseBatch(appendKey(nil, key{kind: kindBatch, attempt: attempt, first: q.first, next: q.next}), b)
}
