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
	testmain.Run(m)
}
