package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentd/agent"
)

func (c *cli) statusCommand() *cobra.Command {
	var asJSON, check bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Say how the running agent stands: link, polls, jobs, logs",
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := c.daemon(cmd.Flags())
			if err != nil {
				return err
			}
			var st agent.Status
			if err := d.call(cmd.Context(), http.MethodGet, "/v1/status", nil, &st); err != nil {
				return err
			}
			if asJSON {
				enc := json.NewEncoder(c.out)
				enc.SetIndent("", "  ")
				err = enc.Encode(st)
			} else {
				err = show(c.out, &st)
			}
			if err != nil {
				return err
			}
			if check && !st.Healthy {
				return exit(exitFailed, errors.New("not healthy: "+strings.Join(st.Faults, "; ")))
			}
			return nil
		},
	}
	addOverrides(cmd.Flags())
	cmd.Flags().BoolVar(&asJSON, "json", false, "print it for programs")
	cmd.Flags().BoolVar(&check, "check", false, "exit 0 only when the agent is healthy")
	return cmd
}

// summary is the status in one line.
func summary(st *agent.Status) string {
	line := fmt.Sprintf("%s: %d of %d jobs running", st.State, st.Running, st.MaxJobs)
	if st.Reporting > 0 {
		line += fmt.Sprintf(", %d outcomes to deliver", st.Reporting)
	}
	if st.Detail != "" {
		line += ": " + st.Detail
	}
	return line
}

// notice is the status in a few words, for `systemctl status`; spooled is how many bytes of logs wait on disk.
func notice(st *agent.Status, spooled int64) string {
	state := st.State
	if state == "working" {
		state = "polling"
	}
	words := state + "; " + count(st.Running, "job")
	if st.Reporting > 0 {
		words += "; " + count(st.Reporting, "outcome") + " waiting"
	}
	if st.Logs.Memory > 0 { // else what the queue has in use is kept for running jobs, and nothing waits
		spooled += st.Logs.MemoryUsed
	}
	if spooled > 0 {
		words += "; " + roughly(spooled) + " waiting"
	}
	if len(st.Faults) > 0 {
		words += "; " + strings.Join(st.Faults, "; ")
	}
	return words
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// roughly is a size as people say it: 12 MB. Unlike size, it isn't to be read back.
func roughly(n int64) string {
	const kB, mB, gB = 1e3, 1e6, 1e9
	switch f := float64(n); {
	case f >= gB:
		return fmt.Sprintf("%.1f GB", f/gB)
	case f >= mB:
		return fmt.Sprintf("%.0f MB", f/mB)
	default:
		return fmt.Sprintf("%.0f kB", math.Ceil(f/kB))
	}
}

// show prints the status for people.
func show(w io.Writer, st *agent.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	p := func(format string, args ...any) { fmt.Fprintf(t, format+"\n", args...) }
	p("agent\t%s (%s), version %s, pid %d, up %v", st.Name, or(st.AgentID, "not linked"), st.Version, st.PID, ms(st.UpForMs))
	p("state\t%s", summary(st))
	p("link\t%s: %s", st.Server, st.Link.Detail)
	polls := "none answered yet"
	if !st.Polls.Answered.IsZero() {
		polls = fmt.Sprintf("%d answered, the last %v ago", st.Polls.Count, time.Since(st.Polls.Answered).Round(time.Second))
	}
	if st.Polls.Learned {
		polls += fmt.Sprintf("; something on the way cuts them, so they wait %v only", st.Polls.Wait)
	}
	if st.Polls.Waiting != "" {
		polls += "; not asking: " + st.Polls.Waiting
	}
	if st.Polls.Err != "" {
		polls += fmt.Sprintf("; failed %d times: %s", st.Polls.Failing, st.Polls.Err)
	}
	p("polls\t%s", polls)
	p("heartbeats\t%d answered, the last %v late, the worst %v", st.Lateness.Count, st.Lateness.Last.Round(time.Millisecond), st.Lateness.Worst.Round(time.Millisecond))
	p("types\t%s", or(strings.Join(st.Types, ", "), "none"))
	p("memory\t%s of %s of queue", roughly(st.Logs.MemoryUsed), roughly(st.Logs.MemorySize))
	for _, f := range st.Faults {
		p("fault\t%s", f)
	}
	if err := t.Flush(); err != nil || len(st.Jobs) == 0 {
		return err
	}
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "JOB\tATTEMPT\tTYPE\tSTATE\tFOR\tPRODUCED\tBUFFERED\tDURABLE\tSHIPPED")
	for _, j := range st.Jobs {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%v", j.Job, j.Attempt, j.Type, j.State, ms(j.ForMs))
		if j.Log != nil {
			fmt.Fprintf(t, "\t%d\t%d\t%d\t%d", j.Log.Records, j.Log.Buffered, j.Log.Durable, j.Log.Shipped)
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}

func ms(n int64) time.Duration { return (time.Duration(n) * time.Millisecond).Round(time.Second) }

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
