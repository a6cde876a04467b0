package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentd/spool"
)

func (c *cli) spoolCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "spool",
		Short: "Look at the logs that wait on this host",
		Long: "The spool holds what couldn't be shipped yet. These commands work against a running agent, with the agent\n" +
			"stopped, after a crash and on a full disk, and but for rm they change nothing. After a crash ls, cat, verify\n" +
			"and export also show what the agent had in memory.",
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help() // it goes to where errors would
			return exit(exitUsage, errors.New(""))
		},
	}
	for _, sub := range []*cobra.Command{
		c.spoolLsCommand(), c.spoolCatCommand(), c.spoolStatCommand(), c.spoolVerifyCommand(), c.spoolExportCommand(), c.spoolRmCommand(),
	} {
		sub.Args = usage(sub.Args)
		addOverrides(sub.Flags())
		cmd.AddCommand(sub)
	}
	return cmd
}

// spoolLine is a line of ls.
type spoolLine struct {
	Job     string `json:"job"`
	Attempt int64  `json:"attempt"`
	State   string `json:"state"`
	Lines   int64  `json:"lines"`
	First   int64  `json:"first"`
	Next    int64  `json:"next"`
	Bytes   int64  `json:"bytes"`
	AgeMs   int64  `json:"ageMs"`
	ID      string `json:"id,omitempty"`     // of a dead letter
	Reason  string `json:"reason,omitempty"` // of a dead letter
}

func (c *cli) spoolLsCommand() *cobra.Command {
	var asJSON bool
	var archive string
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List the attempts whose logs are here: waiting, shipped (kept), dead or orphan",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			src, done, err := c.source(cmd.Context(), cmd.Flags(), archive)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, done()) }()
			lines, err := spoolLines(cmd.Context(), src)
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(c.out)
				enc.SetIndent("", "  ")
				return enc.Encode(lines)
			}
			t := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "JOB\tATTEMPT\tSTATE\tLINES\tBYTES\tAGE")
			for _, l := range lines {
				state := l.State
				if l.Reason != "" {
					state += fmt.Sprintf(" (%s: %s)", l.ID, l.Reason)
				}
				fmt.Fprintf(t, "%s\t%d\t%s\t%d\t%s\t%v\n", l.Job, l.Attempt, state, l.Lines, roughly(l.Bytes), ms(l.AgeMs))
			}
			return t.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it for programs")
	cmd.Flags().StringVar(&archive, "from", "", "list an archive that export wrote")
	return cmd
}

func spoolLines(ctx context.Context, src spoolSource) ([]spoolLine, error) {
	list, err := src.Attempts(ctx)
	if err != nil {
		return nil, err
	}
	lines := make([]spoolLine, 0, len(list))
	for _, in := range list {
		job, n := jobOf(in.Attempt)
		l := spoolLine{Job: job, Attempt: n, State: in.State.String(), Lines: in.Next - in.First, First: in.First, Next: in.Next, Bytes: in.Bytes}
		if !in.Oldest.IsZero() {
			l.AgeMs = time.Since(in.Oldest).Milliseconds()
		}
		lines = append(lines, l)
	}
	area, ok := src.(spoolArea)
	if !ok {
		return lines, nil
	}
	for d, err := range area.DeadLetters(ctx) {
		if err != nil {
			lines = append(lines, spoolLine{State: spool.Dead.String(), Reason: err.Error()})
			continue
		}
		job, n := jobOf(d.Batch.Attempt)
		lines = append(lines, spoolLine{
			Job: job, Attempt: n, State: spool.Dead.String(), Lines: d.Batch.Count, First: d.Batch.First, Next: d.Batch.Next(),
			Bytes: int64(len(d.Batch.Data)), AgeMs: time.Since(d.Time).Milliseconds(), ID: d.ID, Reason: d.Reason,
		})
	}
	return lines, nil
}

func (c *cli) spoolStatCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stat",
		Short: "Say how full the spool is, and what of it can't be read",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			area, done, err := c.spoolArea(cmd.Context(), cmd.Flags())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, done()) }()
			st := spoolStat{}
			switch a := area.(type) {
			case *spool.Client:
				st.Agent = "running"
				st.Stats, err = a.Stats(cmd.Context())
			case *offline:
				st.Agent = "not running"
				st.Stats = a.Stats()
				for _, q := range a.Quarantine() {
					st.Quarantine = append(st.Quarantine, q.Name)
				}
				for _, d := range a.Damage() {
					st.Damage = append(st.Damage, d.Error())
				}
			}
			if err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(c.out)
				enc.SetIndent("", "  ")
				return enc.Encode(st)
			}
			return st.print(c.out)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it for programs")
	return cmd
}

type spoolStat struct {
	Agent string `json:"agent"`
	spool.Stats
	Quarantine []string `json:"quarantine,omitempty"`
	Damage     []string `json:"damage,omitempty"`
}

func (st *spoolStat) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "agent\t%s\n", st.Agent)
	fmt.Fprintf(t, "waiting\t%d batches, %s\n", st.Batches, roughly(st.Bytes))
	fmt.Fprintf(t, "disk\t%s used in %s, %s of %s free\n", roughly(st.DiskUsed), count(st.Epochs, "epoch"), roughly(st.DiskFree), roughly(st.DiskTotal))
	if st.Full {
		fmt.Fprintf(t, "full\tnothing more fits for now\n")
	}
	fmt.Fprintf(t, "dead letters\t%d\n", st.DeadLetters)
	fmt.Fprintf(t, "quarantine\t%s\n", roughly(st.Quarantined))
	for _, d := range st.Damage {
		fmt.Fprintf(t, "damage\t%s\n", d)
	}
	return t.Flush()
}

// change opens the spool for one change.
func (o *offline) change(ctx context.Context, f func(*spool.Spool) error) error {
	s, err := spool.Open(spool.Config{Dir: o.dir, MinFree: -1})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var run sync.WaitGroup
	var runErr error
	run.Go(func() { runErr = s.Run(ctx) })
	err = f(s)
	cancel()
	run.Wait()
	return errors.Join(err, runErr)
}
