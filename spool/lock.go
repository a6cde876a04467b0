package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const lockName = "LOCK"

// LockedError says who holds the directory.
type LockedError struct {
	Dir string
	PID int // 0 = the holder didn't say
}

func (e *LockedError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("spool: %s is in use by another process", e.Dir)
	}
	return fmt.Sprintf("spool: %s is in use by process %d", e.Dir, e.PID)
}

// lockDir takes the directory for this process. The kernel gives it back when the process ends,
// however it ends. The pid in the file is for people: a full disk may keep it from being written.
func lockDir(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("flock: %w", err)
		}
		b := make([]byte, 32)
		n, _ := f.ReadAt(b, 0)
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b[:n])))
		return nil, &LockedError{Dir: dir, PID: pid}
	}
	text := []byte(strconv.Itoa(os.Getpid()) + "\n")
	if _, err := f.WriteAt(text, 0); err == nil {
		_ = f.Truncate(int64(len(text)))
	}
	return f, nil
}
