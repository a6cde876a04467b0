package trials

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"

	"agentd/internal/testmain"
	"agentd/test/stack"
)

// binaries are under test.
var binaries = stack.Build()

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == jobArg {
		os.Exit(runJob())
	}
	// The trials wait most of their time. More at once would only fight for two cores.
	flag.Parse()
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	testmain.Run(m, goleak.Cleanup(binaries.Exit))
}
