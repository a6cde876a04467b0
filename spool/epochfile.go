package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// damagedName marks an epoch of which something couldn't be read.
const damagedName = "DAMAGED"

func writeIndex(dir string, ix *index) error {
	return replaceFile(filepath.Join(dir, indexName), ix.encode(), true)
}

// openIndex reads the INDEX of an epoch; an error that isn't fs.ErrNotExist means that it is damaged.
func openIndex(dir string, entries bool) (*index, error) {
	f, err := os.Open(filepath.Join(dir, indexName))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	ix, err := readIndex(f, info.Size(), entries)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", indexName, err)
	}
	return ix, nil
}

// loadEpoch opens an epoch's value log for reading, with its entries from the INDEX or, without a
// good one, from a scan. It changes nothing, and works on an epoch that another process writes.
// A value log that is gone is no error: everything in it is entered as lost, and file is nil.
func loadEpoch(dir string) (file *os.File, ix *index, err error) {
	ix, err = openIndex(dir, true)
	if err != nil {
		res, serr := scanEpoch(dir)
		if serr != nil {
			return nil, nil, serr
		}
		ix = res.ix
	}
	file, err = os.Open(filepath.Join(dir, vlogName))
	var size int64
	switch {
	case errors.Is(err, fs.ErrNotExist):
		// An empty file in its place keeps readers simple.
		if file, err = os.Open(os.DevNull); err != nil {
			return nil, nil, err
		}
	case err != nil:
		return nil, nil, err
	default:
		info, err := file.Stat()
		if err != nil {
			return nil, nil, errors.Join(err, file.Close())
		}
		size = info.Size()
	}
	for _, refs := range ix.refs {
		for i := range refs {
			if refs[i].valueLen < valueHeader || refs[i].valueAt+refs[i].valueLen > size {
				refs[i].lost = true
			}
		}
	}
	return file, ix, nil
}

// addLost enters what other holds and ix doesn't, as lost. It returns how many.
func (ix *index) addLost(other *index) int {
	missing := 0
	for attempt, refs := range other.refs {
		have := map[[2]int64]bool{}
		for _, r := range ix.refs[attempt] {
			have[[2]int64{r.first, r.next}] = true
		}
		for _, r := range refs {
			if !have[[2]int64{r.first, r.next}] {
				ix.add(attempt, ref{first: r.first, next: r.next, decoded: r.decoded, stored: r.stored, lost: true})
				missing++
			}
		}
		if sp := other.spans[attempt]; sp != nil && ix.spans[attempt] != nil && ix.spans[attempt].meta == nil {
			ix.spans[attempt].meta = sp.meta
		}
	}
	if missing > 0 {
		ix.sort()
	}
	return missing
}

// release gives all of a file's blocks back while somebody has it mapped: its size stays, so that
// no mapping reaches beyond its end.
func release(path string) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 0 {
		_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, info.Size())
	}
}
