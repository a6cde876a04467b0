package exec

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// procStat is what /proc/PID/stat says of a process.
type procStat struct {
	pid, ppid, pgid int
	state           byte
	startTicks      uint64
}

// dead: it runs no more code and holds nothing open; only its exit status waits to be fetched.
func (s procStat) dead() bool { return s.state == 'Z' || s.state == 'X' }

func readStat(pid int) (procStat, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, err
	}
	return parseStat(data)
}

// statOfChild reads the stat of a child that nobody has waited for. One that can't be found is hidden, not gone: where /proc shows
// only what its reader may trace (hidepid, ProtectProc=invisible), a child of a process that keeps its memory to itself (PR_SET_DUMPABLE)
// is not to be seen until a moment after its exec.
func statOfChild(pid int) (s procStat, err error) {
	const enough = 10 * time.Second // on a host that lets a runnable process wait for so long, nothing else works either
	err = retry(time.Now().Add(enough), func() (err error) {
		s, err = readStat(pid)
		return err
	})
	return s, err
}

// parseStat takes the fields after the last ')': the name before it is the process's own choice, blanks and brackets included.
func parseStat(data []byte) (procStat, error) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 1 || end < open {
		return procStat{}, errors.New("stat without a name")
	}
	var s procStat
	var err error
	if s.pid, err = strconv.Atoi(strings.TrimSpace(string(data[:open]))); err != nil {
		return procStat{}, fmt.Errorf("stat's pid: %w", err)
	}
	f := strings.Fields(string(data[end+1:]))
	const startTime = 22 - 3 // proc(5): field 22, and f[0] is field 3
	if len(f) <= startTime {
		return procStat{}, errors.New("stat with too few fields")
	}
	s.state = f[0][0]
	var errs [3]error
	s.ppid, errs[0] = strconv.Atoi(f[1])
	s.pgid, errs[1] = strconv.Atoi(f[2])
	s.startTicks, errs[2] = strconv.ParseUint(f[startTime], 10, 64)
	return s, errors.Join(errs[:]...)
}

// processes lists every process of the host that can be seen.
func processes() ([]procStat, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []procStat
	for _, name := range names {
		if name[0] < '0' || name[0] > '9' {
			continue
		}
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if s, err := readStat(pid); err == nil { // else it has just ended
			all = append(all, s)
		}
	}
	return all, nil
}

// descendants are the processes below root, root itself left out. With root a subreaper this is the whole tree:
// whoever loses its parent becomes root's child, so every chain of parents ends there.
func descendants(root int) ([]procStat, error) {
	all, err := processes()
	if err != nil {
		return nil, err
	}
	children := make(map[int][]procStat)
	for _, s := range all {
		children[s.ppid] = append(children[s.ppid], s)
	}
	found := append([]procStat(nil), children[root]...)
	for i := 0; i < len(found); i++ {
		found = append(found, children[found[i].pid]...)
	}
	return found, nil
}

func living(procs []procStat) []procStat {
	var alive []procStat
	for _, p := range procs {
		if !p.dead() {
			alive = append(alive, p)
		}
	}
	return alive
}

// signalAll sends sig to each process once. A pid could only mean somebody else if it was freed and given out
// again in the microseconds since the list was made.
func signalAll(procs []procStat, sig unix.Signal) {
	for _, p := range procs {
		_ = unix.Kill(p.pid, sig) // gone meanwhile is as good
	}
}

// killAll also kills by process group: the kernel does that in one go, so that a fork in flight doesn't slip through.
// A group of the tree holds nobody else, since the job was started in a session of its own.
func killAll(procs []procStat, spare int) {
	groups := make(map[int]bool)
	for _, p := range procs {
		if p.pgid > 1 && p.pgid != spare && !groups[p.pgid] {
			groups[p.pgid] = true
			_ = unix.Kill(-p.pgid, unix.SIGKILL)
		}
	}
	signalAll(procs, unix.SIGKILL)
}

// killIf kills a process only if it still is the one that started at startTicks: the pidfd pins down who
// is asked before it is asked who it is, so that a pid which is given out again in between isn't hit.
func killIf(pid int, startTicks uint64) (bool, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	s, err := readStat(pid)
	if err != nil || s.startTicks != startTicks || s.dead() {
		return false, nil // no stat: it has ended
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return false, fmt.Errorf("kill %d: %w", pid, err)
	}
	return true, nil
}

// carriers are the living processes that have the entry (KEY=VALUE) in the environment they were started with.
// It finds what lost every tie to the attempt but didn't clean its environment.
func carriers(entry string) []procStat {
	all, err := processes()
	if err != nil {
		return nil
	}
	var found []procStat
	want := []byte(entry)
	self := os.Getpid()
	for _, s := range all {
		if s.dead() || s.pid == self {
			continue
		}
		env, err := os.ReadFile("/proc/" + strconv.Itoa(s.pid) + "/environ")
		if err != nil {
			continue // another user's, or ended
		}
		for kv := range bytes.SplitSeq(env, []byte{0}) {
			if bytes.Equal(kv, want) {
				found = append(found, s)
				break
			}
		}
	}
	return found
}

// hidden are the members of a cgroup that are not among those who were seen. They can't be told from those who have just ended,
// which a signal doesn't hurt: their pids were read a moment ago.
func hidden(cgroup string, seen []procStat) []procStat {
	if cgroup == "" {
		return nil
	}
	known := make(map[int]bool)
	for _, s := range seen {
		known[s.pid] = true
	}
	var rest []procStat
	for _, s := range cgroupProcs(cgroup) {
		if !known[s.pid] {
			rest = append(rest, s)
		}
	}
	return rest
}

func readBootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(data)), nil
}

// tracerOf is the pid of the process that traces pid, or 0.
func tracerOf(pid int) int {
	tracer := statusNumber(pid, "TracerPid:")
	if tracer == 0 {
		return 0
	}
	return cmp.Or(statusNumber(tracer, "Tgid:"), tracer) // the kernel names the thread
}

// statusNumber is one number of /proc/PID/status; 0 when there is none.
func statusNumber(pid int, key string) int {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(rest))
			return n
		}
	}
	return 0
}

// describe names processes for people: "412 (state D), 413 (state t, traced by 99)".
func describe(procs []procStat) string {
	var b strings.Builder
	const enough = 5
	for i, p := range procs {
		if i == enough {
			fmt.Fprintf(&b, " and %d more", len(procs)-enough)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%d (state %c", p.pid, p.state)
		if tracer := tracerOf(p.pid); tracer != 0 {
			fmt.Fprintf(&b, ", traced by %d", tracer)
		}
		b.WriteByte(')')
	}
	return b.String()
}
