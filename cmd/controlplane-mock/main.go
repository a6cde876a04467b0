package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"

	"github.com/spf13/cobra"

	"agentd/internal/man"
	"agentd/internal/version"
)

func main() {
	a := &app{stdout: os.Stdout, stderr: os.Stderr, stdin: os.Stdin, getenv: os.Getenv}
	os.Exit(a.run(context.Background(), os.Args[1:]))
}

// app is one invocation of the command.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string

	conn connection
	json bool
	ran  bool            // a command's own code was reached: what fails before is usage
	http *http.Transport // made on first use
}

func (a *app) run(ctx context.Context, args []string) int {
	root := a.root() //nolint:contextcheck // commands get theirs from cobra
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if a.http != nil {
		a.http.CloseIdleConnections()
	}
	if err != nil && !a.ran {
		err = &exitError{exitUsage, fmt.Errorf("%w (see controlplane-mock --help)", err)}
	}
	return a.report(err)
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "controlplane-mock",
		Short: "The reference control plane for agentd, and the way to use one",
		Long: `The reference control plane for agentd, and the way to use one.

serve runs it. All other commands talk to a running one: give --url and --admin-token-file, or set
CONTROLPLANE_URL and CONTROLPLANE_ADMIN_TOKEN_FILE (flags win).

Exit codes: 0 done, 1 failed or a negative answer, 2 usage, 3 the server can't be reached,
4 not permitted, 75 try again later, 78 configuration. run exits with the job's own code.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version.String(),
		// No Args: cobra then names an unknown command, and those that look like it.
		RunE: func(c *cobra.Command, _ []string) error {
			c.SetOut(a.stderr)
			if err := c.Help(); err != nil {
				return err
			}
			return &exitError{exitUsage, nil}
		},
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetIn(a.stdin)
	root.AddCommand(a.serveCmd(), man.Command(root), &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Run: func(*cobra.Command, []string) { fmt.Fprintln(a.stdout, version.String()) },
	})
	for _, c := range []*cobra.Command{
		a.tokenCmd(), a.submitCmd(), a.runCmd(), a.jobsCmd(), a.jobCmd(), a.cancelCmd(), a.retryCmd(),
		a.logsCmd(), a.agentsCmd(), a.askCmd(), a.faultsCmd(), a.outageCmd(), a.conformanceCmd(),
	} {
		a.conn.flags(c)
		root.AddCommand(c)
	}
	a.mark(root)
	return root
}

// mark lets run tell a command's own failure from a wrong invocation.
func (a *app) mark(c *cobra.Command) {
	if f := c.RunE; f != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			a.ran = true
			return f(c, args)
		}
	}
	for _, sub := range c.Commands() {
		a.mark(sub)
	}
}

// notef tells a person what is going on, on standard error.
func (a *app) notef(format string, args ...any) {
	fmt.Fprintf(a.stderr, "controlplane-mock: "+format+"\n", args...)
}
