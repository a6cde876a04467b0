package spool

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"
)

// A value is a header of 44 bytes and the data, integers little-endian:
//
//	0  magic a6 5b   2  version   3  encoding   4  flags (0)   8  count
//	16 length of the data   20 size before encoding   28 stored, µs since the epoch
//	36 CRC-32C of the data   40 CRC-32C of the key and of the 40 bytes before
//
// Two sums, so that a scan can trust the numbers without reading the data. The second covers the
// first, and the key: a value that badger hands out for another key is found out.
const (
	valueHeader  = 44
	valueVersion = 1
	valueMagic0  = 0xa6
	valueMagic1  = 0x5b

	// maxData is far above what a sealed batch has (a record is at most 1 MiB) and bounds every
	// allocation that a damaged length could ask for.
	maxData = 64 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type header struct {
	encoding uint8
	count    int64
	length   int
	decoded  int64
	stored   int64
	dataSum  uint32
}

// appendValue writes the value of k. data is copied.
func appendValue(dst, keyBytes []byte, h header, data []byte) []byte {
	at := len(dst)
	dst = append(dst, valueMagic0, valueMagic1, valueVersion, h.encoding, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.count))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(data)))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.decoded))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(h.stored))
	dst = binary.LittleEndian.AppendUint32(dst, crc32.Checksum(data, castagnoli))
	sum := crc32.Update(crc32.Checksum(keyBytes, castagnoli), castagnoli, dst[at:])
	dst = binary.LittleEndian.AppendUint32(dst, sum)
	return append(dst, data...)
}

// parseHeader checks the header of the value stored under keyBytes. Its length is checked before
// anyone allocates by it.
func parseHeader(keyBytes, b []byte) (header, error) {
	if len(b) < valueHeader {
		return header{}, fmt.Errorf("value of %d bytes", len(b))
	}
	if b[0] != valueMagic0 || b[1] != valueMagic1 || b[2] != valueVersion {
		return header{}, fmt.Errorf("value begins with % x", b[:3])
	}
	sum := crc32.Update(crc32.Checksum(keyBytes, castagnoli), castagnoli, b[:40])
	if want := binary.LittleEndian.Uint32(b[40:]); sum != want {
		return header{}, fmt.Errorf("header's checksum is %08x, not %08x", sum, want)
	}
	h := header{
		encoding: b[3],
		count:    int64(binary.LittleEndian.Uint64(b[8:])),
		length:   int(binary.LittleEndian.Uint32(b[16:])),
		decoded:  int64(binary.LittleEndian.Uint64(b[20:])),
		stored:   int64(binary.LittleEndian.Uint64(b[28:])),
		dataSum:  binary.LittleEndian.Uint32(b[36:]),
	}
	if h.count < 0 || h.decoded < 0 || h.length > maxData {
		return header{}, fmt.Errorf("count %d, decoded %d, length %d", h.count, h.decoded, h.length)
	}
	return h, nil
}

// parseBatch checks a whole value and returns the batch, whose data is a part of b.
func parseBatch(keyBytes, b []byte) (Batch, error) {
	k, err := parseKey(keyBytes)
	if err != nil {
		return Batch{}, err
	}
	h, err := parseHeader(keyBytes, b)
	if err != nil {
		return Batch{}, err
	}
	data := b[valueHeader:]
	if len(data) != h.length {
		return Batch{}, fmt.Errorf("%d bytes of data, not %d", len(data), h.length)
	}
	if sum := crc32.Checksum(data, castagnoli); sum != h.dataSum {
		return Batch{}, fmt.Errorf("data's checksum is %08x, not %08x", sum, h.dataSum)
	}
	if k.kind == kindBatch && h.count != k.next-k.first {
		return Batch{}, fmt.Errorf("count %d under a key of %d", h.count, k.next-k.first)
	}
	return Batch{
		Attempt: k.attempt, First: k.first, Count: h.count, Encoding: h.encoding,
		Decoded: h.decoded, Stored: time.UnixMicro(h.stored), Data: data,
	}, nil
}

func validBatch(b Batch) error {
	switch {
	case b.Attempt == "" || len(b.Attempt) > maxAttemptID:
		return fmt.Errorf("%w: attempt id of %d bytes", ErrInvalid, len(b.Attempt))
	case b.First < 0 || b.Count < 1 || b.First > 1<<61 || b.Count > 1<<61:
		return fmt.Errorf("%w: %s: first %d, count %d", ErrInvalid, b.Attempt, b.First, b.Count)
	case b.Decoded < 0:
		return fmt.Errorf("%w: %s: decoded size %d", ErrInvalid, b.Attempt, b.Decoded)
	case len(b.Data) > maxData:
		return fmt.Errorf("%w: %s: %d bytes of data", ErrInvalid, b.Attempt, len(b.Data))
	}
	return nil
}
