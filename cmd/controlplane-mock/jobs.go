package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentd/controlplane-mock/adminclient"
)

func (a *app) jobsCmd() *cobra.Command {
	var f adminclient.JobFilter
	var all bool
	c := &cobra.Command{Use: "jobs", Short: "List jobs, oldest first", Args: cobra.NoArgs}
	fl := c.Flags()
	fl.StringVar(&f.Status, "status", "", "only those that are pending, offered, running, succeeded, failed, cancelled or timedOut")
	fl.StringVar(&f.AgentID, "agent-id", "", "only those pinned to or run by this agent")
	fl.StringVar(&f.Type, "type", "", "only those of this type")
	fl.IntVar(&f.Limit, "limit", 100, "at most so many")
	fl.StringVar(&f.After, "after", "", "go on after this page (the last one's next)")
	fl.BoolVar(&all, "all", false, "all pages")
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		page, err := client.Jobs(c.Context(), f)
		for err == nil && all && page.Next != "" {
			f.After = page.Next
			var more adminclient.Page[adminclient.Job]
			more, err = client.Jobs(c.Context(), f)
			page.Items, page.Next = append(page.Items, more.Items...), more.Next
		}
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(page)
		}
		var rows [][]string
		for _, j := range page.Items {
			row := []string{j.ID, j.Type, status(j), age(j.CreatedAt), strconv.Itoa(len(j.Attempts)), j.AgentID, j.Reason}
			if last := j.Last(); last != nil {
				row[5] = last.AgentID
			}
			rows = append(rows, row)
		}
		if err := a.table([]string{"JOB", "TYPE", "STATUS", "AGE", "ATTEMPTS", colAgent, "REASON"}, rows); err != nil {
			return err
		}
		if page.Next != "" {
			a.notef("there are more: --after %s, or --all", page.Next)
		}
		return nil
	}
	return a.jsonFlag(c)
}

func status(j adminclient.Job) string {
	if j.CancelRequested && !j.Settled() {
		return j.Status + " (cancelling)"
	}
	return j.Status
}

func (a *app) jobCmd() *cobra.Command {
	c := &cobra.Command{Use: "job JOB", Short: "Show a job and its attempts", Args: cobra.ExactArgs(1)}
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		job, err := client.Job(c.Context(), args[0])
		if err != nil {
			return err
		}
		return a.showJob(job)
	}
	return a.jsonFlag(c)
}

func (a *app) showJob(j adminclient.Job) error {
	if a.json {
		return a.printJSON(j)
	}
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(a.stdout, "%-12s %s\n", name+":", printable(value))
		}
	}
	field("job", j.ID)
	field("type", j.Type)
	field("status", status(j))
	field("reason", j.Reason)
	field("created", j.CreatedAt.Format(time.RFC3339))
	field("agent", j.AgentID)
	field("labels", labels(j.Labels))
	field("payload", string(j.Payload))
	field("retries", fmt.Sprintf("at most %d attempts, after %s", j.MaxAttempts, strings.Join(j.RetryOn, ", ")))
	if len(j.Attempts) == 0 {
		return nil
	}
	fmt.Fprintln(a.stdout)
	var rows [][]string
	for _, t := range j.Attempts {
		rows = append(rows, []string{
			strconv.FormatInt(t.Number, 10), t.State, t.AgentID, ended(t), length(t), logState(t), t.Error,
		})
	}
	if err := a.table([]string{"ATTEMPT", "STATE", colAgent, "EXIT", "TOOK", "LOG", "ERROR"}, rows); err != nil {
		return err
	}
	if last := j.Last(); len(last.Result) > 0 && string(last.Result) != "null" {
		fmt.Fprintf(a.stdout, "\nresult:\n%s\n", last.Result)
	}
	return nil
}

func ended(t adminclient.Attempt) string {
	switch {
	case !t.Over() || t.FinishedAt.IsZero():
		return ""
	case t.Signal != "":
		return t.Signal
	}
	return strconv.Itoa(t.ExitCode)
}

func length(t adminclient.Attempt) string {
	if t.StartedAt.IsZero() || t.FinishedAt.IsZero() {
		return ""
	}
	return t.FinishedAt.Sub(t.StartedAt).Round(time.Millisecond).String()
}

func logState(t adminclient.Attempt) string {
	switch {
	case t.LogsComplete:
		return fmt.Sprintf("%d, complete", t.LogNext)
	case t.LogRecords != nil:
		return fmt.Sprintf("%d of %d", t.LogNext, *t.LogRecords)
	}
	return fmt.Sprintf("%d so far", t.LogNext)
}

func (a *app) cancelCmd() *cobra.Command {
	var reason string
	c := &cobra.Command{Use: "cancel JOB", Short: "Cancel a job: SIGTERM, its grace period, SIGKILL", Args: cobra.ExactArgs(1)}
	c.Flags().StringVar(&reason, "reason", "", "why; the first reason stays")
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		job, err := client.Cancel(c.Context(), args[0], reason)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(job)
		}
		switch {
		case job.Settled() && job.Status != "cancelled":
			// Not what was asked for: the job had ended by itself.
			a.notef("job %s is %s: nothing to cancel", job.ID, job.Status)
			return &exitError{exitFailed, nil}
		case job.Settled():
			fmt.Fprintf(a.stdout, "%s is cancelled\n", job.ID)
		default:
			fmt.Fprintf(a.stdout, "%s is being cancelled\n", job.ID)
		}
		return nil
	}
	return a.jsonFlag(c)
}

func (a *app) retryCmd() *cobra.Command {
	c := &cobra.Command{Use: "retry JOB", Short: "Give a job that didn't succeed one more attempt", Args: cobra.ExactArgs(1)}
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		job, err := client.Retry(c.Context(), args[0])
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(job)
		}
		fmt.Fprintf(a.stdout, "%s is %s again\n", job.ID, job.Status)
		return nil
	}
	return a.jsonFlag(c)
}
