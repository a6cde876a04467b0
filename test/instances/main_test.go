package instances

import (
	"flag"
	"testing"

	"go.uber.org/goleak"

	"agentd/internal/testmain"
	"agentd/test/stack"
)

// binaries are under test.
var binaries = stack.Build()

func TestMain(m *testing.M) {
	// The trials wait most of their time, and each has a database and three servers.
	flag.Parse()
	if err := flag.Set("test.parallel", "3"); err != nil {
		panic(err)
	}
	testmain.Run(m, goleak.Cleanup(binaries.Exit))
}
