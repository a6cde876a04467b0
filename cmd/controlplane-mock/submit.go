package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

// maxPayloadFile bounds what is read from a file or standard input: the server takes 256 KiB.
const maxPayloadFile = 16 << 20

// jobFlags are the fields of a job that submit and run share.
type jobFlags struct {
	kind, agentID, key string
	labels, env        []string
	retryOn            []string
	maxAttempts        int
	timeout, grace     time.Duration
	exclusive          bool
	set                *pflag.FlagSet
}

func (j *jobFlags) flags(f *pflag.FlagSet, kind string) {
	j.set = f
	f.StringVar(&j.kind, "type", kind, "the job's type, as an agent's handlers name it")
	f.StringVar(&j.agentID, "agent-id", "", "only this agent may run it")
	f.StringArrayVar(&j.labels, "label", nil, "NAME=VALUE that the agent must have (repeatable)")
	f.StringArrayVar(&j.env, "env", nil, "NAME=VALUE for the job's environment (repeatable)")
	f.IntVar(&j.maxAttempts, "max-attempts", 0, "how often it may be tried (default: the server's, 3)")
	f.StringSliceVar(&j.retryOn, "retry-on", nil, "outcomes after which it is tried again: lost, failed, timedOut (default: lost)")
	f.DurationVar(&j.timeout, "timeout", 0, "how long one attempt may take (default: the handler's)")
	f.DurationVar(&j.grace, "grace", 0, "time between SIGTERM and SIGKILL (default: the handler's)")
	f.BoolVar(&j.exclusive, "exclusive", false, "stop it rather than ever have two of it at once")
	f.StringVar(&j.key, "idempotency-key", "", "the same key and job again return the first one")
}

func (j *jobFlags) submission(payload json.RawMessage) (adminclient.Submission, error) {
	s := adminclient.Submission{
		Type: j.kind, Payload: payload, AgentID: j.agentID, MaxAttempts: j.maxAttempts, Exclusive: j.exclusive,
		Timeout: protocol.ToMillis(j.timeout), IdempotencyKey: j.key,
	}
	if j.set.Changed("grace") { // 0 is a grace, too
		s.Grace = new(protocol.ToMillis(j.grace))
	}
	for _, o := range j.retryOn {
		s.RetryOn = append(s.RetryOn, protocol.Outcome(o))
	}
	if j.kind == "" {
		return s, usage("--type is required")
	}
	var err error
	if s.Labels, err = pairs("label", j.labels); err != nil {
		return s, err
	}
	s.Env, err = pairs("env", j.env)
	return s, err
}

func (a *app) submitCmd() *cobra.Command {
	var j jobFlags
	var payload string
	c := &cobra.Command{
		Use:   "submit --type TYPE [--payload JSON|@FILE|-]",
		Short: "Submit a job and print its id",
		Args:  cobra.NoArgs,
		Example: `  controlplane-mock submit --type extract --payload '{"table":"users"}'
  controlplane-mock submit --type extract --payload @payload.json --label region=eu-1`,
	}
	j.flags(c.Flags(), "")
	c.Flags().StringVar(&payload, "payload", "", "the job's payload: JSON, @FILE, or - for standard input")
	c.RunE = func(c *cobra.Command, _ []string) error {
		raw, err := a.readJSON("--payload", payload)
		if err != nil {
			return err
		}
		s, err := j.submission(raw)
		if err != nil {
			return err
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		job, created, err := client.Submit(c.Context(), s)
		if err != nil {
			return err
		}
		if !created {
			a.notef("the same job was submitted with this key before")
		}
		if a.json {
			return a.printJSON(job)
		}
		fmt.Fprintln(a.stdout, job.ID)
		return nil
	}
	return a.jsonFlag(c)
}

// readJSON reads a JSON argument: the text itself, @FILE, or - for standard input. Empty is none.
func (a *app) readJSON(what, arg string) (json.RawMessage, error) {
	var raw []byte
	var err error
	switch {
	case arg == "":
		return nil, nil
	case arg == "-":
		raw, err = io.ReadAll(io.LimitReader(a.stdin, maxPayloadFile+1))
	case strings.HasPrefix(arg, "@"):
		raw, err = os.ReadFile(arg[1:])
	default:
		raw = []byte(arg)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if len(raw) > maxPayloadFile {
		return nil, usage("%s: more than %d bytes", what, maxPayloadFile)
	}
	if raw = bytes.TrimSpace(raw); !json.Valid(raw) {
		return nil, usage("%s isn't JSON (text needs its quotes: '\"text\"')", what)
	}
	return raw, nil
}
