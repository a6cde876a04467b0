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

// codecs pools decoders and encoders: each holds some 100 KiB or more of state. None of them starts goroutines.
// The pools are one server's, since a zstd decoder holds channels, and those may not leave the bubble of a test.
type codecs struct{ zstdIn, gzipIn, snappyIn, zstdOut sync.Pool }

func newCodecs() *codecs {
	return &codecs{
		zstdIn: sync.Pool{New: func() any {
			d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
			if err != nil {
				panic("BUG: controlplane: zstd decoder options: " + err.Error())
			}
			return d
		}},
		gzipIn:   sync.Pool{New: func() any { return new(gzip.Reader) }},
		snappyIn: sync.Pool{New: func() any { return snappy.NewReader(nil) }},
		zstdOut: sync.Pool{New: func() any {
			e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
			if err != nil {
				panic("BUG: controlplane: zstd encoder options: " + err.Error())
			}
			return e
		}},
	}
}

// snappyMagic is the stream identifier that a framed body starts with. Another one would be another format.
const snappyMagic = "\xff\x06\x00\x00sNaPpY"

var errNotSnappy = errors.New("controlplane: not the snappy framing format")

// decoder reads a body in any encoding, several frames one after the other. done gives its state back.
func (c *codecs) decoder(encoding string, body []byte) (r io.Reader, done func(), err error) {
	src := bytes.NewReader(body)
	nothing := func() {}
	if len(body) == 0 {
		return src, nothing, nil
	}
	switch encoding {
	case encIdentity:
		return src, nothing, nil
	case encZstd:
		d := c.zstdIn.Get().(*zstd.Decoder) //nolint:forcetypeassert // the pool holds nothing else
		done := func() { _ = d.Reset(nil); c.zstdIn.Put(d) }
		return d, done, d.Reset(src)
	case encGzip:
		d := c.gzipIn.Get().(*gzip.Reader) //nolint:forcetypeassert // the pool holds nothing else
		return d, func() { c.gzipIn.Put(d) }, d.Reset(src)
	case encSnappy:
		if !bytes.HasPrefix(body, []byte(snappyMagic)) {
			return nil, nothing, errNotSnappy
		}
		d := c.snappyIn.Get().(*snappy.Reader) //nolint:forcetypeassert // the pool holds nothing else
		d.Reset(src)
		return d, func() { d.Reset(nil); c.snappyIn.Put(d) }, nil
	}
	return nil, nothing, errors.New("controlplane: unknown encoding " + encoding)
}

// encodeZstd is for the few bodies that the server makes itself.
func (c *codecs) encodeZstd(plain []byte) []byte {
	e := c.zstdOut.Get().(*zstd.Encoder) //nolint:forcetypeassert // the pool holds nothing else
	defer c.zstdOut.Put(e)
	return e.EncodeAll(plain, nil)
}
