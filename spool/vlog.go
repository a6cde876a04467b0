package spool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// badger's value log and the write-ahead log of its memtable share one format, and this file reads
// it without badger: 20 bytes of header, then entries
//
//	meta  user meta  uvarint key length  uvarint value length  uvarint expiry
//	key (8 bytes of version at its end)  value  CRC-32C (big-endian) of all before it
//
// Reading a damaged database through badger can end the process in a goroutine that nobody can
// recover. Here a damaged length is an error before it is an allocation.
const (
	vlogFileHeader  = 20
	vlogEntryHeader = 2 + 3*binary.MaxVarintLen32 // what badger reserves is a little more
	vlogSum         = 4
	versionSuffix   = 8
	valuePointer    = 12

	// scanWindow: many small entries per read, and little wasted when values are skipped.
	scanWindow = 4 << 10
)

// errLogEnd: nothing but zeros follows, which is how a preallocated log ends.
var errLogEnd = errors.New("end of log")

// logEntry locates one entry. key is valid until the next call.
type logEntry struct {
	at       int64 // where the entry starts
	size     int64 // of the whole entry
	key      []byte
	valueAt  int64
	valueLen int64
}

// logReader reads entries by position through a small window.
type logReader struct {
	r    io.ReaderAt
	end  int64 // the file's size: nothing may reach beyond it
	from int64 // where win starts
	win  []byte
}

func newLogReader(r io.ReaderAt, size int64) *logReader {
	return &logReader{r: r, end: size, win: make([]byte, 0, scanWindow)}
}

// peek returns n ≤ scanWindow bytes at the position, or fewer at the end of the file.
func (l *logReader) peek(at int64, n int) ([]byte, error) {
	n = int(min(int64(n), l.end-at))
	if n <= 0 {
		return nil, nil
	}
	if at < l.from || at+int64(n) > l.from+int64(len(l.win)) {
		l.from = at
		got, err := l.r.ReadAt(l.win[:min(int64(scanWindow), l.end-at)], at)
		l.win = l.win[:got]
		if err != nil && !errors.Is(err, io.EOF) {
			l.win = l.win[:0]
			return nil, fmt.Errorf("read at %d: %w", at, err)
		}
	}
	start := int(at - l.from)
	return l.win[start:min(start+n, len(l.win))], nil
}

// entry reads what starts at the position. Any other error than errLogEnd means damage, or a file
// that can't be read.
func (l *logReader) entry(at int64) (logEntry, error) {
	b, err := l.peek(at, vlogEntryHeader)
	if err != nil {
		return logEntry{}, err
	}
	if allZero(b) {
		return logEntry{}, errLogEnd
	}
	if len(b) < 5 {
		return logEntry{}, fmt.Errorf("%d bytes left", len(b))
	}
	pos := 2
	var lengths [3]uint64
	for i := range lengths {
		v, n := binary.Uvarint(b[pos:])
		if n <= 0 {
			return logEntry{}, errors.New("unreadable length")
		}
		lengths[i], pos = v, pos+n
	}
	keyLen, valueLen := lengths[0], lengths[1]
	if keyLen <= versionSuffix || keyLen > maxKey+versionSuffix {
		return logEntry{}, fmt.Errorf("key of %d bytes", keyLen)
	}
	if valueLen > maxData+valueHeader || lengths[2] != 0 {
		return logEntry{}, fmt.Errorf("value of %d bytes, expiry %d", valueLen, lengths[2])
	}
	e := logEntry{
		at:       at,
		size:     int64(pos) + int64(keyLen) + int64(valueLen) + vlogSum,
		valueAt:  at + int64(pos) + int64(keyLen),
		valueLen: int64(valueLen),
	}
	if at+e.size > l.end {
		return logEntry{}, fmt.Errorf("entry of %d bytes, %d left", e.size, l.end-at)
	}
	k, err := l.peek(at+int64(pos), int(keyLen))
	if err != nil {
		return logEntry{}, err
	}
	if uint64(len(k)) != keyLen {
		return logEntry{}, fmt.Errorf("key ends after %d bytes", len(k))
	}
	e.key = k[:keyLen-versionSuffix]
	return e, nil
}

