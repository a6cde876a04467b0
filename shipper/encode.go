package shipper

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// The encodings as they are stored in queue and spool. The values are on disk: never reuse one.
const (
	encIdentity uint8 = 1
	encGzip     uint8 = 2
	encSnappy   uint8 = 3
	encZstd     uint8 = 4
)

var encodingNames = map[uint8]string{encIdentity: "identity", encGzip: "gzip", encSnappy: "snappy", encZstd: "zstd"}

func encodingOf(name string) (uint8, bool) {
	for id, n := range encodingNames {
		if n == name {
			return id, true
		}
	}
	return 0, false
}

// EncodingName is the name of a stored batch's encoding, as on the wire.
func EncodingName(id uint8) string {
	if n, ok := encodingNames[id]; ok {
		return n
	}
	return fmt.Sprintf("unknown-%d", id)
}

// maxDecoded bounds what a batch may decode to, whatever its header says: a sealed batch is about a
// MiB, and one record of it at most maxMaxLine, six times as long when escaped.
const maxDecoded = 8 << 20

// encoder compresses whole frames. It keeps its state from frame to frame, and so is used by one goroutine at a time.
type encoder struct {
	zstd *zstd.Encoder
	gzip *gzip.Writer
}

// frame appends one frame of src in the given encoding to dst.
func (e *encoder) frame(dst, src []byte, encoding uint8) ([]byte, error) {
	switch encoding {
	case encIdentity:
		return append(dst, src...), nil
	case encSnappy:
		return appendSnappy(dst, src), nil
	case encZstd:
		if e.zstd == nil {
			// The window covers a batch of the usual size; more would only cost memory.
			z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
				zstd.WithWindowSize(512<<10), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false)) // the wire has a digest, memory and spool a CRC
			if err != nil {
				return nil, fmt.Errorf("shipper: zstd: %w", err)
			}
			e.zstd = z
		}
		return e.zstd.EncodeAll(src, dst), nil
	case encGzip:
		w := bytes.NewBuffer(dst)
		if e.gzip == nil {
			g, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
			if err != nil {
				return nil, fmt.Errorf("shipper: gzip: %w", err)
			}
			e.gzip = g
		} else {
			e.gzip.Reset(w)
		}
		_, err := e.gzip.Write(src)
		if err := errors.Join(err, e.gzip.Close()); err != nil {
			return nil, fmt.Errorf("shipper: gzip: %w", err)
		}
		return w.Bytes(), nil
	}
	return nil, fmt.Errorf("shipper: no such encoding: %d", encoding)
}

// The snappy framing format (framing_format.txt): a stream identifier, then blocks of at most 64 KiB.
const (
	snappyHead       = "\xff\x06\x00\x00sNaPpY"
	snappyBlock      = 64 << 10
	snappyCompressed = 0x00
	snappyPlain      = 0x01
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendSnappy is the framing format without a Writer, which would copy everything once more.
func appendSnappy(dst, src []byte) []byte {
	dst = append(dst, snappyHead...)
	for len(src) > 0 {
		block := src[:min(len(src), snappyBlock)]
		src = src[len(block):]
		crc := crc32.Checksum(block, castagnoli)
		crc = (crc>>15 | crc<<17) + 0xa282ead8
		at := len(dst)
		dst = grow(dst, 8+snappy.MaxEncodedLen(len(block)))
		data := s2.EncodeSnappy(dst[at+8:cap(dst)], block) // half the time of snappy.Encode, for a few per cent of size
		kind := byte(snappyCompressed)
		if len(data) >= len(block)-len(block)/8 {
			kind = snappyPlain
			data = append(dst[at+8:at+8], block...)
		}
		dst = dst[:at+8+len(data)]
		binary.LittleEndian.PutUint32(dst[at:], uint32(len(data)+4)<<8|uint32(kind))
		binary.LittleEndian.PutUint32(dst[at+4:], crc)
	}
	return dst
}

func grow(dst []byte, n int) []byte {
	if cap(dst)-len(dst) >= n {
		return dst
	}
	return append(make([]byte, 0, 2*cap(dst)+n), dst...)
}

// decode undoes frame. It believes no length: what doesn't end within maxDecoded is an error.
func decode(data []byte, encoding uint8) ([]byte, error) {
	return decodeUpTo(data, encoding, maxDecoded)
}

func decodeUpTo(data []byte, encoding uint8, most int64) ([]byte, error) {
	var r io.Reader
	switch encoding {
	case encIdentity:
		return data, nil
	case encSnappy:
		r = snappy.NewReader(bytes.NewReader(data))
	case encGzip:
		g, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, fmt.Errorf("shipper: decode gzip: %w", err)
		}
		r = g
	case encZstd:
		z, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(uint64(2*most)))
		if err != nil {
			return nil, fmt.Errorf("shipper: decode zstd: %w", err)
		}
		defer z.Close()
		r = z
	default:
		return nil, fmt.Errorf("shipper: decode: no such encoding: %d", encoding)
	}
	var out bytes.Buffer
	n, err := out.ReadFrom(io.LimitReader(r, most+1))
	if err != nil {
		return nil, fmt.Errorf("shipper: decode %s: %w", EncodingName(encoding), err)
	}
	if n > most {
		return nil, fmt.Errorf("shipper: decode %s: more than %d bytes", EncodingName(encoding), most)
	}
	return out.Bytes(), nil
}

// Decode is the NDJSON of a stored batch, for those who read queue and spool.
func Decode(data []byte, encoding uint8) ([]byte, error) { return decode(data, encoding) }
