package queue

import (
	"testing"

	"agentd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }
