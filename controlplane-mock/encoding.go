package controlplane

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// The content encodings of a log body.
const (
	encIdentity = "identity"
	encGzip     = "gzip"
	encZstd     = "zstd"
	encSnappy   = "snappy" // the framing format
)

// maxWindow is what a zstd frame may ask a decoder to remember: RFC 9659's limit for the content coding.
// It bounds memory, not the size that comes out; that is counted as it is read.
const maxWindow = 8 << 20

// Decoders are pooled: each holds some 100 KiB or more of state. None of them starts goroutines.
var (
	zstdDecoders = sync.Pool{New: func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			panic("BUG: controlplane: zstd decoder options: " + err.Error())
		}
		return d
	}}
	gzipDecoders   = sync.Pool{New: func() any { return new(gzip.Reader) }}
	snappyDecoders = sync.Pool{New: func() any { return snappy.NewReader(nil) }}
	zstdEncoders   = sync.Pool{New: func() any {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
		if err != nil {
			panic("BUG: controlplane: zstd encoder options: " + err.Error())
		}
		return e
	}}
)

// snappyMagic is the stream identifier that a framed body starts with. Another one would be another format.
const snappyMagic = "\xff\x06\x00\x00sNaPpY"

var errNotSnappy = errors.New("controlplane: not the snappy framing format")

// decoder reads a body in any encoding, several frames one after the other. done gives its state back.
func decoder(encoding string, body []byte) (r io.Reader, done func(), err error) {
	src := bytes.NewReader(body)
	nothing := func() {}
	if len(body) == 0 {
		return src, nothing, nil
	}
	switch encoding {
	case encIdentity:
		return src, nothing, nil
	case encZstd:
		d := zstdDecoders.Get().(*zstd.Decoder) //nolint:forcetypeassert // the pool holds nothing else
		done := func() { _ = d.Reset(nil); zstdDecoders.Put(d) }
		return d, done, d.Reset(src)
	case encGzip:
		d := gzipDecoders.Get().(*gzip.Reader) //nolint:forcetypeassert // the pool holds nothing else
		return d, func() { gzipDecoders.Put(d) }, d.Reset(src)
	case encSnappy:
		if !bytes.HasPrefix(body, []byte(snappyMagic)) {
			return nil, nothing, errNotSnappy
		}
		d := snappyDecoders.Get().(*snappy.Reader) //nolint:forcetypeassert // the pool holds nothing else
		d.Reset(src)
		return d, func() { d.Reset(nil); snappyDecoders.Put(d) }, nil
	}
	return nil, nothing, errors.New("controlplane: unknown encoding " + encoding)
}

// encodeZstd is for the few bodies that the server makes itself.
func encodeZstd(plain []byte) []byte {
	e := zstdEncoders.Get().(*zstd.Encoder) //nolint:forcetypeassert // the pool holds nothing else
	defer zstdEncoders.Put(e)
	return e.EncodeAll(plain, nil)
}
