package spool

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/klauspost/compress/zstd"
)

// An archive is a zstd-compressed tar: for each attempt an entry <n>/attempt.json (AttemptInfo), then
// its batches and holes in order as <n>/<first>, each in the frame format of the admin stream.

// ArchiveWriter writes one.
type ArchiveWriter struct {
	z *zstd.Encoder
	t *tar.Writer
	n int
}

// NewArchive begins an archive.
func NewArchive(w io.Writer) (*ArchiveWriter, error) {
	// Batches are compressed already; the fastest level finds what repeats between their headers.
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, fmt.Errorf("spool: archive: %w", err)
	}
	return &ArchiveWriter{z: z, t: tar.NewWriter(z)}, nil
}

// Add writes an attempt. progress is told of every batch's bytes; nil = nobody is.
func (a *ArchiveWriter) Add(info AttemptInfo, batches iter.Seq2[Batch, error], progress func(int)) error {
	a.n++
	head, err := json.Marshal(info)
	if err != nil {
		return fmt.Errorf("spool: archive: %w", err)
	}
	if err := a.entry(fmt.Sprintf("%06d/attempt.json", a.n), head, time.Now()); err != nil {
		return err
	}
	for b, err := range batches {
		h, isHole := errors.AsType[*HoleError](err)
		if err != nil && !isHole {
			return err
		}
		first, at := b.First, b.Stored
		if isHole {
			first, at = h.First, time.Now()
		}
		if err := a.entry(fmt.Sprintf("%06d/%020d", a.n, first), appendFrame(nil, b, err), at); err != nil {
			return err
		}
		if progress != nil {
			progress(len(b.Data))
		}
	}
	return nil
}

func (a *ArchiveWriter) entry(name string, body []byte, at time.Time) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(body)), Mode: fileMode, ModTime: at.Truncate(time.Second)}
	if err := a.t.WriteHeader(h); err != nil {
		return fmt.Errorf("spool: archive: %w", err)
	}
	if _, err := a.t.Write(body); err != nil {
		return fmt.Errorf("spool: archive: %w", err)
	}
	return nil
}

// Close ends the archive; without it, it is cut.
func (a *ArchiveWriter) Close() error {
	if err := errors.Join(a.t.Close(), a.z.Close()); err != nil {
		return fmt.Errorf("spool: archive: %w", err)
	}
	return nil
}

// Archive reads one. Open is called for every pass over it.
type Archive struct {
	Open func() (io.ReadCloser, error)
}

// Attempts lists what the archive holds, in its order.
func (a *Archive) Attempts(context.Context) ([]AttemptInfo, error) {
	var out []AttemptInfo
	err := a.walk(func(info AttemptInfo, f *streamFrame) bool {
		if f == nil {
			out = append(out, info)
		}
		return true
	})
	return out, err
}

// Batches goes through one attempt from a number on.
func (a *Archive) Batches(_ context.Context, id string, from int64) iter.Seq2[Batch, error] {
	return func(yield func(Batch, error) bool) {
		stopped := false
		err := a.walk(func(info AttemptInfo, f *streamFrame) bool {
			if info.Attempt != id || f == nil {
				return true
			}
			if h, ok := errors.AsType[*HoleError](f.err); ok && h.Next <= from || f.err == nil && f.batch.Next() <= from {
				return true
			}
			stopped = !yield(f.batch, f.err)
			return !stopped
		})
		if err != nil && !stopped {
			yield(Batch{}, err)
		}
	}
}

// walk calls each with a nil frame for an attempt's head, and with each of its frames after that.
func (a *Archive) walk(each func(AttemptInfo, *streamFrame) bool) (err error) {
	f, err := a.Open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := zstd.NewReader(f, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
	if err != nil {
		return fmt.Errorf("spool: archive: %w", err)
	}
	defer z.Close()
	var info AttemptInfo
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("spool: archive: %w", err)
		}
		if len(h.Name) > 13 && h.Name[7:] == "attempt.json" {
			info = AttemptInfo{}
			if err := json.NewDecoder(io.LimitReader(t, 1<<20)).Decode(&info); err != nil {
				return fmt.Errorf("spool: archive: %s: %w", h.Name, err)
			}
			if !each(info, nil) {
				return nil
			}
			continue
		}
		fr, err := readFrame(t)
		if err != nil {
			return fmt.Errorf("spool: archive: %s: %w", h.Name, err)
		}
		if !each(info, &fr) {
			return nil
		}
	}
}
