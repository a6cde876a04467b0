package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentd/controlplane-mock/adminclient"
)

// screen draws one live line per job on a terminal; elsewhere it prints a line a second per job.
type screen struct {
	w     io.Writer
	live  bool
	drawn int // lines to go back up, on a terminal
	last  time.Time
}

func newScreen(f *os.File) *screen {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return &screen{w: f, live: err == nil}
}

// show draws the jobs' lines; final ones are drawn whatever the time.
func (s *screen) show(now time.Time, jobs []*demoJob, final bool) {
	if !s.live && !final && now.Sub(s.last) < time.Second {
		return
	}
	s.last = now
	var b strings.Builder
	if s.live && s.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", s.drawn)
	}
	for _, j := range jobs {
		line := fmt.Sprintf("  %-28s %-10s %9d lines made %9d stored %8.1f MB/s\n", j.title, j.job.Status, j.made(), j.stored(), j.rate(now))
		switch {
		case s.live:
			b.WriteString("\r\x1b[K" + line)
		case line != j.shown:
			b.WriteString(line)
		}
		j.shown = line
	}
	s.drawn = len(jobs)
	fmt.Fprint(s.w, b.String())
}

// made is how many lines the job says it has printed.
func (j *demoJob) made() int64 {
	b, err := os.ReadFile(filepath.Join(j.truth, "lines"))
	if err != nil {
		return 0
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func (j *demoJob) stored() int64 {
	if last := j.job.Last(); last != nil {
		return last.LogNext
	}
	return 0
}

// rate is the job's stored bytes over its time so far: lines stored, at the mean length of those made.
func (j *demoJob) rate(now time.Time) float64 {
	last := j.job.Last()
	made := j.made()
	if last == nil || last.StartedAt.IsZero() || made == 0 {
		return 0
	}
	end := now
	if !j.ended.IsZero() {
		end = j.ended
	}
	var size int64
	for _, stream := range []string{"out", "err"} {
		if info, err := os.Stat(filepath.Join(j.truth, stream)); err == nil {
			size += info.Size()
		}
	}
	seconds := end.Sub(j.started).Seconds()
	if seconds <= 0 {
		return 0
	}
	return float64(size) / float64(made) * float64(min(j.stored(), made)) / 1e6 / seconds
}

// refresh asks the control plane how the job stands.
func (j *demoJob) refresh(job adminclient.Job, now time.Time) {
	j.job = job
	if j.started.IsZero() && job.Last() != nil {
		j.started = now
	}
	if j.ended.IsZero() && job.Settled() && job.Last() != nil && job.Last().LogsComplete {
		j.ended = now
	}
}
