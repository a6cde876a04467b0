package spool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	dirMode  = 0o700 // logs hold what jobs print
	fileMode = 0o600
)

// fsSpace is what the file system says of itself, in bytes. free is what an ordinary user may have.
func fsSpace(dir string) (free, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, fmt.Errorf("spool: statfs: %w", err)
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

// isFull says whether an error means that space, quota or inodes are used up: it passes.
func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, ErrFull)
}

// allocate gives a file blocks for its first size bytes, so that writing to them can't fail for lack
// of space. With grow it also gets that length. It is not synced.
func allocate(path string, size int64, grow bool) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var mode uint32 = unix.FALLOC_FL_KEEP_SIZE
	if grow {
		mode = 0
	}
	for {
		err = unix.Fallocate(int(f.Fd()), mode, 0, size)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = writeZeros(f, size)
	}
	if err != nil {
		return fmt.Errorf("allocate %s: %w", filepath.Base(path), err)
	}
	return nil
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// writeZeros allocates where fallocate isn't known: over what is zero anyway, being a hole.
func writeZeros(f *os.File, size int64) error {
	const step = 1 << 20
	info, err := f.Stat()
	if err != nil {
		return err
	}
	b, zero := make([]byte, step), make([]byte, step)
	for at := int64(0); at < size; at += step {
		n := min(step, size-at)
		clear(b)
		if at < info.Size() {
			if _, err := f.ReadAt(b[:n], at); err != nil && !errors.Is(err, io.EOF) {
				return err
			}
		}
		if !allZero(b[:n]) { // the first page has badger's header, and is allocated
			continue
		}
		if _, err := f.WriteAt(zero[:n], at); err != nil {
			return err
		}
	}
	return nil
}

// punch gives the blocks at the end of a file back to the file system as far as they hold nothing
// but zeros, and not below a position, so that not a byte of the file changes. It is thrift only:
// failing is harmless.
func punch(path string, from int64) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || from >= info.Size() {
		return
	}
	const page = 64 << 10
	b := make([]byte, 1<<20)
	for at := from; at < info.Size(); {
		n, err := f.ReadAt(b, at)
		if n == 0 && err != nil {
			return
		}
		at += int64(n)
		if last := lastNonZero(b[:n]); last >= 0 {
			from = at - int64(n) + int64(last) + 1
		}
	}
	if from = (from + page - 1) / page * page; from < info.Size() {
		_ = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, info.Size()-from)
	}
}

func lastNonZero(b []byte) int {
	for i, c := range slices.Backward(b) {
		if c != 0 {
			return i
		}
	}
	return -1
}

// diskUsage adds up the allocated blocks of a directory's files. What vanishes meanwhile counts as nothing.
func diskUsage(dir string) int64 {
	var sum int64
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil //nolint:nilerr // see above
		}
		if info, err := d.Info(); err == nil {
			if st, ok := sysStat(info); ok {
				sum += st.Blocks * 512
			}
		}
		return nil
	})
	return sum
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// replaceFile writes a file so that a reader, or a start after a crash, sees the old or the new one.
// Only with durable set does a power cut keep the new one.
func replaceFile(path string, data []byte, durable bool) (err error) {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	if durable {
		return syncDir(filepath.Dir(path))
	}
	return nil
}
