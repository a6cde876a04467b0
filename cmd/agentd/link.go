package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"agentd/agent"
	"agentd/agent/identity"
)

// linkTimeout bounds `agentd link`: a person waits for it.
const linkTimeout = 30 * time.Second

func (c *cli) linkCommand() *cobra.Command {
	var e identity.Enrolment
	cmd := &cobra.Command{
		Use:   "link",
		Short: "Link this host to the control plane with an enrolment token, once; prints the agent's id",
		Long: "link makes the agent's key pair, proves it to the control plane and prints the agent's id.\n" +
			"Where the agent is linked already it prints the id and does nothing.\n\n" +
			"Called by root it acts as the owner of the state directory, so that the agent can use what it leaves there.\n" +
			"--server, and --insecure with it, is written into the config file, if that names no server. It starts nothing; it says how to.",
		Example: "  agentd link --server https://control.example.com --token-file ./token",
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.link(cmd.Context(), cmd.Flags(), e) },
	}
	addOverrides(cmd.Flags())
	cmd.Flags().StringVar(&e.AgentID, "agent-id", "", "the id that the token is bound to: takes over a lost state directory")
	cmd.Flags().BoolVar(&e.Force, "force", false, "give up the identity that is there for a new one")
	return cmd
}

func (c *cli) link(ctx context.Context, flags *pflag.FlagSet, e identity.Enrolment) error {
	s, err := c.load(flags)
	if err != nil {
		return err
	}
	token := c.token(s)
	if s.TokenFile != "-" { // standard input needs no rights, and may be a terminal that nobody types at
		token = readNow(token)
	}
	cfg, err := c.agentConfig(s, token, newLogger(c.err, zap.NewAtomicLevelAt(zap.WarnLevel)))
	if err != nil {
		return err
	}
	for typ := range handlersOf(s) {
		cfg.Types = append(cfg.Types, typ)
	}
	// The config first: an identity must not be given up, nor a token used, for an agent that can't be told where to go.
	path, named := cmp.Or(c.config, c.getenv("AGENTD_CONFIG"), defaultConfig), s.Server
	var edit *change
	if flags.Changed("server") || flags.Changed("insecure") {
		if named, edit, err = keepServer(path, s.Server); err != nil {
			return err
		}
		defer edit.discard()
	}
	ctx, cancel := context.WithTimeout(ctx, linkTimeout)
	defer cancel()
	var id string
	if err := asOwner(s.StateDir, func() (err error) {
		id, err = agent.Enrol(ctx, cfg, e)
		return err
	}); err != nil {
		return err
	}
	fmt.Fprintln(c.out, id)
	if err := edit.commit(); err != nil {
		return fmt.Errorf("the agent is linked, but the server isn't in its config: %w", err)
	}
	switch named {
	case s.Server:
	case "":
		fmt.Fprintf(c.err, "agentd: there is no %s: the agent must be told the server when it is started, too\n", path)
	default:
		fmt.Fprintf(c.err, "agentd: %s names another server, %s: the agent will use that one\n", path, named)
	}
	if _, err := os.Stat("/run/systemd/system"); err == nil && os.Geteuid() == 0 {
		fmt.Fprintln(c.err, "agentd: linked; `systemctl enable --now agentd` starts it, `agentd status` says how it stands")
	}
	return nil
}
