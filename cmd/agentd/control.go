package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"agentd/agent"
)

// dialTimeout is for a socket on this host: a daemon that doesn't accept within it is stuck.
const dialTimeout = 5 * time.Second

// daemonClient speaks to the running agent over its socket.
type daemonClient struct {
	path string
	http http.Client
}

func (c *cli) daemon(flags *pflag.FlagSet) (*daemonClient, error) {
	s, err := c.loadAnyway(flags)
	if err != nil {
		return nil, err
	}
	return dialing(socketPath(s)), nil
}

// loadAnyway is for what concerns a running agent, or one that ran: it can be asked and drained while its config file has
// faults. Only runtime_dir counts.
func (c *cli) loadAnyway(flags *pflag.FlagSet) (settings, error) {
	s, err := c.load(flags)
	if e, ok := errors.AsType[*configError](err); err != nil && (!ok || e.unread) {
		return s, err
	}
	return s, nil
}

func dialing(path string) *daemonClient {
	return &daemonClient{path, http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			d := net.Dialer{Timeout: dialTimeout}
			return d.DialContext(ctx, "unix", path)
		},
		DisableKeepAlives: true,
	}}}
}

// call makes one call. What goes wrong carries the exit code that architecture.md names.
func (d *daemonClient) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agentd"+path, body)
	if err != nil {
		return err
	}
	resp, err := d.http.Do(req)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return exit(exitDenied, fmt.Errorf("%s: not permitted: ask as root, as the agent's user or as a member of its group", d.path))
	case err != nil:
		return exit(exitUnreachable, fmt.Errorf("no agent answers on %s (%w): is it running, and is this its config?", d.path, err))
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 == 2 {
		if out == nil {
			return nil
		}
		if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
			return exit(exitUnreachable, fmt.Errorf("answer on %s was cut: %w", d.path, err))
		}
		return nil
	}
	var p problem
	_ = json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&p) // the status says enough
	err = errors.New(cmp.Or(p.Error, resp.Status))
	if resp.StatusCode == http.StatusForbidden {
		return exit(exitDenied, err)
	}
	return exit(exitFailed, err)
}

func (c *cli) drainCommand() *cobra.Command {
	var req drainRequest
	var off bool
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Take no more jobs; running ones go on (--off takes jobs again)",
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := c.daemon(cmd.Flags())
			if err != nil {
				return err
			}
			req.On = !off
			var st agent.Status
			if err := d.call(cmd.Context(), http.MethodPost, "/v1/drain", req, &st); err != nil {
				return err
			}
			fmt.Fprintln(c.out, summary(&st))
			return nil
		},
	}
	addOverrides(cmd.Flags())
	cmd.Flags().BoolVar(&req.Wait, "wait", false, "wait until nothing runs and all outcomes and logs are delivered")
	cmd.Flags().BoolVar(&off, "off", false, "end the drain")
	cmd.MarkFlagsMutuallyExclusive("wait", "off")
	return cmd
}

func (c *cli) reloadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Reload labels, handlers, limits and log level; running jobs aren't touched",
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := c.daemon(cmd.Flags())
			if err != nil {
				return err
			}
			return d.call(cmd.Context(), http.MethodPost, "/v1/reload", nil, nil)
		},
	}
	addOverrides(cmd.Flags())
	return cmd
}
