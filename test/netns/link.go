package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	prefix = "agentd-test-"
	folder = "/run/netns" // where `ip netns` keeps names
	// burst of the token bucket: two full frames. More would let small uploads pass unshaped.
	burst = "4kb"
)

var links atomic.Int64

// Link is a pair of connected interfaces. Near is the caller's address, Far that of the namespace.
type Link struct {
	Near, Far string
	name      string
	device    string // the near end; the far one is eth0
}

// New makes a link. The caller must be in a network namespace of its own, see Isolate and package testmain: nothing
// of the machine's network is touched. It also removes the namespaces of callers that died before their Close.
func New(ctx context.Context) (_ *Link, err error) {
	sweep(ctx)
	n := links.Add(1)
	if n > 250 {
		return nil, errors.New("netns: more than 250 links in one process")
	}
	l := &Link{
		Near: fmt.Sprintf("10.77.%d.1", n), Far: fmt.Sprintf("10.77.%d.2", n),
		name: fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), n), device: fmt.Sprintf("far%d", n),
	}
	if err := run(ctx, "ip", "netns", "add", l.name); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	for _, argv := range [][]string{
		{"ip", "link", "add", l.device, "type", "veth", "peer", "name", "eth0", "netns", l.name},
		{"ip", "addr", "add", l.Near + "/30", "dev", l.device},
		{"ip", "link", "set", l.device, "up"},
		{"ip", "-n", l.name, "addr", "add", l.Far + "/30", "dev", "eth0"},
		{"ip", "-n", l.name, "link", "set", "lo", "up"},
		{"ip", "-n", l.name, "link", "set", "eth0", "up"},
	} {
		if err := run(ctx, argv...); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Enter is what to put before a command line so that it runs at the far end. The process keeps its id.
func (l *Link) Enter() []string { return []string{"nsenter", "--net=" + filepath.Join(folder, l.name)} }

// Shape bounds both directions to rate ("1mbit") with a queue of the given length, as a modem has.
func (l *Link) Shape(ctx context.Context, rate string, queue time.Duration) error {
	tbf := []string{"root", "tbf", "rate", rate, "burst", burst, "latency", fmt.Sprintf("%dms", queue.Milliseconds())}
	return errors.Join(
		run(ctx, append([]string{"tc", "qdisc", "replace", "dev", l.device}, tbf...)...),
		run(ctx, append([]string{"tc", "-n", l.name, "qdisc", "replace", "dev", "eth0"}, tbf...)...))
}

// Unshape makes the link fast again.
func (l *Link) Unshape(ctx context.Context) error {
	return errors.Join(
		run(ctx, "tc", "qdisc", "del", "dev", l.device, "root"),
		run(ctx, "tc", "-n", l.name, "qdisc", "del", "dev", "eth0", "root"))
}

// Swallow drops all packets of the connections from these ports of the far end, in both directions. Nobody is told:
// it is what a NAT gateway does that has lost its table. New connections pass.
func (l *Link) Swallow(ctx context.Context, ports []int) error {
	var errs []error
	for _, p := range ports {
		port := strconv.Itoa(p)
		errs = append(errs,
			run(ctx, "iptables", "-w", "-A", "INPUT", "-i", l.device, "-p", "tcp", "--sport", port, "-j", "DROP"),
			run(ctx, append(l.Enter(), "iptables", "-w", "-A", "INPUT", "-p", "tcp", "--dport", port, "-j", "DROP")...))
	}
	return errors.Join(errs...)
}

// Connections are the far end's ports of a process's established connections to the near end.
func (l *Link) Connections(pid int) ([]int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/tcp", pid)) // of the process's namespace, which is all ours
	if err != nil {
		return nil, err
	}
	var n [4]int
	if _, err := fmt.Sscanf(l.Near, "%d.%d.%d.%d", &n[0], &n[1], &n[2], &n[3]); err != nil {
		return nil, err
	}
	near := fmt.Sprintf("%02X%02X%02X%02X:", n[3], n[2], n[1], n[0]) // the kernel prints addresses in host order: little-endian machines
	const established = "01"
	var ports []int
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != established || !strings.HasPrefix(f[2], near) {
			continue
		}
		_, hex, _ := strings.Cut(f[1], ":")
		port, err := strconv.ParseUint(hex, 16, 16)
		if err != nil {
			return nil, fmt.Errorf("netns: /proc/%d/net/tcp: %q: %w", pid, f[1], err)
		}
		ports = append(ports, int(port))
	}
	return ports, nil
}

// Carried is how many bytes the far end has sent so far.
func (l *Link) Carried() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/sys/class/net/%s/statistics/rx_bytes", l.device))
	if err == nil {
		return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	}
	// /sys shows the namespace that mounted it; /proc shows the reader's.
	if b, err = os.ReadFile("/proc/thread-self/net/dev"); err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), l.device+":"); ok {
			return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("netns: no device %s", l.device)
}

// Close removes the link and the namespace's name. Processes in it must have ended: they would keep it alive.
func (l *Link) Close() error {
	// Not the caller's context: it has often ended by then.
	return errors.Join(run(context.Background(), "ip", "netns", "del", l.name), l.unfilter())
}

// unfilter removes the near end's rules; the far end's went with its namespace.
func (l *Link) unfilter() error {
	out, err := exec.Command("iptables", "-w", "-S", "INPUT").Output()
	if err != nil {
		return nil //nolint:nilerr // without iptables there are no rules
	}
	var errs []error
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "-A" && strings.Contains(line, "-i "+l.device+" ") {
			f[0] = "-D"
			errs = append(errs, run(context.Background(), append([]string{"iptables", "-w"}, f...)...))
		}
	}
	return errors.Join(errs...)
}

// sweep removes the names that processes left which were killed.
func sweep(ctx context.Context) {
	names, _ := filepath.Glob(filepath.Join(folder, prefix+"*"))
	for _, name := range names {
		pid, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(name), prefix), "-")
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, os.ErrNotExist) {
			_ = run(ctx, "ip", "netns", "del", filepath.Base(name)) // somebody else may have been faster
		}
	}
}

// Missing says why links can't be made here; empty: they can.
func Missing() string {
	if os.Geteuid() != 0 {
		return "making network namespaces needs root"
	}
	for tool, pkg := range map[string]string{"ip": "iproute2", "tc": "iproute2", "iptables": "iptables", "nsenter": "util-linux"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Sprintf("%s is missing (Debian package %s)", tool, pkg)
		}
	}
	return ""
}

func run(ctx context.Context, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("netns: %s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
