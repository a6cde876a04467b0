package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// tee writes a stream of the job to where the agent reads, and to a truth file.
type tee struct {
	pipe  io.Writer
	truth *bufio.Writer
	file  *os.File
	lines *atomic.Int64
}

func newTee(dir, stream string, pipe io.Writer, lines *atomic.Int64) (*tee, error) {
	f, err := os.Create(filepath.Join(dir, stream))
	if err != nil {
		return nil, err
	}
	return &tee{pipe, bufio.NewWriterSize(f, 1<<20), f, lines}, nil
}

func (t *tee) Write(p []byte) (int, error) {
	n, err := t.pipe.Write(p)
	for _, c := range p[:n] {
		if c == '\n' {
			t.lines.Add(1)
		}
	}
	if _, terr := t.truth.Write(p[:n]); terr != nil { // what the pipe took is what was printed
		return n, terr
	}
	return n, err
}

func (t *tee) close() error { return errors.Join(t.truth.Flush(), t.file.Close()) }

// runJob is the job side: demo job KIND TRUTH-DIR [ARG…]. It returns the exit code.
func runJob(args []string) (int, error) {
	if len(args) < 2 {
		return 2, errors.New("usage: demo job numbers|ticks|command TRUTH-DIR [ARG...]")
	}
	kind, dir, args := args[0], args[1], args[2:]
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 1, err
	}
	var lines atomic.Int64
	out, err := newTee(dir, "out", os.Stdout, &lines)
	if err != nil {
		return 1, err
	}
	errs, err := newTee(dir, "err", os.Stderr, &lines)
	if err != nil {
		return 1, err
	}
	stop := make(chan struct{})
	var progress sync.WaitGroup
	progress.Go(func() { report(dir, &lines, stop) })
	code := 1
	switch kind {
	case "numbers":
		code, err = numbers(args, out, errs)
	case "ticks":
		err = ticks(out)
		code = 143 // ended by SIGTERM, as a shell would say it
	case "command":
		code, err = command(args, out, errs)
	default:
		err = fmt.Errorf("no job of kind %q", kind)
	}
	close(stop)
	progress.Wait()
	return code, errors.Join(err, out.close(), errs.close())
}

// report leaves the number of lines made so far where the demo can see it.
func report(dir string, lines *atomic.Int64, stop <-chan struct{}) {
	f, err := os.Create(filepath.Join(dir, "lines"))
	if err != nil {
		return
	}
	defer f.Close()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for done := false; !done; {
		select {
		case <-tick.C:
		case <-stop:
			done = true
		}
		if _, err := fmt.Fprintf(io.NewOffsetWriter(f, 0), "%020d\n", lines.Load()); err != nil {
			return
		}
	}
}

// numbers prints N numbered lines as fast as it can, every third to stderr.
func numbers(args []string, out, errs io.Writer) (int, error) {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return 2, err
	}
	w, e := bufio.NewWriterSize(out, 32<<10), bufio.NewWriterSize(errs, 32<<10)
	for i := 1; i <= n; i++ {
		to := w
		if i%3 == 0 {
			to = e
		}
		if _, err := fmt.Fprintf(to, "n=%d the quick brown fox jumps over the lazy dog, and nobody loses count\n", i); err != nil {
			return 1, err
		}
	}
	return 0, errors.Join(w.Flush(), e.Flush())
}

// ticks prints a line every 10 ms until SIGTERM, then says goodbye and ends.
func ticks(out io.Writer) error {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for i := 1; ; i++ {
		select {
		case <-term:
			_, err := fmt.Fprintf(out, "asked to stop after %d ticks: cleaned up\n", i-1)
			return err
		case <-tick.C:
			if _, err := fmt.Fprintf(out, "tick %d\n", i); err != nil {
				return err
			}
		}
	}
}

// command runs a program in a folder: demo job command TRUTH-DIR FOLDER CMD [ARG…].
func command(args []string, out, errs io.Writer) (int, error) {
	cmd := exec.Command(args[1], args[2:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = args[0], out, errs
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 127, err
	}
	return 0, nil
}
