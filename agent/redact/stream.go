package redact

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// holdTime is how long a beginning of fewer than window bytes is held back: a person watches a progress dot.
	holdTime = 250 * time.Millisecond
	// readSize is one read: a pipe holds 64 KiB.
	readSize = 64 << 10
)

// Filter returns a sink that reads a stream, replaces the set's secrets, and lets dst read the rest. While the
// set is empty, dst may read a pipe itself: see Straight.
func (s *Set) Filter(dst io.ReaderFrom) io.ReaderFrom { return &filter{set: s, dst: dst} }

type filter struct {
	set *Set
	dst io.ReaderFrom
}

// piece is what one read brought.
type piece struct {
	b   []byte
	err error
}

// ReadFrom reads r to its end and returns how many bytes it brought. Bytes that hold a secret are in this
// process's own memory only; what dst gets is clean.
func (f *filter) ReadFrom(r io.Reader) (n int64, err error) {
	out, in := io.Pipe()
	var src io.Reader = out
	var direct *Straight
	if file, ok := r.(*os.File); ok && f.set.Empty() && neverBlocks(file) {
		direct = &Straight{set: f.set, file: file, filtered: out, asked: make(chan struct{})}
		src = direct
	}
	var dstN int64
	var dstErr error
	dstOver := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(dstOver)
		dstN, dstErr = f.dst.ReadFrom(src)
		out.CloseWithError(io.ErrClosedPipe) // whoever still writes learns that nobody reads
	})
	if direct != nil {
		select {
		case <-direct.asked:
		case <-dstOver:
			wg.Wait()
			return dstN, dstErr
		}
	}
	n, err = f.filter(r, in)
	in.CloseWithError(err) // nil: io.EOF
	wg.Wait()
	if errors.Is(err, io.ErrClosedPipe) {
		err = nil
	}
	if direct != nil {
		n += direct.n
	}
	return n, errors.Join(err, dstErr)
}

// filter writes what r brings, filtered, to w.
func (f *filter) filter(r io.Reader, w io.Writer) (int64, error) {
	var wg sync.WaitGroup
	defer wg.Wait()
	pieces, spent := make(chan piece), make(chan []byte, 2)
	spent <- make([]byte, readSize)
	spent <- make([]byte, readSize)
	done := make(chan struct{})
	defer close(done)
	wg.Go(func() { readPieces(r, pieces, spent, done) })
	st := stream{set: f.set, w: w}
	return st.run(pieces, spent)
}

// neverBlocks says whether reads of the descriptor itself return at once, so that none of them holds Add up.
func neverBlocks(file *os.File) bool {
	conn, err := file.SyscallConn()
	if err != nil {
		return false
	}
	flags := 0
	if err := conn.Control(func(fd uintptr) { flags, _ = unix.FcntlInt(fd, unix.F_GETFL, 0) }); err != nil {
		return false
	}
	return flags&unix.O_NONBLOCK != 0
}

// ended tells a stream's end from a fault. A pipe that its owner abandons (a deadline in the past, or Close) has ended.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed)
}

// readPieces reads r until it ends, into buffers that come back when they are spent.
func readPieces(r io.Reader, pieces chan<- piece, spent <-chan []byte, done <-chan struct{}) {
	for {
		var b []byte
		select {
		case b = <-spent:
		case <-done:
			return
		}
		n, err := r.Read(b[:cap(b)])
		select {
		case pieces <- piece{b[:n], err}:
		case <-done:
			return
		}
		if err != nil {
			return
		}
	}
}

// stream is the state of one filtered stream. It belongs to one goroutine.
type stream struct {
	set  *Set
	w    io.Writer
	held []byte // may be the beginning of a secret
	sent int    // how many of held's first bytes were shown already, being too few to hold
}

func (st *stream) run(pieces <-chan piece, spent chan<- []byte) (n int64, err error) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	for {
		if short := len(st.held) < window && len(st.held) > st.sent; short {
			timer.Reset(holdTime)
		}
		select {
		case <-timer.C:
			if _, err := st.w.Write(st.held[st.sent:]); err != nil {
				return n, err
			}
			st.sent = len(st.held)
			continue
		case p := <-pieces:
			timer.Stop()
			n += int64(len(p.b))
			if err := st.feed(p.b); err != nil {
				return n, err
			}
			if p.err != nil {
				err := st.end()
				if !ended(p.err) {
					err = errors.Join(p.err, err)
				}
				return n, err
			}
			spent <- p.b
		}
	}
}

// feed takes more bytes, which the caller keeps.
func (st *stream) feed(b []byte) error {
	m := st.set.current.Load()
	if len(st.held) > 0 {
		b = append(st.held, b...)
	}
	at, sent := 0, st.sent
	for {
		i, length := m.find(b, at)
		if err := st.show(b, at, i, sent); err != nil {
			return err
		}
		if length == 0 {
			st.sent = max(0, sent-i)
			st.held = append([]byte(nil), b[i:]...)
			return nil
		}
		if _, err := io.WriteString(st.w, mark); err != nil {
			return err
		}
		at, sent = i+length, max(sent, i+length)
	}
}

// end shows what was held: nothing more will come.
func (st *stream) end() error {
	m, b, sent := st.set.current.Load(), st.held, st.sent
	for at := 0; ; {
		i, length := m.final(b, at)
		if err := st.show(b, at, i, sent); err != nil || length == 0 {
			return err
		}
		if _, err := io.WriteString(st.w, mark); err != nil {
			return err
		}
		at, sent = i+length, max(sent, i+length)
	}
}

// show passes b[from:to] on, but for its first `sent` bytes of b, which were shown before.
func (st *stream) show(b []byte, from, to, sent int) error {
	from = max(from, sent)
	if from >= to {
		return nil
	}
	_, err := st.w.Write(b[from:to])
	return err
}
