package shipper

import (
	"os"
	"testing"

	"agentd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// soak says that the full sizes are asked for.
func soak() bool { return os.Getenv("AGENTD_SOAK") == "1" }
