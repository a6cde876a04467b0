package shipper

import (
	"errors"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentd/shipper/internal/queue"
)

// reader is one stream of a log, as an io.ReaderFrom.
type reader struct {
	log   *Log
	which int
}

// ReadFrom reads src into the log until EOF, and waits where memory is full. From a pipe it reads
// straight into the queue file, so that what has left the pipe outlives a kill. It returns
// ErrStopped when the shipper has ended and could take no more.
func (r *reader) ReadFrom(src io.Reader) (int64, error) {
	r.log.ended[r.which].Store(false)
	var n int64
	var err error
	switch src := src.(type) {
	case *os.File:
		n, _, err = r.fromFile(src, nil)
	case guarded:
		var more bool
		if n, more, err = r.fromFile(src.File(), src); more {
			var rest int64
			rest, err = r.fromReader(src)
			n += rest
		}
	default:
		n, err = r.fromReader(src)
	}
	r.log.streamEnded(r.which)
	return n, err
}

// guarded is a file that may be read straight into the queue for as long as its owner allows it.
type guarded interface {
	io.Reader // what to read once Begin has said no
	File() *os.File
	Begin() bool // asked before each read of File. After a yes, End follows; nothing in between blocks
	End(n int)
}

// fromFile reads a descriptor. Where it can be polled, as a pipe can, nothing is held while it waits for
// data. more: g (nil = nobody to ask) doesn't allow it any longer, and the stream goes on.
func (r *reader) fromFile(f *os.File, g guarded) (total int64, more bool, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	raw := r.log.q.Raw(r.which)
	for {
		var n int
		var failed error
		full := false
		err := conn.Read(func(fd uintptr) bool {
			if g != nil && !g.Begin() {
				n, full, failed, more = 0, false, nil, true
				return true
			}
			n, full, failed = readOnce(raw, int(fd))
			if g != nil {
				g.End(n)
			}
			return !errors.Is(failed, unix.EAGAIN)
		})
		total += int64(n)
		switch {
		case more && err == nil:
			return total, true, nil
		case err != nil:
			raw.Abort()
			if errors.Is(err, os.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
				return total, false, nil // the runner abandoned the pipe, and says so itself
			}
			return total, false, err
		case full:
			if err := r.log.makeRoom(r.which); err != nil {
				return total, false, err
			}
		case errors.Is(failed, io.EOF):
			return total, false, nil
		case failed != nil:
			return total, false, &os.PathError{Op: "read", Path: f.Name(), Err: failed}
		default:
			r.log.wasRead(n)
			r.log.keepPace()
		}
	}
}

// readOnce reads what the pipe holds into the queue. The pipe is asked first how much that is: an
// only reader gets just as much, which is what lets a later process tell whether this read
// happened (package queue). An empty pipe is read all the same, for EOF.
func readOnce(raw *queue.Raw, fd int) (n int, full bool, err error) {
	room, err := raw.Space(false)
	if err != nil {
		return 0, true, nil //nolint:nilerr // the only error is a full memory
	}
	holds, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	if err != nil || holds < 1 {
		holds = 1
	}
	space := raw.Intend(min(holds, room), time.Now().UnixMicro())
	for {
		n, err = syscall.Read(fd, space)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if n <= 0 {
		raw.Abort()
		if err == nil {
			err = io.EOF
		}
		return 0, false, err
	}
	raw.Commit(n)
	return n, false, nil
}

// fromReader reads what isn't a file: through a copy, so that a reader that blocks holds nothing of the queue.
func (r *reader) fromReader(src io.Reader) (total int64, err error) {
	own := make([]byte, 32<<10)
	for {
		n, err := src.Read(own)
		if n > 0 {
			if err := r.log.write(r.which, own[:n]); err != nil {
				return total, err
			}
			total += int64(n)
		}
		switch {
		case errors.Is(err, io.EOF):
			return total, nil
		case err != nil:
			return total, err
		}
	}
}

// write copies p into the queue.
func (l *Log) write(which int, p []byte) error {
	raw := l.q.Raw(which)
	for len(p) > 0 {
		room, err := raw.Space(false)
		if err != nil {
			if err := l.makeRoom(which); err != nil {
				return err
			}
			continue
		}
		n := min(room, len(p))
		raw.Put(p[:n], time.Now().UnixMicro())
		p = p[n:]
		l.wasRead(n)
		l.keepPace()
	}
	return nil
}
