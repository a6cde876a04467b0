package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"agentd/agent"
	"agentd/agent/identity"
	"agentd/agent/protocol"
	"agentd/internal/man"
	"agentd/internal/version"
)

// Exit codes, the same in every command of the project.
const (
	exitDone        = 0
	exitFailed      = 1 // failed, or a negative answer; a second agent on one state directory, too
	exitUsage       = 2
	exitUnreachable = 3 // daemon or server not reachable
	exitDenied      = 4 // not permitted
	exitAgain       = 75
	exitConfig      = 78
)

// exitError carries an exit code to the end.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func exit(code int, err error) error { return &exitError{code, err} }

// cli is what all commands share.
type cli struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
	environ  func() []string
	config   string // --config
}

func (c *cli) execute(ctx context.Context, args []string) int {
	root := c.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(c.err, "agentd: "+strings.ReplaceAll(text, "\n", "\nagentd: "))
	}
	return codeOf(err)
}

// codeOf finds the exit code of an error by what it is.
func codeOf(err error) int {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code
	}
	if _, ok := errors.AsType[*configError](err); ok {
		return exitConfig
	}
	if _, ok := errors.AsType[*agent.InUseError](err); ok {
		return exitFailed
	}
	if errors.Is(err, identity.ErrNotLinked) || errors.Is(err, identity.ErrNoToken) {
		return exitConfig
	}
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		switch e.Code {
		case protocol.CodeUnauthenticated, protocol.CodeRevoked:
			return exitDenied
		case protocol.CodeThrottled, protocol.CodeUnavailable:
			return exitAgain
		case "":
			return exitUnreachable
		}
		return exitFailed
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) || errors.Is(err, identity.ErrNotWritable) {
		return exitDenied
	}
	return exitFailed
}

func (c *cli) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "agentd",
		Short:         "Run a control plane's jobs on this host, and lose no line of what they print",
		Long:          "agentd asks a control plane for jobs, runs each under a lease, ships every line that it prints, and tells the outcome.\nIt opens no port: every connection goes out.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs, // an unknown command is a usage error, not cobra's plain one
		Version:       version.String(),
	}
	root.SetIn(c.in)
	root.SetOut(c.out)
	root.SetErr(c.err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit(exitUsage, err) })
	root.PersistentFlags().StringVarP(&c.config, "config", "c", "", "config file (default "+defaultConfig+", $AGENTD_CONFIG)")
	root.AddCommand(c.linkCommand(), c.runCommand(), c.statusCommand(), c.drainCommand(), c.reloadCommand(), c.checkCommand(), c.redactCommand(), c.spoolCommand(), c.endedCommand(), c.versionCommand(), man.Command(root))
	countArgs(root)
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return exit(exitUsage, fmt.Errorf("unknown command %q; agentd --help lists them", args[0]))
		}
		_ = cmd.Help() // it goes to where errors would
		return exit(exitUsage, errors.New(""))
	}
	return root
}

// countArgs makes a wrong number of arguments a usage error everywhere.
func countArgs(parent *cobra.Command) {
	for _, sub := range parent.Commands() {
		sub.Args = usage(sub.Args)
		countArgs(sub)
	}
}

// usage makes a wrong number of arguments a usage error.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	if check == nil {
		check = cobra.NoArgs
	}
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return exit(exitUsage, err)
		}
		return nil
	}
}

func (c *cli) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version",
		RunE: func(*cobra.Command, []string) error {
			fmt.Fprintln(c.out, "agentd", version.String())
			return nil
		},
	}
}
