package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
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
			"Where the agent is linked already it prints the id and does nothing.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := c.load(cmd.Flags())
			if err != nil {
				return err
			}
			log := newLogger(c.err, zap.NewAtomicLevelAt(zap.WarnLevel))
			cfg, err := c.agentConfig(s, c.token(s), log)
			if err != nil {
				return err
			}
			for typ := range handlersOf(s) {
				cfg.Types = append(cfg.Types, typ)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), linkTimeout)
			defer cancel()
			id, err := agent.Enrol(ctx, cfg, e)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.out, id)
			return nil
		},
	}
	addOverrides(cmd.Flags())
	cmd.Flags().StringVar(&e.AgentID, "agent-id", "", "the id that the token is bound to: takes over a lost state directory")
	cmd.Flags().BoolVar(&e.Force, "force", false, "give up the identity that is there for a new one")
	return cmd
}
