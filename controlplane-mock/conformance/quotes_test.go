package conformance

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"agentd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// document is docs/protocol.md, its sections by heading, every white space one blank.
func document(t *testing.T) map[string]string {
	t.Helper()
	raw, err := os.ReadFile("../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	heading := ""
	for line := range strings.Lines(string(raw)) {
		if m := regexp.MustCompile(`^#+ (.*)\n`).FindStringSubmatch(line); m != nil {
			heading = m[1]
			continue
		}
		sections[heading] += plain(line) + " "
	}
	return sections
}

// plain takes the marks of lists and line breaks out.
func plain(s string) string {
	return strings.Join(strings.Fields(strings.TrimPrefix(strings.TrimSpace(s), "- ")), " ")
}

// TestQuotes holds every check to the protocol: what it quotes stands there, under its heading.
func TestQuotes(t *testing.T) {
	sections := document(t)
	for _, c := range Checks() {
		text, ok := sections[c.Section]
		if !ok {
			t.Errorf("%s: the protocol has no section %q", c.Name, c.Section)
		}
		if len(c.Says) == 0 {
			t.Errorf("%s quotes nothing", c.Name)
		}
		for _, s := range c.Says {
			if !strings.Contains(text, plain(s)) {
				t.Errorf("%s quotes %q, which doesn't stand under %q", c.Name, s, c.Section)
			}
		}
	}
}
