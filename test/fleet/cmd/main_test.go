package main

import (
	"strings"
	"testing"

	"agentd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

func TestMistakesAreNamed(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--admin-token-file"},
		{[]string{"--admin-token-file", "/dev/null"}, "AdminToken: is required"},
	} {
		if err := run(t.Context(), c.args); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: got %v; want it to name %q", c.args, err, c.want)
		}
	}
}
