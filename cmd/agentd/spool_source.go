package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

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
	return &offline{Reader: r, dir: dir}, r.Close, nil
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

// offline reads the directory itself. Changing it needs the directory's lock: no agent may run.
type offline struct {
	*spool.Reader
	dir string
}

func (o *offline) Attempts(context.Context) ([]spool.AttemptInfo, error) {
	return o.Reader.Attempts(), nil
}

func (o *offline) Batches(_ context.Context, id string, from int64) iter.Seq2[spool.Batch, error] {
	return func(yield func(spool.Batch, error) bool) {
		if err := o.Refresh(); err != nil {
			yield(spool.Batch{}, err)
			return
		}
		o.Reader.Batches(id, from)(yield)
	}
}

func (o *offline) DeadLetters(context.Context) iter.Seq2[spool.DeadLetter, error] {
	return o.Reader.DeadLetters()
}

func (o *offline) Remove(ctx context.Context, id string) error {
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
