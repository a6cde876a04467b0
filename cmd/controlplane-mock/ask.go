package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// What may become of a job whose watcher is interrupted.
const (
	ask      = "ask"
	detach   = "detach"
	cancelIt = "cancel"
	watchOn  = "watch"
)

// begins says whether answer is word, or the beginning of it.
func begins(word, answer string) bool { return strings.HasPrefix(word, answer) }

// ask puts the question to the terminal: detach, cancel or watch. A second Ctrl-C, or the end of
// the input, detaches: of the two ways out that one destroys nothing.
func (r *runner) ask() (string, error) {
	tty, err := openTerminal(r.a.stdin)
	if err != nil {
		return "", err
	}
	defer tty.Close()
	in := bufio.NewReader(tty)
	for {
		fmt.Fprintf(r.a.stderr, "\n%s is still going. [d]etach and let it go on, [c]ancel it, or [w]atch on? ", r.job)
		line, err := r.readAnswer(tty, in)
		if err != nil {
			fmt.Fprintln(r.a.stderr)
			return detach, nil
		}
		switch answer := strings.ToLower(strings.TrimSpace(line)); {
		case answer == "":
		case begins(detach, answer):
			return detach, nil
		case begins(cancelIt, answer):
			return cancelIt, nil
		case begins(watchOn, answer):
			return watchOn, nil
		}
	}
}

// readAnswer reads a line, or gives up when a signal comes.
func (r *runner) readAnswer(tty *os.File, in *bufio.Reader) (string, error) {
	type answer struct {
		line string
		err  error
	}
	got := make(chan answer, 1)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		line, err := in.ReadString('\n')
		if errors.Is(err, io.EOF) && line != "" {
			err = nil
		}
		got <- answer{line, err}
	})
	select {
	case a := <-got:
		return a.line, a.err
	case s := <-r.signals:
		if err := tty.SetReadDeadline(time.Unix(1, 0)); err != nil {
			// It can't be waited for then: closing wakes the reader.
			tty.Close()
		}
		return "", fmt.Errorf("%v came while asking", s)
	}
}
