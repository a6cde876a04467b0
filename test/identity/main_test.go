package identity

import (
	"testing"

	"go.uber.org/goleak"

	"agentd/internal/testmain"
	"agentd/test/stack"
)

// binaries are under test.
var binaries = stack.Build()

func TestMain(m *testing.M) {
	testmain.Run(m, goleak.Cleanup(binaries.Exit))
}
