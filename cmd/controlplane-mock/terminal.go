package main

import (
	"fmt"
	"os"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"
)

// isTerminal says whether v is a file that is a terminal.
func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// openTerminal opens the terminal behind f (or, if f isn't one, the session's) once more, so that
// reading from it can be given up: the descriptor that the shell gave us blocks, and making that one
// non-blocking would do so to the shell as well.
func openTerminal(f any) (*os.File, error) {
	path := "/dev/tty"
	if isTerminal(f) {
		if file, ok := f.(*os.File); ok {
			path = fmt.Sprintf("/proc/self/fd/%d", file.Fd())
		}
	}
	return os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
}

// printable makes text from elsewhere safe for a terminal: what would move the cursor, change the
// colour or the title is shown as an escape.
func printable(s string) string {
	if !strings.ContainsFunc(s, unprintable) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if unprintable(r) {
			fmt.Fprintf(&b, "\\u%04x", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func unprintable(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
