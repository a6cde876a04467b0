package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"github.com/spf13/cobra"

	"agentd/agent/protocol"
	"agentd/shipper"
	"agentd/spool"
)

// followPause is how soon cat -f looks again: a person doesn't notice it, and a daemon neither.
const followPause = 300 * time.Millisecond

type catOptions struct {
	attempt int64
	ndjson  bool
	follow  bool
	since   string
	stream  string
	archive string
}

func (c *cli) spoolCatCommand() *cobra.Command {
	var o catOptions
	cmd := &cobra.Command{
		Use:   "cat JOB[/ATTEMPT]",
		Short: "Print a job's log as far as it is here; what is lost shows as a line of its own",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			since, err := parseSince(o.since, time.Now())
			if err != nil {
				return exit(exitUsage, err)
			}
			switch o.stream {
			case "", string(protocol.Stdout), string(protocol.Stderr), string(protocol.Remark):
			default:
				return exit(exitUsage, fmt.Errorf("--stream %s: one of out, err, agent", o.stream))
			}
			src, done, err := c.source(cmd.Context(), cmd.Flags(), o.archive)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, done()) }()
			list, err := src.Attempts(cmd.Context())
			if err != nil {
				return err
			}
			in, err := pick(list, args[0], o.attempt)
			if err != nil {
				return err
			}
			p := &logPrinter{w: bufio.NewWriter(c.out), ndjson: o.ndjson, since: since, stream: protocol.Stream(o.stream)}
			return p.cat(cmd.Context(), src, in, o.follow && o.archive == "")
		},
	}
	cmd.Flags().Int64Var(&o.attempt, "attempt", 0, "which attempt (default: the latest)")
	cmd.Flags().BoolVar(&o.ndjson, "ndjson", false, "print records as JSON, one a line, with their numbers as n")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on as more is spooled")
	cmd.Flags().StringVar(&o.since, "since", "", "leave out what is older: a duration (10m) or a time (2006-01-02T15:04:05Z)")
	cmd.Flags().StringVar(&o.stream, "stream", "", "only out, err or agent")
	cmd.Flags().StringVar(&o.archive, "from", "", "read an archive that export wrote")
	return cmd
}

func parseSince(s string, now time.Time) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		return now.Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fmt.Errorf("--since %s: neither a duration (10m) nor a time (2006-01-02T15:04:05Z)", s)
	}
	return t, nil
}

// logPrinter prints records as text or NDJSON. In text, the parts of a line are joined per stream.
type logPrinter struct {
	w      *bufio.Writer
	ndjson bool
	since  time.Time
	stream protocol.Stream
	part   map[protocol.Stream][]byte
}

func (p *logPrinter) cat(ctx context.Context, src spoolSource, in spool.AttemptInfo, follow bool) error {
	from := in.First
	for {
		next, err := p.print(src.Batches(ctx, in.Attempt, from), from)
		if from = next; err != nil {
			if ctx.Err() != nil && follow {
				return nil // that is how a follower is ended
			}
			return err
		}
		if !follow {
			p.flushParts()
			return p.w.Flush()
		}
		if err := p.w.Flush(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(followPause):
		}
	}
}

// print prints batches and returns the number after the last.
func (p *logPrinter) print(batches iter.Seq2[spool.Batch, error], from int64) (int64, error) {
	for b, err := range batches {
		if h, ok := errors.AsType[*spool.HoleError](err); ok {
			p.gap(max(h.First, from), h.Next, h.Reason)
			from = h.Next
			continue
		}
		if err != nil {
			return from, err
		}
		if !b.Stored.Before(p.since) { // its records are older than the batch
			if err := p.batch(b, from); err != nil {
				return from, err
			}
		}
		from = b.Next()
	}
	return from, nil
}

func (p *logPrinter) batch(b spool.Batch, from int64) error {
	text, err := shipper.Decode(b.Data, b.Encoding)
	if err != nil {
		return fmt.Errorf("%s: records %d to %d: %w", b.Attempt, b.First, b.Next()-1, err)
	}
	n := b.First
	for line := range bytes.Lines(text) {
		r, err := protocol.ParseRecord(line)
		if err != nil {
			return fmt.Errorf("%s: record %d: %w", b.Attempt, n, err)
		}
		at := n
		n += r.Numbers()
		if n <= from || p.stream != "" && r.Stream != p.stream || r.Gap == 0 && time.UnixMicro(r.Time).Before(p.since) {
			continue
		}
		p.record(at, r, line)
	}
	return nil
}

func (p *logPrinter) record(n int64, r protocol.Record, line []byte) {
	switch {
	case p.ndjson:
		fmt.Fprintf(p.w, `{"n":%d,%s`, n, bytes.TrimPrefix(bytes.TrimSpace(line), []byte("{")))
		_ = p.w.WriteByte('\n') // an error stays in w
	case r.Gap > 0:
		p.gap(n, n+r.Gap, r.Reason)
	case r.Part:
		if p.part == nil {
			p.part = map[protocol.Stream][]byte{}
		}
		p.part[r.Stream] = append(append(p.part[r.Stream], r.Text...), r.Bytes...)
	default:
		_, _ = p.w.Write(p.part[r.Stream]) // an error stays in w
		delete(p.part, r.Stream)
		if r.Stream == protocol.Remark {
			_, _ = p.w.WriteString("[agentd] ")
		}
		_, _ = p.w.WriteString(r.Text)
		_, _ = p.w.Write(r.Bytes)
		if !r.EOF {
			_ = p.w.WriteByte('\n')
		}
	}
}

func (p *logPrinter) gap(first, next int64, reason string) {
	if p.ndjson {
		fmt.Fprintf(p.w, `{"n":%d,"s":"agent","gap":%d,"reason":%q}`+"\n", first, next-first, reason)
		return
	}
	p.flushParts()
	fmt.Fprintf(p.w, "[agentd] %d lines are missing here: %s\n", next-first, reason)
}

// flushParts prints lines whose end isn't here.
func (p *logPrinter) flushParts() {
	for _, s := range []protocol.Stream{protocol.Stdout, protocol.Stderr, protocol.Remark} {
		if len(p.part[s]) > 0 {
			_, _ = p.w.Write(append(p.part[s], '\n')) // an error stays in w
			delete(p.part, s)
		}
	}
}

// progress is a line on a terminal while something takes long.
type progress struct {
	w     io.Writer // nil = not a terminal
	what  string
	bytes int64
	total int64
	last  time.Time
}

func (p *progress) add(n int) {
	p.bytes += int64(n)
	if p.w == nil || time.Since(p.last) < time.Second/5 {
		return
	}
	p.last = time.Now()
	fmt.Fprintf(p.w, "\r%s: %s of %s\x1b[K", p.what, roughly(p.bytes), roughly(p.total))
}

func (p *progress) end() {
	if p.w != nil && !p.last.IsZero() {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
