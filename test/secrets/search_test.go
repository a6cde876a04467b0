package secrets

import (
	"bytes"
	"encoding/base64"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// forms lists how a secret could stand in a file: as it is, its longer lines, URL-encoded, and in base64 at each
// alignment, without the characters that a neighbour has a part in.
func forms(secret string) []string {
	out := []string{secret, url.QueryEscape(secret), url.PathEscape(secret)}
	for line := range strings.SplitSeq(secret, "\n") {
		if len(line) >= 16 && !strings.HasPrefix(line, "-----") {
			out = append(out, line)
		}
	}
	for shift := range 3 {
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := enc.EncodeToString([]byte("abc"[:shift] + secret))
			text = text[4 : len(text)-4]
			for line := range 3 { // wrapped lines hold pieces of it; three of 16 characters stand for all
				if at := line * 20; at+16 <= len(text) {
					out = append(out, text[at:at+16])
				}
			}
		}
	}
	return out
}

// search returns, of all files below dirs, those that hold one of the needles.
func search(t *testing.T, needles []string, dirs ...string) (found []string) {
	t.Helper()
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, n := range needles {
				if bytes.Contains(text, []byte(n)) {
					found = append(found, path+" holds "+n)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}
