package network

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
	// These tests wait for timeouts of 5 to 15 s, nearly all the time: side by side they take as long as the longest.
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	testmain.Run(m, goleak.Cleanup(binaries.Exit))
}
