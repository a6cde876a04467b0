package main

import (
	"errors"

	"github.com/spf13/cobra"

	"agentd/agent"
)

// endedCommand is for the unit's ExecStopPost=: systemd runs it after the agent has ended, however that was.
func (c *cli) endedCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:    "ended",
		Hidden: true, // not for people
		Short:  "Note how the agent ended ($SERVICE_RESULT, $EXIT_STATUS), so that its next start can say what ended its jobs",
		RunE: func(cmd *cobra.Command, _ []string) error {
			e := agent.End{Result: c.getenv("SERVICE_RESULT"), Status: c.getenv("EXIT_STATUS")}
			if e.Result == "" {
				return exit(exitUsage, errors.New("ended is called by systemd, which sets SERVICE_RESULT"))
			}
			s, err := c.loadAnyway(cmd.Flags())
			if err != nil {
				return err
			}
			return agent.NoteEnd(s.RuntimeDir, e)
		},
	}
	addOverrides(cmd.Flags())
	return cmd
}
