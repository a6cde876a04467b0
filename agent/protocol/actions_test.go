package protocol

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestTheTableIsTheOneInTheDocs reads the two tables of docs/protocol.md, "Errors", and holds the
// code to them, row by row and in both directions.
func TestTheTableIsTheOneInTheDocs(t *testing.T) {
	doc, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(doc), "\n## Errors\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([0-9, ]+) \\| ([^|]+) \\|").FindAllStringSubmatch(section, -1) {
		documented = append(documented, fmt.Sprintf("%s %s: %s", m[1], m[2], m[3]))
	}
	var coded []string
	for _, r := range rules {
		statuses := strings.Trim(strings.ReplaceAll(fmt.Sprint(r.statuses), " ", ", "), "[]")
		coded = append(coded, fmt.Sprintf("%s %s: %v", r.code, statuses, r.action))
	}
	if !slices.Equal(documented, coded) {
		t.Errorf("documented:\n%s\nin rules:\n%s", strings.Join(documented, "\n"), strings.Join(coded, "\n"))
	}

	meant := map[int]Action{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([0-9, ]+) \| ([^|;,]+)`).FindAllStringSubmatch(section, -1) {
		for status := range strings.SplitSeq(m[1], ", ") {
			n, err := strconv.Atoi(status)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(allActions(), func(a Action) bool { return a.String() == strings.TrimSpace(m[2]) })
			if i < 0 {
				t.Fatalf("no action named %q", m[2])
			}
			meant[n] = Action(i)
		}
	}
	if len(meant) != 7 || fmt.Sprint(meant) != fmt.Sprint(inferred) {
		t.Errorf("documented without a code: %v, in inferred: %v", meant, inferred)
	}
}

func allActions() []Action {
	var all []Action
	for a := Proceed; a.String() != "unknown"; a++ {
		all = append(all, a)
	}
	return all
}

// TestEveryStatus is L5: what each status does, with the code that belongs to it and without.
func TestEveryStatus(t *testing.T) {
	for _, c := range []struct {
		status  int
		code    Code
		with    Action
		without Action
	}{
		{301, "", Retry, Retry},
		{302, "", Retry, Retry},
		{307, "", Retry, Retry},
		{308, "", Retry, Retry},
		{400, CodeInvalid, Bisect, Retry},
		{400, CodeCorrupt, Rebuild, Retry},
		{401, CodeUnauthenticated, Relink, Retry},
		{403, CodeRevoked, StopRevoked, Retry},
		{404, CodeNotFound, Orphan, Retry},
		{405, CodeInvalid, Bisect, Retry},
		{407, "", Retry, Retry},
		{408, "", Retry, Retry},
		{409, CodeIdentityConflict, StopConflict, Retry},
		{409, CodeLeaseLost, LeaseOver, Retry},
		{409, CodeLogGap, Rewind, Retry},
		{409, CodeFenced, Drop, Retry},
		{410, CodeGone, Drop, Retry},
		{413, CodeTooLarge, Halve, Halve},
		{415, CodeInvalid, Reencode, Retry},
		{422, CodeInvalid, Bisect, Retry},
		{425, "", Retry, Retry},
		{429, CodeThrottled, Throttle, Throttle},
		{500, CodeInternal, Retry, Retry},
		{501, "", RetrySlow, RetrySlow},
		{502, "", Retry, Retry},
		{503, CodeUnavailable, Retry, Retry},
		{504, "", Retry, Retry},
		{505, "", RetrySlow, RetrySlow},
		{507, "", Retry, Retry},
		{599, "", Retry, Retry},
	} {
		err := fmt.Errorf("wrapped: %w", &Error{Op: "ship log", Status: c.status, Code: c.code})
		if got := ActionFor(err); got != c.with {
			t.Errorf("%d %s: got %v, want %v", c.status, c.code, got, c.with)
		}
		if got := ActionFor(&Error{Op: "ship log", Status: c.status}); got != c.without {
			t.Errorf("%d without a code: got %v, want %v", c.status, got, c.without)
		}
	}
	if got := ActionFor(nil); got != Proceed {
		t.Errorf("no error: got %v", got)
	}
	if got := ActionFor(errors.New("something else")); got != Retry {
		t.Errorf("a foreign error: got %v", got)
	}
}
