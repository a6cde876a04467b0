package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
	"agentd/controlplane-mock/faults"
)

// noFaults explains a server without faults: its routes don't exist there.
func noFaults(err error) error {
	if adminclient.CodeOf(err) == protocol.CodeNotFound {
		return fmt.Errorf("the server was started without --faults: %w", err)
	}
	return err
}

func (a *app) faultsCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "faults",
		Short: "Show the injected faults; set or clear them",
		Long:  "Show the faults that a server started with --faults injects on its agents' side; set or clear them.",
		Args:  cobra.NoArgs,
	}
	c.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON, for programs")
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		rules, err := client.Faults(c.Context())
		if err != nil {
			return noFaults(err)
		}
		if a.json {
			return a.printJSON(map[string]any{"rules": rules})
		}
		var rows [][]string
		for i, r := range faultRows(rules) {
			rows = append(rows, append([]string{strconv.Itoa(i)}, r...))
		}
		return a.table([]string{"RULE", "DOES", "HITS", "MATCHES"}, rows)
	}
	set := &cobra.Command{
		Use:     "set RULES|@FILE|-",
		Short:   "Replace the rules; RULES is a JSON array",
		Example: `  controlplane-mock faults set '[{"path":"/agent/v1/jobs/*/attempts/*/logs","mode":"dropResponse","probability":0.05}]'`,
		Args:    cobra.ExactArgs(1),
	}
	set.RunE = func(c *cobra.Command, args []string) error {
		raw, err := a.readJSON("RULES", args[0])
		if err != nil {
			return err
		}
		var rules []faults.Rule
		if err := json.Unmarshal(raw, &rules); err != nil {
			return usage("RULES: %v", err)
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		return noFaults(client.SetFaults(c.Context(), rules))
	}
	clearAll := &cobra.Command{Use: "clear", Short: "Remove all rules", Args: cobra.NoArgs}
	clearAll.RunE = func(c *cobra.Command, _ []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		return noFaults(client.ClearFaults(c.Context()))
	}
	c.AddCommand(set, clearAll)
	return c
}

func faultRows(rules []faults.RuleState) [][]string {
	var rows [][]string
	for _, r := range rules {
		rows = append(rows, []string{r.String(), strconv.FormatInt(r.Hits, 10), r.Matches})
	}
	return rows
}

func (a *app) outageCmd() *cobra.Command {
	var spec faults.OutageSpec
	var length time.Duration
	var end bool
	c := &cobra.Command{
		Use:     "outage refuse|blackhole --for DURATION [--partition] | outage --end",
		Short:   "Take the agents' port down for a while",
		Example: "  controlplane-mock outage refuse --for 30s",
		Args:    cobra.MaximumNArgs(1),
	}
	c.Flags().DurationVar(&length, "for", 20*time.Second, "how long")
	c.Flags().BoolVar(&spec.Partition, "partition", false, "only the agents are cut off: their leases run out meanwhile")
	c.Flags().BoolVar(&end, "end", false, "end the outage now")
	c.RunE = func(c *cobra.Command, args []string) error {
		if end == (len(args) == 1) {
			return usage("want either refuse or blackhole, or --end")
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		if end {
			return noFaults(client.EndOutage(c.Context()))
		}
		spec.Mode, spec.For = faults.OutageMode(args[0]), protocol.ToMillis(length)
		return noFaults(client.Outage(c.Context(), spec))
	}
	return c
}
