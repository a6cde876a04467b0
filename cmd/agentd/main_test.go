package main

import (
	"os"
	"testing"

	"agentd/agent/exec"
	"agentd/internal/testmain"
)

// asAgentd makes this test binary behave as agentd itself: the tests run the real command as a child.
const asAgentd = "AGENTD_TEST_AS_AGENTD"

func TestMain(m *testing.M) {
	exec.Main()
	if os.Getenv(asAgentd) != "" {
		main()
		return
	}
	testmain.Run(m)
}
