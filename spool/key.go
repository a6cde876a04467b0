package spool

import (
	"encoding/binary"
	"fmt"
)

// A key is version, kind, length of the attempt id, attempt id; a batch's goes on with its first
// number and the number after its last, both big-endian, so that keys sort as the log does. The
// end stands in the key because that is what survives in badger's write-ahead log when the value is lost.
const (
	keyVersion = 1
	kindBatch  = 'b'
	kindMeta   = 'm'

	keyPrefix = 3
	keyRange  = 16
	maxKey    = keyPrefix + maxAttemptID + keyRange
)

type key struct {
	kind        byte
	attempt     string
	first, next int64
}

func appendKey(dst []byte, k key) []byte {
	dst = append(dst, keyVersion, k.kind, byte(len(k.attempt)))
	dst = append(dst, k.attempt...)
	if k.kind == kindBatch {
		dst = binary.BigEndian.AppendUint64(dst, uint64(k.first))
		dst = binary.BigEndian.AppendUint64(dst, uint64(k.next))
	}
	return dst
}

// parseKey takes a key without badger's version suffix.
func parseKey(b []byte) (key, error) {
	if len(b) < keyPrefix || b[0] != keyVersion {
		return key{}, fmt.Errorf("no key of ours: % x", b[:min(len(b), 8)])
	}
	n := int(b[2])
	if n == 0 || n > maxAttemptID || len(b) < keyPrefix+n {
		return key{}, fmt.Errorf("attempt id of %d bytes in a key of %d", n, len(b))
	}
	k := key{kind: b[1], attempt: string(b[keyPrefix : keyPrefix+n])}
	rest := b[keyPrefix+n:]
	switch {
	case k.kind == kindMeta && len(rest) == 0:
		return k, nil
	case k.kind == kindBatch && len(rest) == keyRange:
		first, next := binary.BigEndian.Uint64(rest), binary.BigEndian.Uint64(rest[8:])
		if first >= next || next > 1<<62 {
			return key{}, fmt.Errorf("range %d to %d", first, next)
		}
		k.first, k.next = int64(first), int64(next)
		return k, nil
	}
	return key{}, fmt.Errorf("kind %q with %d more bytes", k.kind, len(rest))
}
