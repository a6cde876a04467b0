package main

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"agentd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m, goleak.Cleanup(binaries.Exit)) }

func TestMistakesAreNamed(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--agents", "0"}, "at least 1"},
		{[]string{"--scenario", "flood"}, `"flood" is none of busy, `},
	} {
		var out strings.Builder
		if err := run(c.args, &out); err == nil || !strings.Contains(err.Error(), c.want) || out.Len() > 0 {
			t.Errorf("%v: got %v and %q; want nothing but an error that says %q", c.args, err, out.String(), c.want)
		}
	}
}

func TestTable(t *testing.T) {
	var out strings.Builder
	if err := run([]string{"--agents", "100", "--instances", "2", "--for", "5s"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"late p50", "busy ", "idle ", "all away 60 s ", "one dies ", "disk 10× slower ", "database away 20 s "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}
