package redact_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentd/agent/redact"
)

const pemKey = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcw\n-----END PRIVATE KEY-----"

func TestReadFile(t *testing.T) {
	for _, row := range []struct {
		name, text, fault string
		mode              os.FileMode
		want              []string
	}{
		{"lines", "one-secret\r\n\n two words \n", "", 0o600, []string{"one-secret", " two words "}},
		{"its group may read", "one-secret", "", 0o640, []string{"one-secret"}},
		{"a key", "first\n" + pemKey + "\nlast", "", 0o400, []string{"first", pemKey, "last"}},
		{"nothing", "", "", 0o600, nil},
		{"others may read", "one-secret", "others may read or change it", 0o644, nil},
		{"its group may write", "one-secret", "others may read or change it", 0o660, nil},
		{"too short", "long-enough\nabc\n", "line 2: redact: a secret of fewer", 0o600, nil},
		{"too long", strings.Repeat("x", 40<<10), "line 1: bufio.Scanner: token too long", 0o600, nil},
		{"a key without end", "-----BEGIN X-----\nabcdefgh\n", "line 2: a PEM block has no end", 0o600, nil},
		{"a block too long", "-----BEGIN X-----\n" + strings.Repeat("abcdefgh\n", 4<<10) + "-----END X-----\n", "line 4098: redact: a secret of more", 0o600, nil},
	} {
		file := filepath.Join(t.TempDir(), "secrets")
		if err := os.WriteFile(file, []byte(row.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(file, row.mode); err != nil {
			t.Fatal(err)
		}
		got, err := redact.ReadFile(file)
		if !slices.Equal(got, row.want) || (err == nil) != (row.fault == "") || err != nil && !strings.Contains(err.Error(), row.fault) {
			t.Errorf("%s: got %q, %v; want %q, %s", row.name, got, err, row.want, row.fault)
		}
	}
	if _, err := redact.ReadFile(t.TempDir()); err == nil || !strings.Contains(err.Error(), "is not a regular file") {
		t.Errorf("a directory: got %v", err)
	}
}

// FuzzReadFile: whatever a file holds, what is taken from it can be looked for, and no fault quotes it.
func FuzzReadFile(f *testing.F) {
	f.Add([]byte("one-secret\nabc\n"))
	f.Add([]byte(pemKey))
	f.Add([]byte("-----BEGIN \n-----BEGIN \n-----END \n"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		file := filepath.Join(dir, "s")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		secrets, err := redact.ReadFile(file)
		if err == nil {
			_, err = redact.NewSet(secrets...)
		}
		for line := range strings.SplitSeq(string(text), "\n") {
			if err != nil && len(line) > 20 && strings.Contains(err.Error(), line) {
				t.Fatalf("the fault quotes a line: %v", err)
			}
		}
	})
}

// TestURLEncodings: each library leaves other characters as they are.
func TestURLEncodings(t *testing.T) {
	const secret = "p@ss/w:rd+1=(2)&~*"
	set, err := redact.NewSet(secret)
	if err != nil {
		t.Fatal(err)
	}
	for who, text := range map[string]string{
		"Go's QueryEscape":                "p%40ss%2Fw%3Ard%2B1%3D%282%29%26~%2A",
		"Go's PathEscape":                 "p@ss%2Fw:rd+1=%282%29&~%2A",
		"JavaScript's encodeURIComponent": "p%40ss%2Fw%3Ard%2B1%3D(2)%26~*",
		"JavaScript's encodeURI":          "p@ss/w:rd+1=(2)&~*",
		"Python's quote":                  "p%40ss/w%3Ard%2B1%3D%282%29%26~%2A",
		"Java's URLEncoder":               "p%40ss%2Fw%3Ard%2B1%3D%282%29%26%7E*",
		"lower case":                      "p%40ss%2fw%3ard%2b1%3d%282%29%26~%2a",
		"in JSON":                         `{"x":"p@ss/w:rd+1=(2)\u0026~*"}`,
	} {
		var s sink
		if _, err := set.Filter(&s).ReadFrom(strings.NewReader("<" + text + ">")); err != nil {
			t.Fatal(err)
		}
		if got := s.seen(); strings.Contains(got, "w") && who != "in JSON" || !strings.Contains(got, "[redacted]") {
			t.Errorf("%s: %s", who, got)
		}
	}
}
