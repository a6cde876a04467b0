package redact_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"agentd/agent/redact"
	"agentd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// sink keeps what it reads; seen may be asked while it does.
type sink struct {
	mu sync.Mutex
	b  bytes.Buffer // guarded by mu
}

func (s *sink) ReadFrom(r io.Reader) (n int64, err error) {
	b := make([]byte, 1000)
	for {
		k, err := r.Read(b)
		s.mu.Lock()
		s.b.Write(b[:k])
		s.mu.Unlock()
		n += int64(k)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

func (s *sink) seen() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func filter(t interface{ Fatalf(string, ...any) }, r io.Reader, secrets ...string) string {
	set, err := redact.NewSet(secrets...)
	if err != nil {
		t.Fatalf("%v", err)
	}
	var s sink
	if _, err := set.Filter(&s).ReadFrom(r); err != nil {
		t.Fatalf("%v", err)
	}
	return s.seen()
}

const pem = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQDcounterfeit0\n-----END KEY-----"

func TestEveryFormIsReplaced(t *testing.T) {
	const secret = "s3cret/päss wörd+=?"
	b64 := base64.StdEncoding
	for name, c := range map[string]struct{ in, want string }{
		"as it is":           {"a " + secret + " b\n", "a [redacted] b\n"},
		"twice in a row":     {secret + secret, "[redacted][redacted]"},
		"alone":              {secret, "[redacted]"},
		"query escaped":      {"?p=" + url.QueryEscape(secret) + "&x=1", "?p=[redacted]&x=1"},
		"path escaped":       {"/" + percent(secret) + "/x", "/[redacted]/x"},
		"base64":             {"x " + b64.EncodeToString([]byte(secret)) + " y", "x [redacted] y"},
		"base64url":          {"x " + base64.RawURLEncoding.EncodeToString([]byte(secret)) + " y", "x [redacted] y"},
		"only its beginning": {secret[:10] + "\n" + secret[:5], secret[:10] + "\n" + secret[:5]},
		"several lines":      {"key:\n" + pem + "\nend\n", "key:\n[redacted]\nend\n"},
		"several, CRLF":      {strings.ReplaceAll(pem, "\n", "\r\n"), "[redacted]"},
		"one of its lines":   {"> MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n", "> [redacted]\n"},
		"its frame alone":    {"-----BEGIN KEY-----\n", "-----BEGIN KEY-----\n"},
	} {
		t.Run(name, func(t *testing.T) {
			for how, r := range map[string]io.Reader{"whole": strings.NewReader(c.in), "byte by byte": iotest.OneByteReader(strings.NewReader(c.in))} {
				if got := filter(t, r, secret, pem); got != c.want {
					t.Errorf("%s: got %q, want %q", how, got, c.want)
				}
			}
		})
	}
}

func percent(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	return b.String()
}

// TestBase64AtAnyAlignment: whatever stands before and behind it in the encoded text, what is left of
// the secret is the few bits that it shares with its neighbours.
func TestBase64AtAnyAlignment(t *testing.T) {
	const secret = "correct horse battery staple"
	for before := range 7 {
		for after := range 7 {
			text := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("<", before) + secret + strings.Repeat(">", after)))
			got := filter(t, strings.NewReader(text), secret)
			if !strings.Contains(got, "[redacted]") {
				t.Errorf("%d before, %d behind: %q passed", before, after, got)
			}
			if rest := len(text) - len(strings.Replace(got, "[redacted]", "", 1)); rest < len(secret)*8/6-2 {
				t.Errorf("%d before, %d behind: only %d characters were replaced: %q", before, after, rest, got)
			}
		}
	}
}

func TestWrappedBase64(t *testing.T) {
	secret := strings.Repeat("0123456789abcdef", 20)
	for _, columns := range []int{64, 76} {
		text := base64.StdEncoding.EncodeToString([]byte(secret))
		var b strings.Builder
		for len(text) > columns {
			b.WriteString(text[:columns] + "\n")
			text = text[columns:]
		}
		b.WriteString(text + "\n")
		if got, want := filter(t, strings.NewReader(b.String()), secret), "[redacted]=\n"; got != want {
			t.Errorf("%d columns: %q, want %q", columns, got, want)
		}
	}
}

