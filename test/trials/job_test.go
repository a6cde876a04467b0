package trials

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// jobArg makes this test binary the job that the agent runs; its work is the payload.
const jobArg = "trial-job"

// work is what a job prints: lines of Size bytes each, n=1…Lines.
type work struct {
	Lines int64 // 0: without end
	Size  int   // bytes of a line, its newline included
	Burst int   // lines written at a time
	Pause int   // ms between bursts
	Both  bool  // every third line goes to stderr
	Hold  bool  // don't begin before the file Truth+".go" is there
	Wait  bool  // don't end before it is there
	Truth string
}

// appendLine makes line n: its number, and letters that depend on nothing else and hardly compress.
func appendLine(dst []byte, n int64, size int) []byte {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	end := len(dst) + size - 1
	dst = append(dst, "n="...)
	dst = strconv.AppendInt(dst, n, 10)
	dst = append(dst, ' ')
	x := uint64(n)*0x9e3779b97f4a7c15 | 1
	for len(dst) < end {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		for v, k := x, 0; k < 10 && len(dst) < end; v, k = v>>6, k+1 {
			dst = append(dst, letters[v&63])
		}
	}
	return append(dst, '\n')
}

// truth is what the job says of itself, in a file that outlives it.
type truth struct {
	Written int64 // bytes that the pipes have taken
	Read    int64 // of those on stdout, the ones that have left the pipe again: the agent has read them
	Printed bool  // all lines
	Broken  bool  // the agent died, and Read is final
	Over    bool  // it says no more: all is printed, or the agent died, and may have taken it along before it could say so
}

func (w work) truth(t *testing.T) (tr truth) {
	t.Helper()
	b, err := os.ReadFile(w.Truth)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(b) < 24 {
		return tr
	}
	if err != nil {
		t.Fatal(err)
	}
	tr = truth{
		Written: int64(binary.LittleEndian.Uint64(b)), Read: int64(binary.LittleEndian.Uint64(b[8:])),
		Printed: b[16] == stagePrinted, Broken: b[16] == stageBroken,
	}
	tr.Over = tr.Printed || tr.Broken || zombie(int(binary.LittleEndian.Uint32(b[20:])))
	return tr
}

// How far the job is.
const (
	stagePrints = iota
	stagePrinted
	stageBroken
)

// note writes truth down. The page cache has it whatever becomes of the process.
func note(f io.WriterAt, written int64, stage byte) error {
	// What the pipe holds can be asked for after its reader was killed, too.
	waiting, err := unix.IoctlGetInt(1, unix.TIOCINQ)
	if err != nil {
		return err
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(written))
	b = binary.LittleEndian.AppendUint64(b, uint64(written-int64(waiting)))
	b = append(b, stage, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(os.Getpid()))
	_, err = f.WriteAt(b, 0)
	return err
}

func runJob() int {
	signal.Ignore(syscall.SIGPIPE) // a dead agent is an error that we can speak of
	var w work
	err := json.NewDecoder(os.Stdin).Decode(&w)
	if err == nil {
		err = w.print()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "job:", err)
		return 1
	}
	return 0
}

func (w work) print() error {
	f, err := os.Create(w.Truth)
	if err != nil {
		return err
	}
	defer f.Close()
	if w.Hold {
		w.await()
	}
	var written int64
	var pause <-chan time.Time
	if w.Pause > 0 {
		tick := time.NewTicker(time.Duration(w.Pause) * time.Millisecond)
		defer tick.Stop()
		pause = tick.C
	}
	for n := int64(1); w.Lines == 0 || n <= w.Lines; {
		var out, errs []byte
		for range max(w.Burst, 1) {
			if w.Lines > 0 && n > w.Lines {
				break
			}
			if w.Both && n%3 == 0 {
				errs = appendLine(errs, n, w.Size)
			} else {
				out = appendLine(out, n, w.Size)
			}
			n++
		}
		k, err := os.Stdout.Write(out)
		written += int64(k)
		if err != nil {
			return errors.Join(err, note(f, written, stageBroken))
		}
		if _, err := os.Stderr.Write(errs); err != nil {
			return err
		}
		if err := note(f, written, stagePrints); err != nil {
			return err
		}
		if pause != nil {
			<-pause
		}
	}
	if err := note(f, written, stagePrinted); err != nil {
		return err
	}
	if w.Wait {
		w.await()
	}
	return nil
}

// await waits for letGo.
func (w work) await() {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if _, err := os.Stat(w.Truth + ".go"); err == nil {
			return
		}
	}
}
