package leasekeeper

import (
	"os"
	"strings"
	"testing"
	"time"
)

// rowsOf finds the table under a header in docs/leases.md and returns its cells.
func rowsOf(t *testing.T, header string) (rows [][]string) {
	t.Helper()
	text, err := os.ReadFile("../docs/leases.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "\n| "+header)
	if !found {
		t.Fatalf("no table %q", header)
	}
	_, table, _ = strings.Cut(table, "|---|") // the rest of the line is the rule's
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(line, "|\n "), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case strings.HasPrefix(line, "---"): // the rule
		case !strings.HasPrefix(line, "|"):
			return rows
		default:
			rows = append(rows, cells)
		}
	}
	return rows
}

// Each row of the table of docs/leases.md is one of TestCutOffAgent, with the same ends, and the other way round.
func TestCutOffTableIsTheOneInTheDocs(t *testing.T) {
	type key struct {
		cut              time.Duration
		other, exclusive bool
	}
	tested := map[key]ends{}
	for _, r := range cutOffRows {
		if r.grace == 10*time.Second { // the table's
			tested[key{r.cut, r.other, r.exclusive}] = r.want
		}
	}
	said := map[key]string{} // the words about attempt 1
	for _, cells := range rowsOf(t, "cut | other | exclusive") {
		cut, err := time.ParseDuration(strings.ReplaceAll(strings.ReplaceAll(cells[0], " ", ""), "min", "m"))
		if err != nil {
			t.Fatal(err)
		}
		k := key{cut, cells[1] == "yes", cells[2] == "yes"}
		words := cells[3]
		switch {
		case words == "the same": // as without another agent
			words = said[key{cut, false, k.exclusive}]
		case strings.HasPrefix(words, "as 60 s"):
			words = said[key{time.Minute, k.other, k.exclusive}]
		}
		said[k] = words
		want, found := tested[k]
		if !found {
			t.Errorf("%v has no test", cells)
		}
		for end, word := range map[string]string{goesOn: "goes on", lostIt: "`LeaseLost`", expired: "`LeaseExpired`"} {
			if got := strings.Contains(words, word); got != want[end] {
				t.Errorf("%v: %q is said: %v; the test allows it: %v", cells[:3], word, got, want[end])
			}
		}
	}
	if len(said) != len(tested) || len(said) != 16 {
		t.Errorf("%d rows are documented and %d tested, want 16", len(said), len(tested))
	}
}

// The silence that an exclusive job survives is as documented.
func TestSilenceTableIsTheOneInTheDocs(t *testing.T) {
	rows := rowsOf(t, "job's grace | an exclusive job ends")
	if len(rows) != 3 {
		t.Fatalf("%d rows, want 3", len(rows))
	}
	for _, cells := range rows {
		grace, silence := strings.TrimSuffix(cells[0], " or more"), cells[1]
		if grace == "0" {
			grace = "0s"
		}
		g, err := time.ParseDuration(strings.ReplaceAll(grace, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		want, err := time.ParseDuration(strings.ReplaceAll(silence, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		graces := []time.Duration{g}
		if strings.Contains(cells[0], "or more") {
			graces = append(graces, 2*g, 100*g)
		}
		for _, g := range graces {
			if got := newWindow(ttl, g).budget(); got != want {
				t.Errorf("grace %v: ends after %v, documented are %v", g, got, want)
			}
		}
	}
	if got, want := newWindow(time.Minute, 10*time.Second).budget(), 46*time.Second; got != want {
		t.Errorf("a TTL of 60 s and a grace of 10 s: %v, documented are %v", got, want)
	}
}
