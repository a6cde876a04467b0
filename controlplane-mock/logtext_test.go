package controlplane

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

func textOf(t *testing.T, records ...string) string {
	t.Helper()
	var buf bytes.Buffer
	x := &textWriter{w: &buf}
	_, err := walk(encIdentity, []byte(strings.Join(records, "\n")), testLimits, func(line []byte, r *record) error { return x.record(0, line, r) })
	if err != nil {
		t.Fatal(err)
	}
	if err := x.end(); err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

func TestTextJoinsPartsPerStream(t *testing.T) {
	const part, eof = `,"part":true`, `,"eof":true`
	rec := func(stream, text, flags string) string {
		return fmt.Sprintf(`{"ts":1,"s":%q,"m":%q%s}`, stream, text, flags)
	}
	for _, tc := range []struct {
		name    string
		records []string
		want    string
	}{
		{"parts of both at once", []string{rec("out", "A", part), rec("err", "x", part), rec("out", "B", part), rec("err", "y", ""), rec("out", "C", ""), rec("out", "D", "")}, "ABC\nxy\nD\n"},
		{"the other line goes on after ours", []string{rec("out", "A", part), rec("err", "x", part), rec("out", "B", ""), rec("out", "C", ""), rec("err", "y", "")}, "AB\nxy\nC\n"},
		{"a gap breaks an open line", []string{rec("out", "A", part), rec("err", "e", ""), `{"gap":2}`, rec("out", "B", "")}, "A\ne\n[gap: 2 records lost]\nB\n"},
		{"a part at the end", []string{rec("out", "A", part)}, "A"},
		{"a part at the end and others", []string{rec("out", "A", part), rec("err", "e", "")}, "A\ne\n"},
		{"no newline after eof", []string{rec("out", "A", eof), rec("err", "B", eof)}, "AB"},
		{"a remark stands alone", []string{rec("out", "A", eof), rec("agent", "r", "")}, "A\nr\n"},
		{"a part that ends with eof", []string{rec("out", "A", part), rec("out", "B", eof)}, "AB"},
		{"empty lines", []string{rec("out", "", ""), rec("out", "", ""), rec("err", "", eof)}, "\n\n"},
		{"one gap", []string{`{"gap":1,"reason":"deadLetter"}`}, "[gap: 1 records lost: deadLetter]\n"},
	} {
		if got := textOf(t, tc.records...); got != tc.want {
			t.Errorf("%s: %q; want %q", tc.name, got, tc.want)
		}
	}
	// What waits for a line to end is bounded.
	records := []string{rec("out", "A", part)}
	for range 3000 {
		records = append(records, rec("err", strings.Repeat("e", 1000), ""))
	}
	got := textOf(t, append(records, rec("out", "B", ""))...)
	if n := strings.Count(got, "e\n"); n != 3000 || !strings.HasPrefix(got, "A\ne") || !strings.HasSuffix(got, "e\nB\n") {
		t.Errorf("%d of 3000 lines; begins %.10q, ends %q", n, got, got[len(got)-10:])
	}
}
