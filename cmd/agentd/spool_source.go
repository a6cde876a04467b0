package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"agentd/shipper"
	"agentd/spool"
)

// spoolSource is where the spool commands read: a running agent, the directory, or an archive.
type spoolSource interface {
	Attempts(ctx context.Context) ([]spool.AttemptInfo, error)
	Batches(ctx context.Context, attempt string, from int64) iter.Seq2[spool.Batch, error]
}

// spoolArea is one that also has what an archive doesn't.
type spoolArea interface {
	spoolSource
	DeadLetters(ctx context.Context) iter.Seq2[spool.DeadLetter, error]
	Remove(ctx context.Context, attempt string) error
	RemoveDead(ctx context.Context, id string) error
}

// spoolDir is the directory's place below the state directory.
func spoolDir(s settings) string { return filepath.Join(s.StateDir, "spool") }

// spoolArea asks a running agent, and reads the directory when none answers.
func (c *cli) spoolArea(ctx context.Context, flags *pflag.FlagSet) (spoolArea, func() error, error) {
	s, err := c.load(flags)
	if err != nil {
		return nil, nil, err
	}
	d, err := c.daemon(flags)
	if err != nil {
		return nil, nil, err
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	conn, err := dialer.DialContext(ctx, "unix", d.path)
	if err == nil {
		_ = conn.Close()
		return &spool.Client{Get: d.open}, func() error { return nil }, nil
	}
	dir := spoolDir(s)
	r, err := spool.OpenReader(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, exit(exitFailed, fmt.Errorf("no spool at %s: nothing was ever spooled, or this is another agent's config", dir))
	case err != nil:
		return nil, nil, err
	}
	left, err := c.leftInMemory(s)
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	return &offline{Reader: r, dir: dir, queued: left}, r.Close, nil
}

// leftInMemory reads what an agent that was killed had not spooled yet: its last two seconds, which are what people look for.
func (c *cli) leftInMemory(s settings) (map[string]shipper.QueuedLog, error) {
	path := filepath.Join(s.RuntimeDir, "queue")
	logs, err := shipper.InspectQueue(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil //nolint:nilnil // nothing was left, as after a reboot
	case errors.Is(err, fs.ErrPermission):
		return nil, err
	case err != nil:
		fmt.Fprintf(c.err, "agentd: what the agent had in memory can't be read, and is left out: %v\n", err)
		return nil, nil //nolint:nilnil // what is in the spool can be shown all the same
	}
	left := map[string]shipper.QueuedLog{}
	for _, l := range logs {
		if len(l.Batches) > 0 {
			left[l.Ref.JobID+"/"+strconv.FormatInt(l.Ref.Attempt, 10)] = l
		}
	}
	return left, nil
}

// source is an archive when one was named.
func (c *cli) source(ctx context.Context, flags *pflag.FlagSet, archive string) (spoolSource, func() error, error) {
	if archive == "" {
		return c.spoolArea(ctx, flags)
	}
	open := func() (io.ReadCloser, error) { return os.Open(archive) }
	f, err := open()
	if err != nil {
		return nil, nil, err
	}
	return &spool.Archive{Open: open}, func() error { return nil }, f.Close()
}

// open makes one call whose answer is a stream.
func (d *daemonClient) open(ctx context.Context, method, path string) (io.ReadCloser, error) {
	if method != http.MethodGet {
		return io.NopCloser(strings.NewReader("")), d.call(ctx, method, path, nil, nil)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agentd"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := d.http.Do(req)
	if err != nil {
		return nil, exit(exitUnreachable, fmt.Errorf("the agent on %s doesn't answer: %w", d.path, err))
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // the status says enough
	_ = resp.Body.Close()
	code := exitFailed
	if resp.StatusCode == http.StatusForbidden {
		code = exitDenied
	}
	return nil, exit(code, fmt.Errorf("the agent answered %s: %s", resp.Status, strings.TrimSpace(string(text))))
}

// offline reads the directory itself, and behind it what the agent left in memory. Changing it needs the directory's lock: no agent may run.
type offline struct {
	*spool.Reader
	dir    string
	queued map[string]shipper.QueuedLog // by attempt
}

func (o *offline) Attempts(context.Context) ([]spool.AttemptInfo, error) {
	list := o.Reader.Attempts()
	for _, id := range slices.Sorted(maps.Keys(o.queued)) {
		log := o.queued[id]
		i := slices.IndexFunc(list, func(in spool.AttemptInfo) bool { return in.Attempt == id })
		if i < 0 {
			first := log.Batches[0].First
			list, i = append(list, spool.AttemptInfo{Attempt: id, First: first, Next: first}), len(list)
		}
		in := &list[i]
		if log.Next <= in.Next {
			continue // the spool has all of it
		}
		if in.State == spool.Shipped {
			in.State = spool.Waiting
		}
		for _, b := range log.Batches {
			if b.First+b.Count > in.Next {
				in.Batches++
				in.Bytes += int64(len(b.Text))
				in.Decoded += int64(len(b.Text))
			}
		}
		in.Next = log.Next
	}
	return list, nil
}

// Batches are the spooled ones from a number on, and then those in memory that follow them.
func (o *offline) Batches(_ context.Context, id string, from int64) iter.Seq2[spool.Batch, error] {
	return func(yield func(spool.Batch, error) bool) {
		if err := o.Refresh(); err != nil {
			yield(spool.Batch{}, err)
			return
		}
		next := from
		for b, err := range o.Reader.Batches(id, from) {
			if h, ok := errors.AsType[*spool.HoleError](err); ok {
				next = h.Next
			} else if err == nil {
				next = b.Next()
			}
			if !yield(b, err) {
				return
			}
		}
		for b, err := range o.fromMemory(id, next) {
			if !yield(b, err) {
				return
			}
		}
	}
}

// fromMemory are the batches of an attempt that end above a number. What is missing before the first of them was shipped.
func (o *offline) fromMemory(id string, next int64) iter.Seq2[spool.Batch, error] {
	return func(yield func(spool.Batch, error) bool) {
		first := true
		for _, q := range o.queued[id].Batches {
			end := q.First + q.Count
			if end <= next {
				continue
			}
			if q.First > next && !first && !yield(spool.Batch{}, &spool.HoleError{Attempt: id, First: next, Next: q.First, Reason: spool.ReasonMissing}) {
				return
			}
			first, next = false, end
			if q.Damaged {
				if !yield(spool.Batch{}, &spool.HoleError{Attempt: id, First: q.First, Next: end, Reason: spool.ReasonCorrupt}) {
					return
				}
				continue
			}
			if !yield(spool.Batch{
				Attempt: id, First: q.First, Count: q.Count, Encoding: shipper.EncodingIdentity, Decoded: int64(len(q.Text)),
				Stored: time.Now(), Data: q.Text,
			}, nil) {
				return
			}
		}
	}
}

func (o *offline) DeadLetters(context.Context) iter.Seq2[spool.DeadLetter, error] {
	return o.Reader.DeadLetters()
}

func (o *offline) Remove(ctx context.Context, id string) error {
	if _, ok := o.queued[id]; ok {
		return exit(exitFailed, fmt.Errorf("a part of %s is in memory that the agent left: start the agent, and remove it then", id))
	}
	return o.change(ctx, func(s *spool.Spool) error { return s.Remove(ctx, id) })
}

func (o *offline) RemoveDead(ctx context.Context, id string) error {
	return o.change(ctx, func(s *spool.Spool) error { return s.RemoveDead(ctx, id) })
}

// jobOf splits an attempt's id, which is <job>/<attempt>.
func jobOf(id string) (job string, attempt int64) {
	i := strings.LastIndexByte(id, '/')
	if i < 0 {
		return id, 0
	}
	n, err := strconv.ParseInt(id[i+1:], 10, 64)
	if err != nil {
		return id, 0
	}
	return id[:i], n
}

// pick finds the attempt that JOB, JOB/ATTEMPT or --attempt names: the latest one by default.
func pick(list []spool.AttemptInfo, job string, attempt int64) (spool.AttemptInfo, error) {
	var found []spool.AttemptInfo
	for _, in := range list {
		j, n := jobOf(in.Attempt)
		if in.Attempt == job || j == job && (attempt == 0 || n == attempt) {
			found = append(found, in)
		}
	}
	if len(found) == 0 {
		return spool.AttemptInfo{}, exit(exitFailed, fmt.Errorf("nothing of %s is in the spool; agentd spool ls lists what is (a log that was shipped is on the server)", job))
	}
	return slices.MaxFunc(found, func(a, b spool.AttemptInfo) int {
		_, x := jobOf(a.Attempt)
		_, y := jobOf(b.Attempt)
		return int(min(max(x-y, -1), 1))
	}), nil
}
