package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ticksPerSecond is USER_HZ: 100 on every Linux that Go runs on.
const ticksPerSecond = 100

// cpuSeconds is a process's user and system time so far, its children left out.
func cpuSeconds(pid int) (float64, error) {
	own, _, err := cpuTimes(pid)
	return own, err
}

// cpuTimes is a process's user and system time so far, and that of its children which have ended and been waited for.
func cpuTimes(pid int) (own, children float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	// The command name may hold spaces; fields count from behind its parenthesis.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	var ticks [4]float64
	for i := range ticks { // user, system, and the same of the children
		if ticks[i], err = strconv.ParseFloat(fields[11+i], 64); err != nil {
			return 0, 0, err
		}
	}
	return (ticks[0] + ticks[1]) / ticksPerSecond, (ticks[2] + ticks[3]) / ticksPerSecond, nil
}

// field reads a number from /proc/PID/FILE: "RssAnon" of status (kB), "write_bytes" of io (bytes).
func field(pid int, file, name string) (int64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); { // lines of /proc are short
		if rest, ok := strings.CutPrefix(in.Text(), name+":"); ok {
			return strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("/proc/%d/%s has no %s", pid, file, name)
}

// anonMB is the process's anonymous memory in 10^6 bytes. Shared mappings, the queue file above all, are not in it.
func anonMB(pid int) (float64, error) {
	kb, err := field(pid, "status", "RssAnon")
	return float64(kb) * 1024 / 1e6, err
}

// peak samples f until stop is called and returns the highest value seen.
func peak(ctx context.Context, f func() (float64, error)) (stop func() float64) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	var most float64
	wg.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			if v, err := f(); err == nil {
				most = max(most, v)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() float64 {
		cancel()
		wg.Wait()
		return most
	}
}
