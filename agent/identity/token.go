package identity

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// maxToken bounds what is read of a token's source: tokens are under 100 bytes.
const maxToken = 4 << 10

// TokenSource gives the enrolment token; "" = there is none now. It is asked again while the
// server refuses, so that a token that was put in place later is found.
type TokenSource func() (string, error)

// TokenFile reads the token from a file that must exist.
func TokenFile(path string) TokenSource {
	return func() (string, error) {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("identity: token: %w", err)
		}
		defer f.Close()
		return readToken(f, path)
	}
}

// TokenCredential reads the token from systemd's credentials directory ("" = not under systemd),
// where it may be or not.
func TokenCredential(dir string) TokenSource {
	if dir == "" {
		return noToken
	}
	file := TokenFile(filepath.Join(dir, "token"))
	return func() (string, error) {
		token, err := file()
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		return token, err
	}
}

// TokenReader reads the token from r (standard input), once.
func TokenReader(r io.Reader) TokenSource {
	return sync.OnceValues(func() (string, error) { return readToken(r, "standard input") })
}

// FirstToken asks sources in turn.
func FirstToken(sources ...TokenSource) TokenSource {
	return func() (string, error) {
		for _, s := range sources {
			if token, err := s(); token != "" || err != nil {
				return token, err
			}
		}
		return "", nil
	}
}

func noToken() (string, error) { return "", nil }

func readToken(r io.Reader, from string) (string, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxToken+1))
	if err != nil {
		return "", fmt.Errorf("identity: token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	odd := strings.IndexFunc(token, func(c rune) bool { return c <= ' ' || c > '~' })
	if len(data) > maxToken || odd >= 0 {
		return "", fmt.Errorf("identity: token: %s holds no token: one line of printable ASCII is expected", from)
	}
	return token, nil
}