// torn says whether the write-ahead log ends within the entry at the position; size 0 = its own header can't be read. A kill
// leaves the beginning of what was being written, up to where a memory page ends, and behind it the zeros that the file was made of.
func (l *logReader) torn(at, size int64) bool {
	const (
		page = 4 << 10
		most = vlogEntryHeader + maxKey + versionSuffix + valuePointer + vlogSum
	)
	if size == 0 {
		size = vlogEntryHeader
	}
	cut := (at/page + 1) * page
	if cut >= min(at+size, l.end) || size > most {
		return false
	}
	for ; cut < l.end; cut += page {
		if b, err := l.peek(cut, page); err != nil || !allZero(b) {
			return false
		}
	}
	return true
}

// resync finds the next value of ours behind damage: by its magic, by the key that stands before it,
// and by the checksum over both. What the entry's own header says isn't needed.
func (l *logReader) resync(from int64) (logEntry, bool) {
	const (
		window = 1 << 20
		before = maxKey + versionSuffix
	)
	buf := make([]byte, before+window+valueHeader)
	magic := []byte{valueMagic0, valueMagic1, valueVersion}
	for start := from; start < l.end; start += window {
		// The window, with what a hit at its edges needs on both sides.
		low := max(start-before, 0)
		n, err := l.r.ReadAt(buf[:min(int64(len(buf)), l.end-low)], low)
		if err != nil && !errors.Is(err, io.EOF) {
			continue // a bad sector: look behind it
		}
		b := buf[:n]
		for pos := int(start - low); pos < n && pos < int(start-low)+window; pos++ {
			hit := bytes.Index(b[pos:], magic)
			if hit < 0 {
				break
			}
			pos += hit
			if e, ok := valueAt(b, pos); ok && low+int64(pos)+e.valueLen+vlogSum <= l.end {
				e.valueAt = low + int64(pos)
				return e, true
			}
		}
	}
	return logEntry{}, false
}

// valueAt says whether a value of ours starts at b[pos], going by a key of any length before it.
func valueAt(b []byte, pos int) (logEntry, bool) {
	end := pos - versionSuffix
	if pos+valueHeader > len(b) {
		return logEntry{}, false
	}
	for size := keyPrefix + 1; size <= maxKey && size <= end; size++ {
		k := b[end-size : end]
		if k[0] != keyVersion {
			continue
		}
		if _, err := parseKey(k); err != nil {
			continue
		}
		if h, err := parseHeader(k, b[pos:]); err == nil {
			return logEntry{key: bytes.Clone(k), valueLen: int64(valueHeader + h.length)}, true
		}
	}
	return logEntry{}, false
}

// value reads an entry's value and checks badger's own checksum, which covers all of the entry.
func (l *logReader) value(e logEntry) ([]byte, error) {
	b := make([]byte, e.size)
	if _, err := l.r.ReadAt(b, e.at); err != nil {
		return nil, fmt.Errorf("read at %d: %w", e.at, err)
	}
	body := b[:len(b)-vlogSum]
	if sum, want := crc32.Checksum(body, castagnoli), binary.BigEndian.Uint32(b[len(body):]); sum != want {
		return nil, fmt.Errorf("entry's checksum is %08x, not %08x", sum, want)
	}
	return body[e.valueAt-e.at:], nil
}

// pointerTo decodes badger's value pointer: file, length and position of the entry, in the
// machine's own byte order, which on every platform that we build for is little-endian.
func pointerTo(b []byte) (fid uint32, size, at int64, ok bool) {
	if len(b) != valuePointer {
		return 0, 0, 0, false
	}
	return binary.LittleEndian.Uint32(b), int64(binary.LittleEndian.Uint32(b[4:])),
		int64(binary.LittleEndian.Uint32(b[8:])), true
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
