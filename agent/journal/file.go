package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// device is the file under the journal; a test puts a failing one in its place.
type device interface {
	io.ReaderAt
	io.WriterAt
	Sync() error // data only
	Close() error
}

// disk is the real device.
type disk struct{ *os.File }

func (d disk) Sync() error { return unix.Fdatasync(int(d.Fd())) }

// openDisk opens the file for this process alone.
func openDisk(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0) //nolint:gosec // the operator's state directory
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrInUse
		}
		return nil, fmt.Errorf("flock: %w", err)
	}
	return f, nil
}

// create makes the file with everything allocated, under another name until it is whole.
func create(path string, slots int) error {
	temp := path + ".new"
	f, err := os.OpenFile(temp, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	err = allocate(f, 0, halfOffset(slots, 0))
	if err == nil {
		_, err = f.WriteAt(encodeHeader(slots), 0)
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		_ = os.Remove(temp) // nothing was ever stored in it
		return err
	}
	return syncDir(filepath.Dir(path))
}

// allocate makes sure of the range by writing it: reserved but unwritten extents can still need a block when
// they are first written. The reservation comes first, so that a full disk shows before half of it is written.
func allocate(f *os.File, from, to int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, from, to-from)
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("reserve %d bytes: %w", to-from, err)
	}
	zeros := make([]byte, halfSize)
	for at := from; at < to; {
		n, err := f.WriteAt(zeros[:min(int64(len(zeros)), to-at)], at)
		if err != nil {
			return fmt.Errorf("reserve %d bytes: %w", to-from, err)
		}
		at += int64(n)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// setAside copies a range of the file to quarantine/ beside it.
func setAside(path string, f io.ReaderAt, name string, from, size int64) (string, error) {
	dir := filepath.Join(filepath.Dir(path), "quarantine")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	file := filepath.Join(dir, fmt.Sprintf("%s-%s-%d", filepath.Base(path), name, time.Now().UnixNano()))
	out, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = io.Copy(out, io.NewSectionReader(f, from, size))
	if e := out.Close(); err == nil {
		err = e
	}
	if err != nil {
		_ = os.Remove(file) // an incomplete copy; the original is still there
		return "", err
	}
	return file, nil
}

// newHalfReader reads one half of a slot.
func newHalfReader(d io.ReaderAt, slot, half int) io.Reader {
	return io.NewSectionReader(d, halfOffset(slot, half), halfSize)
}
