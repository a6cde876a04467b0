package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// InUseError says that another agent uses the state directory.
type InUseError struct {
	Dir string
	PID int // 0 = not known
}

func (e *InUseError) Error() string {
	who := "another agent"
	if e.PID > 0 {
		who = fmt.Sprintf("another agent (pid %d)", e.PID)
	}
	return fmt.Sprintf("agent: %s uses the state directory %s: stop it, or give this one a state_dir of its own", who, e.Dir)
}

// takeDir takes the state directory for this process, until release. The kernel gives it up when the process ends, however it does.
func takeDir(dir string) (release func() error, err error) {
	path := filepath.Join(dir, "agentd.pid")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("agent: state directory %s can't be written: %w; it must belong to the agent's user", dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		e := &InUseError{Dir: dir}
		var text [20]byte
		if n, _ := f.ReadAt(text[:], 0); n > 0 {
			e.PID, _ = strconv.Atoi(string(bytes.TrimSpace(text[:n])))
		}
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, e
		}
		return nil, fmt.Errorf("agent: %s: %w", path, err)
	}
	if err := errors.Join(f.Truncate(0), writePID(f)); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("agent: state directory %s can't be written: %w", dir, err)
	}
	return f.Close, nil
}

// writePID needs no sync: the pid is for a message while this process lives.
func writePID(f *os.File) error {
	_, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

// makeDir makes a directory for the agent alone and says what to do where that fails.
func makeDir(key, dir string) error {
	mode := os.FileMode(0o700)
	if key == "state_dir" && os.Geteuid() == 0 {
		// Jobs that run as somebody else (`user:`) have their work directories in it: they may pass through, not
		// look. Everything else in it is closed to them by its own mode.
		mode = 0o711
	}
	if err := os.MkdirAll(dir, mode); err != nil {
		return fmt.Errorf("agent: %s %s can't be made: %w; make it as root and give it to the agent's user "+
			"(install -d -m 0700 -o agentd %s), or set %s to a directory that this user may write", key, dir, err, dir, key)
	}
	probe, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		if errors.Is(err, unix.ENOSPC) {
			return nil // a full disk is met later, where it can be waited for
		}
		return fmt.Errorf("agent: %s %s can't be written: %w; it must belong to the agent's user, on a file system that is not read-only", key, dir, err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}