// replaced is the definition: the leftmost match wins, and of those the longest.
func replaced(s string, secrets []string) string {
	var b strings.Builder
	for s != "" {
		best := 0
		for _, secret := range secrets {
			if strings.HasPrefix(s, secret) {
				best = max(best, len(secret))
			}
		}
		if best > 0 {
			b.WriteString("[redacted]")
			s = s[best:]
			continue
		}
		b.WriteByte(s[0])
		s = s[1:]
	}
	return b.String()
}

// TestHoweverItIsCut compares with the definition: texts made of pieces of overlapping secrets, cut
// into reads at random. The alphabet has no character in common with encoded forms of the secrets.
func TestHoweverItIsCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secrets := []string{"!!!!", "!!!!##", "#!#!#!", "!#!#!#!", "###!!!###"}
		in := rapid.StringOfN(rapid.SampledFrom([]rune("!!!##%")), 0, 60, -1).Draw(t, "text")
		reads := rapid.SliceOfN(rapid.IntRange(1, 7), 1, 100).Draw(t, "reads")
		got := filter(t, &cut{s: in, reads: reads}, secrets...)
		if want := replaced(in, secrets); got != want {
			t.Fatalf("%q cut %v: got %q, want %q", in, reads, got, want)
		}
	})
}

// cut is a reader that returns pieces of the given lengths, then the rest.
type cut struct {
	s     string
	reads []int
}

func (c *cut) Read(p []byte) (int, error) {
	if c.s == "" {
		return 0, io.EOF
	}
	n := len(c.s)
	if len(c.reads) > 0 {
		n = min(n, c.reads[0])
		c.reads = c.reads[1:]
	}
	n = copy(p, c.s[:min(n, len(p))])
	c.s = c.s[n:]
	return n, nil
}

func TestAProgressDotIsNotHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, err := redact.NewSet("....secret", "hunter2")
		if err != nil {
			t.Fatal(err)
		}
		r, w := io.Pipe()
		var s sink
		done := make(chan error, 1)
		go func() { _, err := set.Filter(&s).ReadFrom(r); done <- err }()
		step := func(in string, after time.Duration, want string) {
			t.Helper()
			if in != "" {
				if _, err := io.WriteString(w, in); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(after)
			synctest.Wait()
			if got := s.seen(); got != want {
				t.Fatalf("%v after %q: seen %q, want %q", after, in, got, want)
			}
		}
		step("x", 0, "x")                                                // no secret begins so
		step(".", 249*time.Millisecond, "x")                             // one does
		step("", time.Millisecond, "x.")                                 // but a person waits
		step("..", 250*time.Millisecond, "x...")                         //
		step(".sec", time.Hour, "x...")                                  // four bytes and more may be held for as long as it takes
		step("ret!", 0, "x...[redacted]!")                               // the rest of the secret: replaced
		step("h", 250*time.Millisecond, "x...[redacted]!h")              //
		step("ello", 250*time.Millisecond, "x...[redacted]!hello")       // it was another word: each byte once
		step("hunt", time.Hour, "x...[redacted]!hello")                  //
		step("ing", 250*time.Millisecond, "x...[redacted]!hellohunting") //
		step("hunter", time.Hour, "x...[redacted]!hellohunting")
		w.Close()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got, want := s.seen(), "x...[redacted]!hellohuntinghunter"; got != want {
			t.Errorf("at the end %q, want %q", got, want)
		}
	})
}

func TestASecretAddedWhileItRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, _ := redact.NewSet()
		if !set.Empty() {
			t.Error("a set of nothing isn't empty")
		}
		r, w := io.Pipe()
		var s sink
		go func() { _, _ = set.Filter(&s).ReadFrom(r) }()
		io.WriteString(w, "token-1234 ")
		synctest.Wait()
		if err := set.Add("token-1234\n"); err != nil { // as `echo token | agentd redact` has it
			t.Fatal(err)
		}
		io.WriteString(w, "token-1234 ")
		w.Close()
		synctest.Wait()
		if got, want := s.seen(), "token-1234 [redacted] "; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestBounds(t *testing.T) {
	set, err := redact.NewSet("abc", "fine", strings.Repeat("x", redact.MaxSecret+1))
	if !errors.Is(err, redact.ErrTooShort) || !errors.Is(err, redact.ErrTooLong) {
		t.Errorf("got %v, want both faults", err)
	}
	for i := 1; i < redact.MaxSecrets; i++ {
		if err := set.Add(fmt.Sprintf("secret-%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := set.Add("one too many"); !errors.Is(err, redact.ErrTooMany) {
		t.Errorf("got %v, want %v", err, redact.ErrTooMany)
	}
	if err := set.Add("fine"); err != nil {
		t.Errorf("one that is known: %v", err)
	}
	for _, e := range []error{redact.ErrTooShort, redact.ErrTooLong, redact.ErrTooMany, err} {
		if strings.Contains(e.Error(), "abc") {
			t.Errorf("the error holds the secret: %v", e)
		}
	}
}

// TestASinkThatStopsReading must not leave the filter waiting for it.
func TestASinkThatStopsReading(t *testing.T) {
	set, _ := redact.NewSet("secret")
	want := errors.New("the log is closed")
	_, err := set.Filter(failing{want}).ReadFrom(endless{})
	if !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

type failing struct{ err error }

func (f failing) ReadFrom(r io.Reader) (int64, error) {
	n, _ := r.Read(make([]byte, 10))
	return int64(n), f.err
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func FuzzFilter(f *testing.F) {
	f.Add([]byte("xx!!!!##yy"), uint8(3))
	f.Add([]byte("!#!#!#!#!#!!!!"), uint8(1))
	f.Fuzz(func(t *testing.T, in []byte, read uint8) {
		secrets := []string{"!!!!", "!!!!##", "#!#!#!", "!#!#!#!"}
		reads := make([]int, len(in))
		for i := range reads {
			reads[i] = 1 + int(read)%8
		}
		got := filter(t, &cut{s: string(in), reads: reads}, secrets...)
		for _, s := range secrets {
			if strings.Contains(got, s) {
				t.Fatalf("%q is in %q", s, got)
			}
		}
		if !bytes.ContainsAny(in, "%") && !strings.Contains(string(in), "ISE") { // no encoded form is near
			if want := replaced(string(in), secrets); got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		}
	})
}

// BenchmarkFilter compares a pipe read plainly with the same pipe filtered for 20 secrets.
func BenchmarkFilter(b *testing.B) {
	line := []byte("2026-01-01T00:00:00.000000Z INFO request=deadbeef user=1234 status=200 took=12ms " + strings.Repeat("lorem ipsum ", 9) + "\n")
	data := bytes.Repeat(line, 10<<20/len(line))
	rnd := rand.New(rand.NewPCG(1, 2))
	secrets := make([]string, 20)
	for i := range secrets {
		s := make([]byte, 32)
		for j := range s {
			s[j] = "abcdefghijklmnopqrstuvwxyz0123456789"[rnd.IntN(36)]
		}
		secrets[i] = string(s)
	}
	set, _ := redact.NewSet(secrets...)
	for name, dst := range map[string]io.ReaderFrom{"plain": discard{}, "filtered": set.Filter(discard{})} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				r, w, err := os.Pipe()
				if err != nil {
					b.Fatal(err)
				}
				go func() { w.Write(data); w.Close() }()
				if n, err := dst.ReadFrom(r); err != nil || n != int64(len(data)) {
					b.Fatal(n, err)
				}
				r.Close()
			}
		})
	}
}

type discard struct{}

func (discard) ReadFrom(r io.Reader) (n int64, err error) {
	b := make([]byte, 64<<10)
	for {
		k, err := r.Read(b)
		n += int64(k)
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}
