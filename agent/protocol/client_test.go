package protocol_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"agentd/agent/protocol"
)

var ref = protocol.AttemptRef{JobID: "job_1", Attempt: 1, LeaseToken: "lt"}

func newClient(t *testing.T, cfg protocol.ClientConfig) *protocol.Client {
	t.Helper()
	if cfg.ProcessID == "" {
		cfg.ProcessID = "boot.process"
	}
	c, err := protocol.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// serve answers every request with h and gives a client to it.
func serve(t *testing.T, h http.HandlerFunc) *protocol.Client {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return newClient(t, protocol.ClientConfig{Server: server.URL, Credential: func() string { return "key" }})
}

func problem(w http.ResponseWriter, status int, code protocol.Code, more string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"type":"about:blank","title":"t","status":%d,"code":%q%s}`, status, code, more)
}

// TestWhatDoesNotSpeakTheProtocolIsNotTheControlPlane: L17 and its kind.
func TestWhatDoesNotSpeakTheProtocolIsNotTheControlPlane(t *testing.T) {
	const page = "<!doctype html><title>Welcome to the hotel</title>"
	for _, c := range []struct {
		name   string
		status int
		body   string
		detail string // a part of it
	}{
		{"a page", 200, page, "isn't a control plane's"},
		{"nothing", 200, "", "isn't a control plane's"},
		{"half an answer", 200, `{"next":12`, "isn't a control plane's"},
		{"without next", 200, `{}`, "next: is required"},
		{"next in another case", 200, `{"Next":12}`, "next: is required"},
		{"a negative next", 200, `{"next":-1}`, "next: is negative"},
		{"a text for next", 200, `{"next":"12"}`, "next: is not a whole number in range"},
		{"null", 200, `null`, "isn't a control plane's"},
		{"no content", 204, "", "that status is no answer to this call"},
		{"created", 201, `{"next":12}`, "that status is no answer to this call"},
		{"more than we read", 200, `{"next":12}` + strings.Repeat(" ", 4<<20), "it is larger than"},
		{"bad request without a code", 400, page, "no known code"},
		{"unauthenticated without a code", 401, `{"error":"login"}`, "no known code"},
		{"not found without a code", 404, page, "no known code"},
		{"a code of somebody else's", 409, `{"code":"etag_mismatch"}`, "no known code"},
		{"a code with another's status", 404, `{"code":"lease_lost"}`, "no known code"},
		{"a gap that doesn't say where", 409, `{"code":"log_gap"}`, "no known code"},
		{"teapot", 418, "", "no known code"},
		{"redirect", 302, "", "redirected to https://login.example/: redirects are not followed"},
		{"not modified", 304, "", "redirected to"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "https://login.example/?session=secret")
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			})
			_, err := client.ShipLog(t.Context(), ref, protocol.LogBody{Count: 1, Frames: [][]byte{[]byte("{}\n")}})
			var e *protocol.Error
			if !errors.As(err, &e) {
				t.Fatalf("got %v, want an *Error", err)
			}
			if e.Status != c.status || e.Code != "" || protocol.CodeOf(err) != "" || !strings.Contains(e.Error(), c.detail) {
				t.Errorf("got %+v, want status %d, no code, detail with %q", e, c.status, c.detail)
			}
			if got := protocol.ActionFor(err); got != protocol.Retry {
				t.Errorf("got %v, want retry", got)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error holds a redirect's query: %v", err)
			}
		})
	}
}

func TestRetryAfter(t *testing.T) {
	const date = "Sun, 06 Nov 1994 08:49:37 GMT" // the server's clock may say anything
	for _, c := range []struct {
		header string
		want   time.Duration
	}{
		{"2", 2 * time.Second},
		{" 0 ", 0},
		{"86400", 10 * time.Minute},
		{"99999999999999999999999", 0},
		{"-5", 0},
		{"soon", 0},
		{"Sun, 06 Nov 1994 08:50:07 GMT", 30 * time.Second},
		{"Sun, 06 Nov 1994 08:49:07 GMT", 0},
		{"Mon, 07 Nov 1994 08:49:37 GMT", 10 * time.Minute},
	} {
		client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Date", date)
			w.Header().Set("Retry-After", c.header)
			problem(w, 429, protocol.CodeThrottled, "")
		})
		_, err := client.LogNext(t.Context(), ref)
		if got, ok := protocol.RetryAfter(err); got != c.want || ok != (c.want > 0) {
			t.Errorf("%q: got %v, %v, want %v", c.header, got, ok, c.want)
		}
	}
}

func TestAPollWithoutAJob(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if got, want := r.URL.RequestURI(), "/agent/v1/jobs/next?type=extract&type=load&wait=3"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		for header, want := range map[string]string{"Agentd-Poll-Id": "p1", "Agentd-Process-Id": "boot.process", "Authorization": "Bearer key"} {
			if got := r.Header.Get(header); got != want {
				t.Errorf("%s: got %q, want %q", header, got, want)
			}
		}
		w.WriteHeader(http.StatusNoContent)
	})
	job, err := client.NextJob(t.Context(), protocol.PollRequest{PollID: "p1", Wait: 2500 * time.Millisecond, Types: []string{"extract", "load"}})
	if job != nil || err != nil {
		t.Fatalf("got %v, %v, want nil, nil", job, err)
	}
}

func TestALogBodyIsItsFramesWithTheirDigest(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sum := sha256.Sum256(body)
		if got, want := r.Header.Get("Content-Digest"), "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":"; got != want {
			t.Errorf("digest: got %s, want %s", got, want)
		}
		if got, want := r.RequestURI, "/agent/v1/jobs/job_1/attempts/1/logs?count=2&final=1&first=7"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		for header, want := range map[string]string{
			"Agentd-Lease-Token": "lt", "Content-Encoding": "zstd", "Content-Type": "application/x-ndjson", "Content-Length": "8",
			"Idempotency-Key": "",
		} {
			if got := r.Header.Get(header); got != want {
				t.Errorf("%s: got %q, want %q", header, got, want)
			}
		}
		if string(body) != "one\ntwo\n" {
			t.Errorf("body: %q", body)
		}
		io.WriteString(w, `{"next":9}`)
	})
	next, err := client.ShipLog(t.Context(), ref, protocol.LogBody{
		First: 7, Count: 2, Final: true, Encoding: "zstd", Frames: [][]byte{[]byte("one\n"), []byte("two\n")},
	})
	if err != nil || next.Next != 9 {
		t.Fatalf("got %v, %v, want 9", next, err)
	}
}

func TestARefusedKeyIsReplacedOnceAndTheCallRepeated(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); string(body) != "x" {
			t.Errorf("body: %q", body)
		}
		if r.Header.Get("Authorization") == "Bearer new" {
			io.WriteString(w, `{"next":1}`)
			return
		}
		problem(w, 401, protocol.CodeUnauthenticated, "")
	}))
	defer server.Close()
	one := protocol.LogBody{Count: 1, Frames: [][]byte{[]byte("x")}}
	for _, c := range []struct {
		name, old, new string
		relink         error
		want           string // the error
		action         protocol.Action
	}{
		{"expired", "old", "new", nil, "", protocol.Proceed},
		{"none yet", "", "new", nil, "", protocol.Proceed},
		{"the new one is refused, too", "old", "newer", nil, "protocol: ship log: 401 unauthenticated", protocol.Relink},
		{
			"re-link refused", "old", "old", &protocol.Error{Op: "link", Status: 403, Code: protocol.CodeRevoked},
			"protocol: ship log: re-link: protocol: link: 403 revoked", protocol.StopRevoked,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			key, relinks := c.old, 0
			client := newClient(t, protocol.ClientConfig{
				Server: server.URL, Credential: func() string { return key },
				Relink: func(_ context.Context, refused string) error {
					if relinks++; refused != c.old {
						t.Errorf("refused: got %q, want %q", refused, c.old)
					}
					key = c.new
					return c.relink
				},
			})
			_, err := client.ShipLog(t.Context(), ref, one)
			if got := fmt.Sprint(err); got != c.want && (c.want != "" || err != nil) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if got := protocol.ActionFor(err); got != c.action || relinks != 1 {
				t.Errorf("got %v after %d re-links, want %v after 1", got, relinks, c.action)
			}
		})
	}
}

func TestALogGapSaysWhereToGoOn(t *testing.T) {
	client := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		problem(w, 409, protocol.CodeLogGap, `,"next":0,"detail":"next is 0\nand that's it"`)
	})
	_, err := client.ShipLog(t.Context(), ref, protocol.LogBody{First: 5})
	e, ok := errors.AsType[*protocol.Error](err)
	if !ok || e.Code != protocol.CodeLogGap || e.Next != 0 || e.Detail != "next is 0 and that's it" || protocol.ActionFor(err) != protocol.Rewind {
		t.Fatalf("got %#v", err)
	}
}

func TestARequestThatCanNeverPassIsNotSent(t *testing.T) {
	client := serve(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("sent: %s", r.URL) })
	ctx := t.Context()
	_, ship := client.ShipLog(ctx, ref, protocol.LogBody{First: 1, Count: 0, Frames: [][]byte{[]byte("x")}})
	_, path := client.LogNext(ctx, protocol.AttemptRef{JobID: "../../link", Attempt: 1, LeaseToken: "lt"})
	_, poll := client.NextJob(ctx, protocol.PollRequest{PollID: "p"})
	_, beat := client.Heartbeat(ctx, "job_1", 0, protocol.HeartbeatRequest{Attempt: 1})
	_, activate := client.Activate(ctx, protocol.Activation{Type: "t", MaxQueries: 1})
	for field, err := range map[string]error{
		"count": ship, "job id": path, "type": poll, "leaseToken": beat, "connectors": activate,
		"outcome":    client.Complete(ctx, "job_1", protocol.Completion{Attempt: 1, LeaseToken: "lt", Outcome: "done"}),
		"result":     client.Complete(ctx, "job_1", protocol.Completion{Attempt: 1, LeaseToken: "lt", Outcome: protocol.Failed, Result: []byte("{")}),
		"attempt":    client.Release(ctx, "job_1", protocol.Release{LeaseToken: "lt"}),
		"page":       client.Answer(ctx, "q_1", protocol.Answer{LeaseToken: "lt"}),
		"error.code": client.Answer(ctx, "q_1", protocol.Answer{LeaseToken: "lt", Error: &protocol.QueryError{}}),
	} {
		fault, ok := errors.AsType[*protocol.FieldError](err)
		if !ok || fault.Field != field {
			t.Errorf("got %v, want a fault in %s", err, field)
		}
		if got := protocol.ActionFor(err); got != protocol.Bisect || protocol.CodeOf(err) != "" {
			t.Errorf("%s: got %v, code %q, want bisect and none", field, got, protocol.CodeOf(err))
		}
	}
}

func TestCancelledIsCancelled(t *testing.T) {
	arrived := make(chan struct{})
	client := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() { <-arrived; cancel(errors.New("draining")) }()
	_, err := client.LogNext(ctx, ref)
	if want := "protocol: log next: context canceled (draining)"; err.Error() != want || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want %s", err, want)
	}
}

func TestServerURLs(t *testing.T) {
	for server, want := range map[string]string{
		"https://c.example":        "https://c.example",
		"https://c.example:8443/":  "https://c.example:8443",
		"https://c.example/base//": "https://c.example/base",
		"http://localhost:7070":    "http://localhost:7070",
		"http://127.8.9.1:7070":    "http://127.8.9.1:7070",
		"http://[::1]:7070":        "http://[::1]:7070",
	} {
		u, err := protocol.ParseServer(server, false)
		if err != nil || u.String() != want {
			t.Errorf("%s: got %v, %v, want %s", server, u, err, want)
		}
	}
	for server, want := range map[string]string{
		"":                         `protocol: no server given: name the control plane's URL, as in https://control.example.com`,
		"c.example":                `protocol: server "c.example" has no scheme: write https://c.example`,
		"127.0.0.1:7070":           `protocol: server "127.0.0.1:7070" has no scheme: write http://127.0.0.1:7070 or https://127.0.0.1:7070`,
		"localhost:7070":           `protocol: server "localhost:7070" has no scheme: write http://localhost:7070 or https://localhost:7070`,
		"ftp://c.example":          `protocol: server "ftp://c.example" has the scheme "ftp": only https:// (and http:// to loopback) is spoken`,
		"https://":                 `protocol: server "https://" names no host: write https://control.example.com`,
		"https://c.example:x":      `protocol: server "https://c.example:x" is not a URL: invalid port ":x" after host`,
		"https://me:pw@c.example":  `protocol: server holds a user name or password: the agent proves itself by its key; leave them out`,
		"https://c.example?a=b":    `protocol: server "https://c.example?a=b" has a query or a fragment: leave out what follows the path`,
		"http://c.example":         `protocol: server "http://c.example" would send API keys unencrypted: use https://, or say that it may be insecure (insecure: true, --insecure)`,
		"http://localhost.evil.ex": `protocol: server "http://localhost.evil.ex" would send API keys unencrypted: use https://, or say that it may be insecure (insecure: true, --insecure)`,
	} {
		if u, err := protocol.ParseServer(server, false); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, %v, want %s", server, u, err, want)
		}
	}
	if _, err := protocol.ParseServer("http://c.example", true); err != nil {
		t.Errorf("insecure: %v", err)
	}
}
