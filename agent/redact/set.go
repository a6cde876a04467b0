package redact

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
)

// Bounds of a Set. They keep a job from making the agent's memory its own.
const (
	// MinSecret: shorter ones occur everywhere.
	MinSecret = window
	// MaxSecret holds an RSA key in PEM several times over.
	MaxSecret = 16 << 10
	// MaxSecrets of one job, the config's included.
	MaxSecrets = 256
	// MaxTotal is how long all of them may be together: each is looked for in up to a hundred forms.
	MaxTotal = 256 << 10
	// minLine is the shortest line of a longer secret that is a secret on its own: "}" and "EOF" are not.
	minLine = 16
)

// Errors of Add. Their texts never hold the secret.
var (
	ErrTooShort = fmt.Errorf("redact: a secret of fewer than %d bytes can't be redacted: it would occur everywhere", MinSecret)
	ErrTooLong  = fmt.Errorf("redact: a secret of more than %d bytes can't be redacted", MaxSecret)
	ErrTooMany  = fmt.Errorf("redact: more than %d secrets, or more than %d bytes of them", MaxSecrets, MaxTotal)
)

// Set is the secrets of one job. Its methods may be called concurrently, also while streams use it.
type Set struct {
	mu      sync.Mutex
	secrets map[string]bool // guarded by mu
	total   int             // length of all of them; guarded by mu
	current atomic.Pointer[matcher]
	// straight is held for reading around each read that passes the filter by, because the set was empty.
	straight sync.RWMutex
}

// NewSet returns a set with these secrets, and an error that joins what Add says of those it refused; the others are in.
func NewSet(secrets ...string) (*Set, error) {
	s := &Set{secrets: map[string]bool{}}
	var faults []error
	for _, secret := range secrets {
		faults = append(faults, s.add(secret))
	}
	s.rebuild()
	return s, errors.Join(faults...)
}

// Add makes every stream replace secret: when it returns, what is printed from then on is filtered. Line ends
// around the secret are not part of it: files and variables bring them along.
func (s *Set) Add(secret string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	known := len(s.secrets)
	if err := s.add(secret); err != nil || len(s.secrets) == known {
		return err
	}
	s.rebuild()
	// A read that began when the set was empty must have ended: it could still take what is printed after this call.
	s.straight.Lock()
	s.straight.Unlock() //nolint:staticcheck // empty on purpose: it waits for the readers
	return nil
}

// Empty says that there is nothing to look for, so that output may take the short way.
func (s *Set) Empty() bool { return s.current.Load().longest == 0 }

// add is called with mu held, or before the set is shared.
func (s *Set) add(secret string) error {
	secret = strings.Trim(secret, "\r\n")
	switch {
	case len(secret) < MinSecret:
		return ErrTooShort
	case len(secret) > MaxSecret:
		return ErrTooLong
	case s.secrets[secret]:
		return nil
	case len(s.secrets) >= MaxSecrets, s.total+len(secret) > MaxTotal:
		return ErrTooMany
	}
	s.secrets[secret] = true
	s.total += len(secret)
	return nil
}

func (s *Set) rebuild() {
	var patterns [][]byte
	for secret := range s.secrets {
		for _, v := range variants(secret) {
			if len(v) >= window {
				patterns = append(patterns, []byte(v))
			}
		}
	}
	s.current.Store(newMatcher(patterns))
}

// variants lists the forms in which a secret is looked for.
func variants(secret string) []string {
	out := []string{secret, strings.ReplaceAll(secret, "\n", "\r\n")}
	for line := range strings.SplitSeq(secret, "\n") {
		if line = strings.TrimRight(line, "\r"); len(line) >= minLine && line != secret && !strings.HasPrefix(line, "-----") {
			out = append(out, line)
		}
	}
	for _, plain := range plainInURLs {
		out = append(out, percent(secret, plain, false, false), percent(secret, plain, false, true),
			percent(secret, plain, true, false), percent(secret, plain, true, true))
	}
	out = append(out, inJSON(secret, false), inJSON(secret, true))
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		out = append(out, base64Forms(enc, secret)...)
	}
	return out
}

// base64Forms are the characters that depend on the secret alone, at each alignment: a neighbour's bits
// share the first and the last character with it, so those are left out.
func base64Forms(enc *base64.Encoding, secret string) (out []string) {
	for before := range 3 {
		text := enc.EncodeToString([]byte(strings.Repeat("\x00", before) + secret))
		// `before` bytes fill the first (before*8+5)/6 characters, the last of them shared.
		text = text[(before*8+5)/6:]
		if (before+len(secret))%3 != 0 {
			text = text[:len(text)-1]
		}
		out = append(out, text)
	}
	// A secret that is encoded on its own: its last character is its own, and lines are wrapped from its beginning.
	alone := enc.EncodeToString([]byte(secret))
	for _, text := range []string{alone, out[0]} {
		out = append(out, text)
		for _, columns := range []int{64, 76} {
			w := wrap(text, columns)
			out = append(out, w, strings.ReplaceAll(w, "\n", "\r\n"))
		}
	}
	return out
}

func wrap(s string, columns int) string {
	var b strings.Builder
	for len(s) > columns {
		b.WriteString(s[:columns])
		b.WriteByte('\n')
		s = s[columns:]
	}
	b.WriteString(s)
	return b.String()
}

// plainInURLs are the characters besides letters and digits that encoders leave as they are: each has its own idea.
var plainInURLs = []string{
	"-_.~",                 // RFC 3986's unreserved: most libraries, for a query's values
	"-_.*",                 // forms as browsers and Java write them
	"-_.~!'()*",            // JavaScript's encodeURIComponent
	"-_.~/",                // Python's quote
	"-_.~$&+=:@",           // Go's PathEscape
	"-_.~$&+,/:;=@",        // Go's whole paths
	"-_.~!'()*$&+,/:;=@",   // RFC 3986's paths
	"-_.~!'()*$&+,/:;=@?#", // JavaScript's encodeURI
}

// percent URL-encodes all but letters, digits and what is in plain; in a form's way a space is a plus.
func percent(s, plain string, form, lower bool) string {
	digits := "0123456789ABCDEF"
	if lower {
		digits = "0123456789abcdef"
	}
	var b strings.Builder
	for _, c := range []byte(s) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte(plain, c) >= 0:
			b.WriteByte(c)
		case c == ' ' && form:
			b.WriteByte('+')
		default:
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}
	return b.String()
}

// inJSON is the secret as it stands within a JSON string; html: as encoders write it that fear for HTML.
func inJSON(s string, html bool) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(html)
	_ = enc.Encode(s) // a string always can be
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(b.String(), "\n"), `"`), `"`)
}
