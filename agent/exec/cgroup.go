package exec

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// leaf is the child of a delegated cgroup into which the agent moves itself: a cgroup with controllers enabled for
// its children may hold no process. systemd's DelegateSubgroup= is set to the same name by the unit.
const leaf = "agent"

// jobPrefix marks the cgroups that are ours to sweep; systemd puts others (.control) beside them.
const jobPrefix = "job-"

// wanted are the controllers that limits need. memory also tells an OOM kill from another SIGKILL.
var wanted = []string{"memory", "pids", "cpu"}

// cgroups is where the attempts' cgroups are made.
type cgroups struct {
	base        string // directory; empty = no cgroups
	controllers []string
	why         string // why there is no base, or why controllers are missing
	made        bool   // base is a directory of our own, to be removed in the end
}

func (c *cgroups) has(controller string) bool { return slices.Contains(c.controllers, controller) }

// ownCgroupDir is the directory of the cgroup v2 that this process is in.
func ownCgroupDir() (string, error) {
	mount, root, err := findCgroup2()
	if err != nil {
		return "", err
	}
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(data)) {
		path, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !ok {
			continue
		}
		// A bind mount shows only the part of the hierarchy below root.
		rel, err := filepath.Rel(root, path)
		if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
			return "", fmt.Errorf("own cgroup %s is outside of what is mounted (%s)", path, root)
		}
		return filepath.Join(mount, rel), nil
	}
	return "", errors.New("this process is in no cgroup v2")
}

func findCgroup2() (mount, root string, err error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(string(data)) {
		before, after, ok := strings.Cut(line, " - ")
		f := strings.Fields(before)
		if ok && strings.HasPrefix(after, "cgroup2 ") && len(f) >= 5 {
			return unescape(f[4]), unescape(f[3]), nil
		}
	}
	return "", "", errors.New("no cgroup v2 is mounted")
}

// unescape undoes mountinfo's octal escapes for blanks.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// openCgroups finds or makes the directory for the attempts' cgroups. It never fails the agent: without cgroups the shim
// does the work, and why says what was missing.
func openCgroups(choice, workRoot string) (cgroups, error) {
	switch choice {
	case CgroupOff:
		return cgroups{why: "off by configuration"}, nil
	case CgroupAuto:
		own, err := ownCgroupDir()
		if err != nil {
			return cgroups{why: err.Error()}, nil //nolint:nilerr // auto: without cgroups it goes on, and says why
		}
		c, err := openOwn(own, workRoot)
		if err != nil {
			return cgroups{why: err.Error()}, nil //nolint:nilerr // as above
		}
		return c, nil
	default:
		c := cgroups{base: choice}
		if err := c.prepare(); err != nil {
			return cgroups{}, fmt.Errorf("cgroup %s: %w", choice, err)
		}
		c.enable()
		return c, nil
	}
}

// openOwn uses the process's own cgroup where that is its to divide: delegated by a service manager, owned by this
// unprivileged user, a container's top, or the top of a host where nobody manages the hierarchy.
func openOwn(own, workRoot string) (cgroups, error) {
	mount, _, err := findCgroup2()
	if err != nil {
		return cgroups{}, err
	}
	if parent := filepath.Dir(own); filepath.Base(own) == leaf && (parent == mount || delegated(parent)) {
		own = parent
	}
	if exists(own, "cgroup.procs") && !exists(own, "cgroup.events") {
		// The host's real top. It may hold processes beside children, and other agents' children as well, so ours get a
		// directory that is named after what the state directory's lock makes unique.
		h := fnv.New64a()
		_, _ = h.Write([]byte(workRoot))
		c := cgroups{base: filepath.Join(own, fmt.Sprintf("agentd-%016x", h.Sum64())), made: true}
		if err := c.prepare(); err != nil {
			return cgroups{}, err
		}
		c.enable()
		return c, nil
	}
	if own != mount && !delegated(own) {
		return cgroups{}, fmt.Errorf("cgroup %s is not delegated (Delegate=yes in the unit)", own)
	}
	c := cgroups{base: own}
	if err := c.prepare(); err != nil {
		return cgroups{}, err
	}
	if available := controllersIn(own, "cgroup.controllers"); len(available) > 0 {
		if err := os.Mkdir(filepath.Join(own, leaf), 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // as the kernel's own
			return cgroups{}, err
		}
		if err := enterCgroup(filepath.Join(own, leaf)); err != nil {
			return cgroups{}, err
		}
	}
	c.enable()
	return c, nil
}

// delegated: systemd marks what it gives away by an extended attribute; an unprivileged process that owns its cgroup was given it.
func delegated(dir string) bool {
	for _, attr := range []string{"trusted.delegate", "user.delegate"} {
		var value [8]byte
		if n, err := unix.Getxattr(dir, attr, value[:]); err == nil && string(value[:n]) == "1" {
			return true
		}
	}
	var st unix.Stat_t
	return os.Geteuid() != 0 && unix.Stat(dir, &st) == nil && int(st.Uid) == os.Geteuid()
}

