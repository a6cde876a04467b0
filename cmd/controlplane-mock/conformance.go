package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentd/controlplane-mock/conformance"
)

func (a *app) conformanceCmd() *cobra.Command {
	var target conformance.Target
	var only string
	var verbose bool
	c := &cobra.Command{
		Use:   "conformance",
		Short: "Hold a server to the protocol, sentence by sentence",
		Long: `Hold a server that claims to speak the protocol to it, sentence by sentence, from outside.

Each check quotes the sentences of docs/protocol.md that it is about. Checks use agents and job types of their own, so that a
server may do other work meanwhile; what they leave behind is settled jobs and revoked agents that are named "conformance".
Fault injection is tried only with --faults, and disturbs everybody. Some checks wait for a minute: --quick leaves them out.

Exit code 0 if everything holds, 1 if something doesn't.`,
		Example: `  controlplane-mock conformance --url http://127.0.0.1:7070 --admin-token-file /tmp/cp/admin-token --quick
  controlplane-mock conformance --only '^logs/' --verbose
  controlplane-mock conformance --json | jq '.results[] | select(.status == "fails")'`,
		Args: cobra.NoArgs,
	}
	f := c.Flags()
	f.StringVar(&target.AdminURL, "admin-url", "", "the admin side, where it has an address of its own (serve --admin-listen)")
	f.StringArrayVar(&target.Peers, "peer", nil, "URL of another instance of the same control plane; may be repeated")
	f.BoolVar(&target.Faults, "faults", false, "try the fault injection, too (serve --faults)")
	f.BoolVar(&target.Quick, "quick", false, "leave out the checks that wait for a minute")
	f.BoolVar(&target.Strict, "strict", false, "don't try again, alone, what failed beside other checks")
	f.StringVar(&only, "only", "", "regular expression: only the checks with such names")
	f.IntVar(&target.Workers, "workers", 24, "checks at once")
	f.BoolVarP(&verbose, "verbose", "v", false, "show every check as it ends, and the sentences of those that fail")
	a.jsonFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		var err error
		if target.Only, err = regexp.Compile(only); err != nil {
			return usage("--only: %v", err)
		}
		if err := a.aim(&target); err != nil {
			return err
		}
		var progress func(conformance.Result)
		if verbose {
			progress = func(r conformance.Result) {
				a.notef("%s: %s (%v)", r.Name, r.Status, time.Duration(r.TookMs)*time.Millisecond)
			}
		}
		results, err := conformance.Probe(c.Context(), target, progress)
		switch {
		case errors.Is(err, conformance.ErrUnreachable):
			return &exitError{exitUnreachable, err}
		case errors.Is(err, conformance.ErrRefused):
			return &exitError{exitNotPermitted, err}
		case err != nil:
			return err
		}
		return a.verdict(results, verbose)
	}
	return c
}

// aim says which server is meant, as for every other command.
func (a *app) aim(t *conformance.Target) error {
	t.URL = cmp.Or(a.conn.url, a.getenv("CONTROLPLANE_URL"), defaultURL)
	file := cmp.Or(a.conn.tokenFile, a.getenv("CONTROLPLANE_ADMIN_TOKEN_FILE"))
	if file == "" {
		return &exitError{exitConfig, errors.New("no admin token: give --admin-token-file FILE or set CONTROLPLANE_ADMIN_TOKEN_FILE")}
	}
	var err error
	if t.AdminToken, err = readToken(file); err != nil {
		return configError(err)
	}
	if a.http, err = a.transport(); err != nil {
		return configError(err)
	}
	a.http.MaxIdleConnsPerHost = 4 * max(t.Workers, 1) // a check has some calls at once
	t.HTTP = &http.Client{Transport: a.http}
	return nil
}

// verdict prints what holds, by section.
func (a *app) verdict(results []conformance.Result, verbose bool) error {
	count := map[conformance.Status]int{}
	for _, r := range results {
		count[r.Status]++
	}
	if a.json {
		if err := a.printJSON(map[string]any{"holds": count[conformance.Holds], "fails": count[conformance.Fails], "skipped": count[conformance.Skipped], "results": results}); err != nil {
			return err
		}
	} else {
		section := ""
		for _, r := range results {
			if r.Section != section {
				section = r.Section
				fmt.Fprintf(a.stdout, "%s\n", strings.ReplaceAll(section, "`", ""))
			}
			fmt.Fprintf(a.stdout, "  %-8s %s\n", r.Status, r.Name)
			if r.Status == conformance.Fails || verbose {
				for _, s := range r.Says {
					fmt.Fprintf(a.stdout, "           says: %s\n", s)
				}
			}
			if r.Detail != "" && (r.Status != conformance.Skipped || verbose) {
				fmt.Fprintf(a.stdout, "           %s\n", strings.ReplaceAll(printable(r.Detail), "\n", "\n           "))
			}
		}
		fmt.Fprintf(a.stdout, "\n%d hold, %d fail, %d skipped\n", count[conformance.Holds], count[conformance.Fails], count[conformance.Skipped])
	}
	if count[conformance.Fails] > 0 {
		return &exitError{exitFailed, nil}
	}
	return nil
}
