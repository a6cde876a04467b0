package main

import (
	"encoding/json"
	"testing"

	"agentd/controlplane-mock/conformance"
)

func TestConformanceOverTheCommand(t *testing.T) {
	s := serving(t)
	s.cli("conformance", "--only", "^jobs/cancel-(pending|offered)$").want(t, 0, "The server's side\n  holds    jobs/cancel-pending\n  holds    jobs/cancel-offered\n\n2 hold, 0 fail, 0 skipped\n", "")
	s.cli("conformance", "--only", "^queries/ask-cap$", "--quick", "-v").want(t, 0, "0 hold, 0 fail, 1 skipped", "queries/ask-cap: skipped")
	// A server without fault injection doesn't do what that section says.
	s.cli("conformance", "--only", "^faults/status$", "--faults").want(t, exitFailed, "says: | `status` | answers the status |\n           PUT /mock/v1/faults: 404", "")

	out := s.cli("conformance", "--only", "^logs/append$", "--json")
	out.want(t, 0, "", "")
	var got struct {
		Holds   int                  `json:"holds"`
		Results []conformance.Result `json:"results"`
	}
	if err := json.Unmarshal([]byte(out.stdout), &got); err != nil || got.Holds != 1 || len(got.Results) != 1 || got.Results[0].Name != "logs/append" {
		t.Errorf("got %s, %v; want one result that holds", out.stdout, err)
	}
}

func TestConformanceExplains(t *testing.T) {
	s := serving(t)
	other := writeFile(t, "token", someToken, 0o600)
	invoke(t, "", "conformance", "--url", s.url, "--admin-token-file", other).want(t, exitNotPermitted, "", "refuses the admin token")
	invoke(t, "", "conformance", "--url", "http://"+freeAddr(t), "--admin-token-file", other).want(t, exitUnreachable, "", "can't be reached")
	invoke(t, "", "conformance", "--url", s.url).want(t, exitConfig, "", "no admin token")
	s.cli("conformance", "--only", "(").want(t, exitUsage, "", "--only")
	s.cli("conformance", "--only", "^nothing$").want(t, exitFailed, "", "no check has such a name")
}
