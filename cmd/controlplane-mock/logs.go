package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

// formatJSON is the log format for programs.
const formatJSON = "ndjson"

// giveUpFlag is for those commands that come back to a server that went away.
func giveUpFlag(c *cobra.Command, d *time.Duration) {
	c.Flags().DurationVar(d, "give-up", 10*time.Minute, "how long to try to reach a server that went away")
}

func (a *app) logsCmd() *cobra.Command {
	var l logsCommand
	c := &cobra.Command{
		Use:   "logs JOB",
		Short: "Print a job's log",
		Long: `Print a job's log: all streams on standard output, a gap as a line of its own.

--follow waits for more, over restarts of the server too, and ends when the log is complete; without
--attempt it goes on with the job's next attempt, if there is one.`,
		Args: cobra.ExactArgs(1),
	}
	f := c.Flags()
	f.Int64Var(&l.attempt, "attempt", 0, "which attempt (default: the latest)")
	f.Int64Var(&l.from, "from", 0, "the first record number")
	f.StringVar(&l.format, "format", "text", "text, or ndjson: one record a line, with its number n")
	f.StringVar(&l.stream, "stream", "", "only out, err or agent (gaps are always shown)")
	f.BoolVarP(&l.follow, "follow", "f", false, "wait for more until the log is complete")
	giveUpFlag(c, &l.giveUp)
	c.RunE = func(c *cobra.Command, args []string) error {
		if a.json {
			l.format = formatJSON
		}
		switch {
		case l.format != "text" && l.format != formatJSON:
			return usage("--format %q: want text or ndjson", l.format)
		case l.stream != "" && l.stream != "out" && l.stream != "err" && l.stream != "agent":
			return usage("--stream %q: want out, err or agent", l.stream)
		case l.from < 0 || l.attempt < 0:
			return usage("--from and --attempt can't be negative")
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		l.a, l.client, l.job = a, client, args[0]
		if l.format == formatJSON {
			l.out = newJSONLog(a.stdout)
		} else {
			l.out = mergedLog(a.stdout)
		}
		if l.follow {
			err = l.followAll(c.Context())
		} else {
			err = l.print(c.Context())
		}
		if endErr := l.out.end(); err == nil {
			err = endErr
		}
		return err
	}
	return a.jsonFlag(c)
}

type logsCommand struct {
	attempt, from  int64
	format, stream string
	follow         bool
	giveUp         time.Duration

	a      *app
	client *adminclient.Client
	job    string
	out    logSink
}

func (l *logsCommand) write(r adminclient.LogRecord) {
	if l.stream == "" || r.Gap > 0 || r.Stream == protocol.Stream(l.stream) {
		l.out.write(r)
	}
}

func (l *logsCommand) print(ctx context.Context) error {
	for r, err := range l.client.Logs(ctx, l.job, adminclient.LogOptions{Attempt: l.attempt, From: l.from}) {
		if err != nil {
			return err
		}
		l.write(r)
	}
	return nil
}

// followAll hands each record on at once when it is the last that has come, and in larger writes
// while more are coming.
func (l *logsCommand) followAll(ctx context.Context) error {
	w := watcher{client: l.client, job: l.job, attempt: l.attempt, only: l.attempt > 0, latest: true, from: l.from, giveUp: l.giveUp}
	return w.watch(ctx, nil, func(e event, more bool) (bool, error) {
		switch {
		case e.record != nil:
			l.write(*e.record)
			if more {
				return true, nil
			}
			return true, l.out.flush()
		case e.end != nil:
			return false, nil
		}
		e.tell(l.a)
		return true, nil
	})
}
