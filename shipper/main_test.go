package shipper

import (
	"os"
	"strings"
	"testing"

	"agentd/internal/testmain"
)

func TestMain(m *testing.M) {
	if child := strings.Split(os.Getenv(childEnv), "\n"); len(child) == 3 {
		crashChild(child[0], child[1], child[2])
		return
	}
	testmain.Run(m)
}

// soak says that the full sizes are asked for.
func soak() bool { return os.Getenv("AGENTD_SOAK") == "1" }
