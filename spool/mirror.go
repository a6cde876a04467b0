package spool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is what memory is taken and given back in: the kernel's, where it has such pages.
const hugePage = 2 << 20

// mirror is memory in the place where badger has mapped one of its logs, and the file that the log is to end up in.
// badger copies entries into memory, and we write them to the file, in order, when we want them there.
//
// Writing through a shared mapping, as badger does it by itself, has three faults: each page is faulted in, marked, and
// written back by itself, so that the sync of a MiB took two to four times as long as after write(2), and the copying more than ten
// times (100 MiB on ext4, Linux 6.18); a disk that has no block for a page is a SIGBUS; and the two logs reach the disk in any order.
//
// What was flushed is given back, so that nothing may be read through badger.
type mirror struct {
	file *os.File
	mem  []byte // of the log's size; badger unmaps it in Close
	end  int64  // of the entries in mem; only commit uses it
	at   int64  // everything below is in the file; only flush uses it
	off  int64  // of mem from the beginning of a huge page
}

// newMirror puts memory over the first size bytes of what badger has mapped of the file at path, which holds a header and nothing else.
func newMirror(path string, size int64) (_ *mirror, err error) {
	// Open before the first write: a descriptor hears of every failed write-back since then, once.
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	at, err := mappingOf(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	//nolint:gosec // the address is that of a mapping which nobody else uses, and as long
	p, err := unix.MmapPtr(-1, 0, unsafe.Add(unsafe.Pointer(nil), at), uintptr(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("memory of %d bytes for %s: %w", size, filepath.Base(path), err), f.Close())
	}
	mem := unsafe.Slice((*byte)(p), size) //nolint:gosec // just mapped, with this size
	return &mirror{file: f, mem: mem, end: vlogFileHeader, at: vlogFileHeader, off: int64(at % hugePage)}, nil
}

// locate finds where badger has put the values of entries, which were committed since it looked last, and where they end.
func (m *mirror) locate(entries []entry) (int64, error) {
	log := newLogReader(bytes.NewReader(m.mem), int64(len(m.mem)))
	for end := m.end; ; {
		e, err := log.entry(end)
		if err != nil {
			return 0, fmt.Errorf("badger wrote, at %d of %s: %w", end, filepath.Base(m.file.Name()), err)
		}
		end += e.size
		switch {
		case len(entries) > 0 && bytes.Equal(e.key, entries[0].key):
			entries[0].valueAt = e.valueAt
			entries = entries[1:]
		case string(e.key) != txnEndKey:
			return 0, fmt.Errorf("badger wrote an entry that isn't due, at %d of %s", e.at, filepath.Base(m.file.Name()))
		case len(entries) == 0:
			m.end = end
			return end, nil
		}
	}
}

// flush brings everything below end to the file, and gives the memory back that lies wholly below it.
func (m *mirror) flush(end int64) error {
	if end <= m.at {
		return nil
	}
	if _, err := m.file.WriteAt(m.mem[m.at:end], m.at); err != nil {
		return err
	}
	before := m.hugeBelow(m.at)
	m.at = end
	if below := m.hugeBelow(end); below > before {
		return unix.Madvise(m.mem[before:below], unix.MADV_DONTNEED)
	}
	return nil
}

// hugeBelow is the last position at or below at where a huge page begins, or 0.
func (m *mirror) hugeBelow(at int64) int64 {
	return max((at+m.off)/hugePage*hugePage-m.off, 0)
}

func (m *mirror) close() error {
	if m == nil {
		return nil
	}
	return m.file.Close()
}

// mappingOf finds where this process has mapped f from its beginning on, to be written to. Not every file system shows one inode
// number everywhere, and not every path is shown as it was opened. So the path has to fit, or else, with the file's name, the inode
// number, which a file on another file system may have as well.
func mappingOf(f *os.File) (uintptr, error) {
	path, err := filepath.EvalSymlinks(f.Name()) // epochs are under an absolute directory
	if err != nil {
		return 0, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	inode := strconv.FormatUint(st.Ino, 10)
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, err
	}
	var byPath, byInode []uintptr
	for line := range strings.Lines(string(maps)) {
		// 7f…-7f… rw-s 00000000 fe:00 1234   /path
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 6)
		if len(fields) < 6 || fields[1] != "rw-s" || strings.Trim(fields[2], "0") != "" {
			continue
		}
		low, _, _ := strings.Cut(fields[0], "-")
		at, err := strconv.ParseUint(low, 16, 64)
		if err != nil {
			continue
		}
		switch shown := strings.TrimLeft(fields[5], " "); {
		case shown == path:
			byPath = append(byPath, uintptr(at))
		case fields[4] == inode && filepath.Base(shown) == filepath.Base(path):
			byInode = append(byInode, uintptr(at))
		}
	}
	if len(byPath) == 0 {
		byPath = byInode
	}
	if len(byPath) != 1 {
		return 0, fmt.Errorf("%s: %d of this process's mappings may be badger's of it", path, len(byPath))
	}
	return byPath[0], nil
}
