package agent

import (
	"testing"

	"agentd/agent/exec"
	"agentd/internal/testmain"
)

func TestMain(m *testing.M) {
	exec.Main() // this binary is its own shim
	testmain.Run(m)
}
