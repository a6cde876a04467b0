package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

func (a *app) agentsCmd() *cobra.Command {
	c := &cobra.Command{Use: "agents", Short: "List agents; show, revoke or restore one", Args: cobra.NoArgs}
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		var all []adminclient.Agent
		for after := ""; ; {
			page, err := client.Agents(c.Context(), after, 0)
			if err != nil {
				return err
			}
			all = append(all, page.Items...)
			if after = page.Next; after == "" {
				break
			}
		}
		if a.json {
			return a.printJSON(adminclient.Page[adminclient.Agent]{Items: append([]adminclient.Agent{}, all...)})
		}
		var rows [][]string
		for _, g := range all {
			rows = append(rows, agentRow(g))
		}
		return a.table(agentHeader, rows)
	}
	c.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON, for programs")
	verb := func(name, short string, f func(*adminclient.Client, context.Context, string) (adminclient.Agent, error)) {
		sub := &cobra.Command{Use: name + " AGENT", Short: short, Args: cobra.ExactArgs(1)}
		sub.RunE = func(c *cobra.Command, args []string) error {
			client, err := a.client()
			if err != nil {
				return err
			}
			g, err := f(client, c.Context(), args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(g)
			}
			return a.table(agentHeader, [][]string{agentRow(g)})
		}
		c.AddCommand(sub)
	}
	type client = adminclient.Client
	verb("show", "Show one agent", (*client).Agent)
	verb("revoke", "Shut an agent out: no work, no calls; what runs goes on until its lease runs out", (*client).Revoke)
	verb("restore", "Let a revoked agent in again", (*client).Restore)
	verb("expire-key", "End an agent's API keys: it links again by proof", (*client).ExpireKey)
	return c
}

var agentHeader = []string{colAgent, "NAME", "STATE", "SEEN", "VERSION", "TYPES", "CONNECTORS", "LABELS"}

func agentRow(g adminclient.Agent) []string {
	state := "offline"
	switch {
	case g.Revoked:
		state = "revoked"
	case g.Online:
		state = "online"
	}
	seen := age(g.LastSeenAt)
	if seen != "" {
		seen += " ago"
	}
	return []string{g.ID, g.Name, state, seen, g.Version, strings.Join(g.Types, ","), strings.Join(g.Connectors, ","), labels(g.Labels)}
}

func (a *app) tokenCmd() *cobra.Command {
	var ttl time.Duration
	var r adminclient.TokenRequest
	c := &cobra.Command{
		Use:   "token",
		Short: "Mint an enrolment token, with which an agent links",
		Long: `Mint an enrolment token, with which an agent links. It is printed alone on standard output, this
once, so that it can be piped: controlplane-mock token | agentd link --config FILE --token-file -`,
		Args: cobra.NoArgs,
	}
	c.Flags().DurationVar(&ttl, "ttl", 0, "how long it is good (default: the server's)")
	c.Flags().IntVar(&r.MaxUses, "max-uses", 0, "how many agents may link with it (default 1)")
	c.Flags().StringVar(&r.AgentID, "agent-id", "", "for the machine that lost this agent's state: it takes the id over")
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		r.TTL = protocol.ToMillis(ttl)
		token, err := client.Token(c.Context(), r)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(map[string]string{"token": token})
		}
		fmt.Fprintln(a.stdout, token)
		return nil
	}
	return a.jsonFlag(c)
}

func (a *app) askCmd() *cobra.Command {
	var q adminclient.Query
	var timeout time.Duration
	c := &cobra.Command{
		Use:     "ask --type TYPE --connector CONNECTOR QUERY",
		Short:   "Put a query to an agent's connector and print the page",
		Args:    cobra.ExactArgs(1),
		Example: `  controlplane-mock ask --type io.atlas.entra --connector ucc_entra '{"term":"smith"}'`,
	}
	c.Flags().StringVar(&q.Type, "type", "", "the query's type")
	c.Flags().StringVar(&q.Connector, "connector", "", "the connector that is asked")
	c.Flags().DurationVar(&timeout, "timeout", 5*time.Second, "how long to wait for the answer")
	c.RunE = func(c *cobra.Command, args []string) error {
		if q.Type == "" || q.Connector == "" {
			return usage("--type and --connector are required")
		}
		var err error
		if q.Query, err = a.readJSON("the query", args[0]); err != nil {
			return err
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		q.Timeout = protocol.ToMillis(timeout)
		page, err := client.Ask(c.Context(), q)
		if adminclient.CodeOf(err) == protocol.CodeNotFound {
			return fmt.Errorf("this control plane takes no queries: %w", err)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(a.stdout, "%s\n", page)
		return nil
	}
	return c
}
