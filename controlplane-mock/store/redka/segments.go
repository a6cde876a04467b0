package redka

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"agentd/controlplane-mock/store"
)

const (
	// inline is the largest body that is kept in logs.db itself, where it costs one fsync and no more. A larger one
	// goes to a segment: through SQLite it would be written twice, page by page (measured with 4 MiB
	// bodies: 75 MB/s and 9 CPU-s/GB, against 214 MB/s and under 1 of a plain file).
	inline = 64 << 10
	// segmentSize is when a new segment is begun: large enough that there are few files, small
	// enough that removing one gives space back in steps.
	segmentSize = 256 << 20
	segmentExt  = ".seg"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segments are the files of large bodies, one after the other without anything between them: logs.db
// says where each is. Owned by the leader of logs, but for read.
type segments struct {
	dir    string
	number int64    // of the newest
	f      *os.File // the one that is written; nil: the next body begins a new one
	size   int64
	dirty  bool // something was written and not yet synced
}

// open finds the newest segment. It is not appended to: how much of it is anybody's, only logs.db knows.
func (g *segments) open() error {
	if err := os.MkdirAll(g.dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(g.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), segmentExt)
		if n, err := strconv.ParseInt(name, 10, 64); ok && err == nil {
			g.number = max(g.number, n)
		}
	}
	return nil
}

func (g *segments) path(number int64) string {
	return filepath.Join(g.dir, fmt.Sprintf("%08d%s", number, segmentExt))
}

// write puts body at the end, to be durable after sync.
func (g *segments) write(body []byte) (number, at int64, err error) {
	if g.f == nil || g.size >= segmentSize {
		if err := g.roll(); err != nil {
			return 0, 0, err
		}
	}
	at = g.size
	g.dirty = true
	if _, err := g.f.WriteAt(body, at); err != nil {
		return 0, 0, err
	}
	g.size += int64(len(body))
	return g.number, at, nil
}

func (g *segments) roll() error {
	if err := g.sync(); err != nil {
		return err
	}
	if err := g.drop(); err != nil {
		return err
	}
	f, err := os.OpenFile(g.path(g.number+1), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrExist) {
		g.number++ // made by an attempt that failed after this; the next one takes the next number
	}
	if err != nil {
		return err
	}
	g.f, g.size, g.number = f, 0, g.number+1
	return syncDir(g.dir)
}

// sync makes what was written durable. If that fails the file isn't used any more: what a second
// fsync would answer means nothing.
func (g *segments) sync() error {
	if !g.dirty {
		return nil
	}
	if err := unix.Fdatasync(int(g.f.Fd())); err != nil {
		return fmt.Errorf("fdatasync %s: %w", g.f.Name(), err)
	}
	g.dirty = false
	return nil
}

// drop gives up the current file: the next body begins a new one.
func (g *segments) drop() error {
	if g.f == nil {
		return nil
	}
	err := g.f.Close()
	g.f, g.size, g.dirty = nil, 0, false
	return err
}

// read reads a body. May be called by anybody: a segment never changes where it was acknowledged.
func (g *segments) read(h *header) ([]byte, error) {
	f, err := os.Open(g.path(h.segment))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	body := make([]byte, h.size)
	_, err = f.ReadAt(body, h.at)
	return body, err
}

// header is what logs.db knows of a batch beside its body.
type header struct {
	store.LogBatch
	size    int64
	crc     uint32 // CRC-32C of the body
	segment int64  // 0: the body is in logs.db
	at      int64  // where it begins in its segment
}
