package spool

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// crashEnv makes the test binary a process that spools until it is killed: it appends to several
// attempts, says what was made durable, and acknowledges some of it.
const crashEnv = "AGENTD_SPOOL_CRASH"

func crashChild() {
	s, err := Open(Config{Dir: os.Getenv(crashEnv), MaxSize: 128 << 20, EpochSize: 8 << 20, MinFree: -1})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(3)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Run(context.Background()) })
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	for i := range 3 {
		wg.Go(func() {
			id := fmt.Sprintf("job%d/1", i)
			s.SetMeta(id, []byte("meta of "+id))
			var next int64
			for _, in := range s.Attempts() {
				if in.Attempt == id {
					next = in.Next
				}
			}
			for n := 0; ; n++ {
				count := int64(1 + rand.IntN(20))
				if err := s.Append(context.Background(), batch(id, next, count, 200+rand.IntN(200<<10))); err != nil {
					say("error %v", err)
					continue
				}
				next += count
				say("durable %s %d", id, next)
				if n%16 == 15 {
					say("acked %s %d", id, next-count)
					s.Ack(id, next-count)
				}
			}
		})
	}
	wg.Wait()
}

// TestC1KilledWhileSpooling kills a process at random moments, again and again on one directory:
// whatever it called durable is there, whole and in order, unless it was acknowledged.
func TestC1KilledWhileSpooling(t *testing.T) {
	t.Parallel()
	rounds := 8
	if os.Getenv("AGENTD_SOAK") != "" {
		rounds = 200
	}
	dir := filepath.Join(fastDir(t), "s")
	durable, acked := map[string]int64{}, map[string]int64{}
	for round := range rounds {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), crashEnv+"="+dir)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		kill := time.AfterFunc(time.Duration(150+rand.IntN(700))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		lines := bufio.NewReader(out)
		said := 0
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				break // a line that was cut promised nothing
			}
			said++
			var id string
			var n int64
			switch {
			case strings.HasPrefix(line, "durable"):
				_, err = fmt.Sscanf(line, "durable %s %d", &id, &n)
				durable[id] = n
			case strings.HasPrefix(line, "acked"):
				_, err = fmt.Sscanf(line, "acked %s %d", &id, &n)
				acked[id] = n
			default:
				t.Fatalf("round %d: %s", round, line)
			}
			must(t, err)
		}
		_ = cmd.Wait() // killed
		kill.Stop()
		_, _ = io.Copy(io.Discard, lines)
		rd, err := OpenReader(dir)
		if errors.Is(err, fs.ErrNotExist) && len(durable) == 0 {
			continue // killed before it had made its directory
		}
		must(t, err)
		for id, end := range durable {
			checkDurable(t, round, rd.Read, id, acked[id], end)
		}
		if d := rd.Damage(); len(d) > 0 {
			t.Fatalf("round %d: damage after a mere kill: %v", round, d)
		}
		must(t, rd.Close())
		if used := diskUsage(dir); used > 128<<20 {
			t.Fatalf("round %d: %d bytes used", round, used)
		}
	}
	s := start(t, Config{Dir: dir, MaxSize: 128 << 20, EpochSize: 8 << 20})
	for id, end := range durable {
		checkDurable(t, rounds, s.Read, id, acked[id], end)
		s.Ack(id, 1<<40)
	}
	s.stop()
	if st := s.Stats(); st.Epochs != 0 || st.Corrupt != 0 || st.Quarantined != 0 {
		t.Fatalf("after the drain: %+v", st)
	}
}

func checkDurable(t *testing.T, round int, read func(string, int64) (Batch, error), id string, from, end int64) {
	t.Helper()
	got, lost, err := walk(read, id, from, -1)
	must(t, err)
	if len(lost) > 0 || len(got) != 1 || got[0].Next < end {
		t.Fatalf("round %d: %s: have %v, lost %v; %d to %d was durable", round, id, got, lost, from, end)
	}
}

// TestPowerLoss throws away what wasn't synced. The kernel may have written any page at any time, or none: what counts is
// the value log as it was at the last sync before the answer, with nothing of badger's other files behind the epoch's making.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	src, dir := fastDir(t), filepath.Join(fastDir(t), "s")
	var mu sync.Mutex
	snapshots := 0
	r := startWith(t, Config{Dir: src, MaxSize: 64 << 20}, func(k kv) kv {
		return &syncTap{kv: k, synced: func() {
			mu.Lock()
			defer mu.Unlock()
			// In the syncer, before anybody has been answered: the value log as it is now is what a
			// power cut would leave; the write-ahead log may have nothing.
			snapshots++
			must(t, os.RemoveAll(dir))
			copyTree(t, src, dir)
			for _, name := range dirNames(filepath.Join(dir, epochsDir)) {
				e := filepath.Join(dir, epochsDir, name)
				if _, err := os.Stat(filepath.Join(e, indexName)); err == nil {
					continue // sealed
				}
				for _, f := range []string{walName, "MANIFEST", discardName, "KEYREGISTRY"} {
					if err := os.Truncate(filepath.Join(e, f), 0); err != nil && !errors.Is(err, fs.ErrNotExist) { // the next epoch is being made
						t.Error(err)
					}
				}
			}
			_ = os.Remove(filepath.Join(dir, cursorsName))
		}}
	})
	r.SetMeta("a/1", []byte("m"))
	for i := range int64(40) {
		must(t, r.Append(t.Context(), batch("a/1", i*5, 5, 300<<10)))
		mu.Lock()
		rd, err := OpenReader(dir)
		must(t, err)
		got, lost, err := walk(rd.Read, "a/1", 0, 300<<10)
		must(t, err)
		if len(lost) > 0 || len(got) != 1 || got[0].Next < (i+1)*5 {
			t.Fatalf("after %d: have %v, lost %v", (i+1)*5, got, lost)
		}
		must(t, rd.Close())
		mu.Unlock()
	}
	if snapshots < 20 {
		t.Fatalf("%d snapshots", snapshots)
	}
	r.stop()
	s := start(t, Config{Dir: dir, MaxSize: 64 << 20})
	s.expect("a/1", 0, 200, 300<<10)
}

// syncTap tells of every sync after it succeeded.
type syncTap struct {
	kv
	synced func()
}

func (k *syncTap) sync() error {
	err := k.kv.sync()
	if err == nil {
		k.synced()
	}
	return err
}
