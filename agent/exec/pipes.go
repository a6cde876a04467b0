package exec

import (
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pipeSize is what a pipe holds: four times the kernel's default halves the switches between a job that prints as fast
// as it can and its reader. What it holds when the agent is killed is lost with the job, which is killed as well.
const pipeSize = 256 << 10

// pipe carries one of the job's streams.
type pipe struct {
	read  *os.File
	write *os.File      // ours until the shim has it
	done  chan struct{} // closed when nobody reads any more
}

// openPipe makes a pipe whose read end can be given a deadline and whose write end blocks, as programs expect of their stdout.
func openPipe(owner *account) (*pipe, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	if owner != nil { // so that the job may open /dev/stdout, which is the pipe by its name
		_ = unix.Fchown(fds[1], int(owner.cred.UID), int(owner.cred.GID))
	}
	_ = unix.SetNonblock(fds[0], true)
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize) // refused above the user's limit: then it stays at 64 KiB
	return &pipe{
		read:  os.NewFile(uintptr(fds[0]), "job output"),
		write: os.NewFile(uintptr(fds[1]), "job output"),
		done:  make(chan struct{}),
	}, nil
}

// copy hands the stream to its reader and returns at the end of file, or once the pipe was abandoned.
func (p *pipe) copy(dst io.ReaderFrom) {
	defer close(p.done)
	if dst != nil {
		_, _ = dst.ReadFrom(p.read) // its errors are its own to report
	}
	// A reader that gave up must not end the job by SIGPIPE.
	_, _ = io.Copy(io.Discard, struct{ io.Reader }{p.read})
}

// state: does any process still hold the write end, and how much waits to be read?
func (p *pipe) state() (held bool, waiting int) {
	raw, err := p.read.SyscallConn()
	if err != nil {
		return false, 0
	}
	_ = raw.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, _ = unix.Poll(fds, 0)
		held = fds[0].Revents&unix.POLLHUP == 0
		waiting, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
	})
	return held, waiting
}

// finish waits for the reader after the tree has ended. With no writer left the end of file is certain, and the reader may take
// its time: it may be held up by back-pressure, and nothing that was printed is dropped. Else somebody outside the tree
// has the write end; the pipe is abandoned when it is empty, or at the deadline. True = abandoned.
func (p *pipe) finish(deadline time.Time) bool {
	const look = 10 * time.Millisecond
	for {
		held, waiting := p.state()
		if !held {
			<-p.done
			return false
		}
		if waiting == 0 || time.Now().After(deadline) {
			_ = p.read.SetReadDeadline(time.Now())
			<-p.done
			return true
		}
		select {
		case <-p.done:
			return false
		case <-time.After(look):
		}
	}
}

// payload is the job's stdin: a file in memory, so that neither a job that reads nothing nor one that
// reads slowly holds anything up.
func payload(data []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("payload", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "payload")
	if _, err := f.Write(data); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