// prepare makes the base, and shows that children can be made in it and killed by the kernel (Linux 5.14).
func (c *cgroups) prepare() error {
	if err := os.Mkdir(c.base, 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // as the kernel's own
		return err
	}
	probe := filepath.Join(c.base, "probe-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(probe, 0o755); err != nil && !errors.Is(err, os.ErrExist) { //nolint:gosec // as the kernel's own
		return err
	}
	defer unix.Rmdir(probe) //nolint:errcheck // empty; a later probe of that name takes it over
	if !exists(probe, "cgroup.kill") {
		return errors.New("the kernel has no cgroup.kill (Linux 5.14)")
	}
	return nil
}

// enable turns on what controllers there are for the attempts' cgroups, one by one: one that is refused doesn't spoil the others.
func (c *cgroups) enable() {
	parent := filepath.Dir(c.base)
	for _, name := range wanted {
		if !slices.Contains(controllersIn(c.base, "cgroup.controllers"), name) && exists(parent, "cgroup.subtree_control") {
			_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+name), 0)
		}
		if slices.Contains(controllersIn(c.base, "cgroup.controllers"), name) {
			_ = os.WriteFile(filepath.Join(c.base, "cgroup.subtree_control"), []byte("+"+name), 0)
		}
	}
	c.controllers = nil
	var missing []string
	on := controllersIn(c.base, "cgroup.subtree_control")
	for _, name := range wanted {
		if slices.Contains(on, name) {
			c.controllers = append(c.controllers, name)
		} else {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		c.why = "controllers not available: " + strings.Join(missing, ", ")
	}
}

func controllersIn(dir, file string) []string {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return nil
	}
	return strings.Fields(string(data))
}

func exists(dir, file string) bool {
	_, err := os.Lstat(filepath.Join(dir, file))
	return err == nil
}

// enterCgroup moves this whole process.
func enterCgroup(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0) //nolint:gosec // a path that the kernel or the config named
}

// make makes an attempt's cgroup and sets the limits that there are controllers for.
func (c *cgroups) make(name string, l Limits) (string, error) {
	dir := filepath.Join(c.base, jobPrefix+name)
	if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // as the kernel's own
		return "", err
	}
	set := map[string]string{}
	if c.has("memory") {
		set["memory.oom.group"] = "1" // half a job is worth nothing
		if l.Memory > 0 {
			set["memory.max"] = strconv.FormatInt(l.Memory, 10)
			set["memory.swap.max"] = "0"
		}
	}
	if c.has("pids") && l.Pids > 0 {
		set["pids.max"] = strconv.FormatInt(l.Pids, 10)
	}
	if c.has("cpu") && l.CPUs > 0 {
		const period = 100_000 // µs, the kernel's default
		set["cpu.max"] = fmt.Sprintf("%d %d", max(1000, int64(l.CPUs*period)), period)
	}
	for file, value := range set {
		err := os.WriteFile(filepath.Join(dir, file), []byte(value), 0)
		// Kernels without swap have no memory.swap.max, those before 4.19 no memory.oom.group.
		if err != nil && (file == "memory.max" || file == "pids.max" || file == "cpu.max") {
			_ = unix.Rmdir(dir)
			return "", fmt.Errorf("limit %s=%s: %w", file, value, err)
		}
	}
	return dir, nil
}

// populated says whether a living process is in dir or below it.
func populated(dir string) bool { return cgroupCount(dir, "cgroup.events", "populated") > 0 }

// cgroupCount reads one number of a flat keyed file; 0 when there is none.
func cgroupCount(dir, file, key string) int64 {
	data, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(data) {
		k, v, ok := strings.Cut(strings.TrimSpace(string(line)), " ")
		if ok && k == key {
			n, _ := strconv.ParseInt(v, 10, 64)
			return n
		}
	}
	return 0
}

// killCgroup kills everything in dir and below it, atomically.
func killCgroup(dir string) error {
	return os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
}

// removeCgroup removes dir and the cgroups that the job made below it. The kernel lets go of a cgroup a moment
// after its last process has ended, so it asks again until the deadline.
func removeCgroup(dir string, deadline time.Time) error {
	return retry(deadline, func() error {
		var below []string
		_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				below = append(below, path)
			}
			return nil
		})
		var err error
		for _, path := range slices.Backward(below) {
			if e := unix.Rmdir(path); e != nil && !errors.Is(e, unix.ENOENT) {
				err = fmt.Errorf("remove cgroup %s: %w", path, e)
			}
		}
		return err
	})
}

// cgroupProcs are the living processes in dir and below it. Of those that /proc hides from us only the pid is known: the kernel lists
// no dead ones here, so they live.
func cgroupProcs(dir string) []procStat {
	var found []procStat
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil //nolint:nilerr // gone meanwhile
		}
		data, _ := os.ReadFile(path) //nolint:gosec // cgroupfs has no links
		for f := range strings.FieldsSeq(string(data)) {
			pid, _ := strconv.Atoi(f)
			s, err := readStat(pid)
			if err != nil {
				s = procStat{pid: pid, state: '?'}
			}
			if pid > 0 && !s.dead() {
				found = append(found, s)
			}
		}
		return nil
	})
	return found
}

// retry calls f until it succeeds or the deadline has passed.
func retry(deadline time.Time, f func() error) error {
	for pause := sweepMin; ; pause = min(2*pause, sweepMax) {
		err := f()
		if err == nil || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}
