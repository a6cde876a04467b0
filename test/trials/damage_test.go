package trials

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentd/agent/identity"
	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

// An agent is killed with a backlog: batches and loose bytes in the queue file, a sealed epoch, an open one, the
// journal of two attempts. Then, round by round, one byte of one of its files is flipped, or the file is cut, every file in
// turn, and everything is started again from there. It never crashes; every line that arrives is one that was printed, in its
// place; and what doesn't arrive is owned up to by a gap record where it is missing.
func TestC3DamageOfEveryFile(t *testing.T) {
	t.Parallel()
	rounds := scaled(20, 300)
	w := begin(t, logsSmall+"max_jobs: 3\n", "--lease-ttl", "3s")
	d := &damaging{world: w, sound: filepath.Join(w.dir, "sound")}
	d.ids, d.does = w.abandonedBacklog(t)
	for _, name := range d.parts() {
		copyState(t, name, filepath.Join(d.sound, filepath.Base(name)))
	}
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 0))
	files := d.files(t)
	for range 4 { // most of what matters is in there
		files = append(files, filepath.Join(d.RuntimeDir, "queue"))
	}
	t.Logf("seed %d, %d files: %v", seed, len(files), files)
	kinds := map[string]int{}
	for i := range rounds {
		file := files[i%len(files)]
		kinds[filepath.Base(file)]++
		d.restore(t)
		what := hurt(t, rnd, file)
		gaps := d.round(t)
		t.Logf("round %d: %s: %s: %d gaps", i, strings.TrimPrefix(file, w.dir), what, gaps)
		if base := filepath.Base(file); gaps > 0 && base != "queue" && filepath.Ext(base) != ".vlog" {
			t.Errorf("damage to %s cost lines, and all of them are in the queue and the value logs", base)
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d rounds: %v", rounds, kinds)
}

type damaging struct {
	*world

	sound string // copies of parts
	ids   []string
	does  []work
}

// parts are the folders that make up the world's state.
func (d *damaging) parts() []string {
	return []string{d.StateDir, d.RuntimeDir, filepath.Join(d.dir, "store")}
}

// abandonedBacklog leaves everything as a kill does. The control plane is stopped, too.
func (w *world) abandonedBacklog(t *testing.T) (ids []string, all []work) {
	t.Helper()
	w.faults(t, logsAway, logsAwayToo)
	begin := func(does work) work {
		ids = append(ids, w.print(t, adminclient.Submission{MaxAttempts: 1}, &does))
		all = append(all, does)
		return does
	}
	first := begin(work{Lines: 5000, Size: 200, Burst: 50})
	until(t, "the first backlog is spooled", func() bool {
		st := w.status(t)
		return first.truth(t).Printed && len(st.Jobs) == 0 && st.Logs.Spool >= 5000 && st.Logs.Memory == 0
	})
	w.stopAgent(t) // which seals an epoch
	w.launch(t)
	w.status(t)
	second := begin(work{Lines: 12_000, Size: 200, Burst: 50, Wait: true})
	third := begin(work{Size: 100, Burst: 20, Pause: 3})
	until(t, "the second backlog is spooled", func() bool { return second.truth(t).Printed && w.status(t).Logs.Spool >= 17_000 })
	until(t, "something is in memory", func() bool { st := w.status(t); return third.truth(t).Read > 0 && st.Logs.Memory > 0 })
	w.killAgent(t)
	for _, does := range all[1:] {
		until(t, "the jobs know that the agent is gone", func() bool { return does.truth(t).Over })
	}
	if err := w.Server.Kill(); err != nil {
		t.Fatal(err)
	}
	w.Server = nil
	return ids, all
}

// files are those of the agent that hold anything.
func (d *damaging) files(t *testing.T) (files []string) {
	t.Helper()
	for _, dir := range []string{d.StateDir, d.RuntimeDir} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			if used(t, path) > 0 {
				files = append(files, path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// used is how much of a file isn't the zeros of its preallocation.
func used(t *testing.T, path string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return len(bytes.TrimRight(b, "\x00"))
}

// restore puts back what the kill had left.
func (d *damaging) restore(t *testing.T) {
	t.Helper()
	for _, name := range d.parts() {
		if err := os.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
		copyState(t, filepath.Join(d.sound, filepath.Base(name)), name)
	}
}

// copyState copies files and folders with their modes, and leaves sockets out.
func copyState(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		switch target := filepath.Join(to, rel); {
		case e.IsDir():
			return os.MkdirAll(target, info.Mode().Perm())
		case info.Mode().IsRegular():
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(target, b, info.Mode().Perm())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// hurt damages one place of a file.
func hurt(t *testing.T, rnd *rand.Rand, path string) string {
	t.Helper()
	at := int64(rnd.IntN(used(t, path)))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	what, b := fmt.Sprintf("0xffffffff at %d", at), binary.LittleEndian.AppendUint32(nil, 0xffffffff)
	switch rnd.IntN(5) {
	case 0:
		if err := f.Truncate(at); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("cut at %d", at)
	case 1:
	default:
		b = b[:1]
		if _, err := f.ReadAt(b, at); err != nil {
			t.Fatal(err)
		}
		bit := rnd.IntN(8)
		b[0] ^= 1 << bit
		what = fmt.Sprintf("bit %d flipped at %d", bit, at)
	}
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
	return what
}

// round starts everything from what is there, until the control plane has all that there is. It returns how many gap
// records that includes.
func (d *damaging) round(t *testing.T) (gaps int) {
	t.Helper()
	if err := d.StartServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.launch(t)
	until(t, "all logs are complete, or the agent refuses its identity", func() bool {
		if d.arrived(t) {
			return true
		}
		st, err := d.Status(t.Context())
		exited := zombie(d.Agent.PID())
		if !exited && (err != nil || st.Link.State == identity.Linked || st.Link.State == identity.Unlinked) {
			return false // it is on its way
		}
		// The one file that nothing can stand in for. Nothing was given up by that: with a sound copy all goes on.
		if exited && !bytes.Contains(tail(d.Agent.Log), []byte("identity.json")) {
			t.Fatalf("the agent ended, and not for its identity's sake")
		}
		d.killAgent(t)
		sound, err := os.ReadFile(filepath.Join(d.sound, filepath.Base(d.StateDir), "identity.json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(d.StateDir, "identity.json"), sound, 0o600); err != nil {
			t.Fatal(err)
		}
		d.launch(t)
		return false
	})
	for i, id := range d.ids {
		gaps += d.judge(t, id, d.does[i])
	}
	d.status(t) // it lives
	d.killAgent(t)
	if err := d.Server.Kill(); err != nil {
		t.Fatal(err)
	}
	d.Server = nil
	return gaps
}

func (d *damaging) arrived(t *testing.T) bool {
	t.Helper()
	for _, id := range d.ids {
		j, err := d.Admin.Job(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if !over(j) {
			return false
		}
	}
	return true
}

// zombie says that a process has ended, buried or not.
func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := bytes.Cut(b, []byte(") "))
	return bytes.HasPrefix(rest, []byte("Z"))
}

// judge reads a log as the control plane holds it: dense numbers; every line one that was printed, whole, and behind
// the one before it; and where lines are missing, a gap record in just that place.
func (d *damaging) judge(t *testing.T, id string, does work) (gaps int) {
	t.Helper()
	var next, last int64
	var line []byte // of the line under way
	owned := false  // a gap stands since the last whole line
	for r, err := range d.Admin.Logs(t.Context(), id, adminclient.LogOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.N != next {
			t.Fatalf("job %s: record %d comes where %d is due", id, r.N, next)
		}
		next = r.Next()
		switch {
		case r.Gap > 0:
			gaps++
			owned, line = true, nil
			continue
		case r.Stream == protocol.Remark:
			continue
		}
		line = append(append(line, r.Text...), r.Bytes...)
		if r.Part {
			continue
		}
		n, ok := numberOf(string(line))
		want := appendLine(nil, n, does.Size)
		if r.EOF { // the job died in the middle of it
			ok = ok && bytes.HasPrefix(want, line)
		} else {
			ok = ok && bytes.Equal(want, append(line, '\n'))
		}
		if !ok || n <= last || n != last+1 && !owned {
			t.Fatalf("job %s: record %d is %.100q, after line %d; a gap in between: %v", id, r.N, line, last, owned)
		}
		last, owned, line = n, false, nil
	}
	end := does.Lines
	if end == 0 {
		end = does.truth(t).Read / int64(does.Size)
	}
	if last < end && !owned {
		t.Fatalf("job %s: the log ends with line %d of %d, without a gap record", id, last, end)
	}
	return gaps
}
