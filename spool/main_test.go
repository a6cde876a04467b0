package spool

import (
	"os"
	"testing"

	"agentd/internal/testmain"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		crashChild()
		return
	}
	if os.Getenv(scaleEnv) != "" {
		scaleChild()
		return
	}
	if os.Getenv(greedyEnv) != "" {
		os.Exit(m.Run())
	}
	testmain.Run(m)
}
