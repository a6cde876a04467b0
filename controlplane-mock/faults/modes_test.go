package faults_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/faults"
)

const logPath = "/agent/v1/jobs/job_1/attempts/1/logs"

// TestModes holds what the package comment promises to either side, over a real connection.
func TestModes(t *testing.T) {
	next := int64(7)
	for name, tc := range map[string]struct {
		rule        faults.Rule
		noAnswer    bool
		wantStatus  int // 0: no answer
		wantErr     error
		wantBody    string // whole; "*" is anything
		wantHeader  map[string]string
		wantCommits int64
	}{
		"no rule that matches": {
			rule: faults.Rule{Mode: faults.Reset, Path: "/elsewhere"}, wantStatus: 200, wantBody: answer, wantCommits: 1,
		},
		"status without code is a proxy's": {
			rule: faults.Rule{Mode: faults.Status, Status: 502}, wantStatus: 502, wantBody: "*",
			wantHeader: map[string]string{"Content-Type": "text/html"},
		},
		"status defaults to 503": {
			rule: faults.Rule{Mode: faults.Status, RetryAfter: "2"}, wantStatus: 503, wantBody: "*",
			wantHeader: map[string]string{"Retry-After": "2"},
		},
		"status with code is the control plane's": {
			rule: faults.Rule{Mode: faults.Status, Status: 409, Code: protocol.CodeLogGap, Next: &next}, wantStatus: 409,
			wantBody:   `{"type":"about:blank","title":"Conflict","status":409,"detail":"injected fault","code":"log_gap","next":7}` + "\n",
			wantHeader: map[string]string{"Content-Type": "application/problem+json"},
		},
		"html": {
			rule: faults.Rule{Mode: faults.HTML}, wantStatus: 200, wantBody: "*",
			wantHeader: map[string]string{"Content-Type": "text/html; charset=utf-8"},
		},
		"reset":        {rule: faults.Rule{Mode: faults.Reset}, wantErr: unix.ECONNRESET},
		"reset later":  {rule: faults.Rule{Mode: faults.Reset, Delay: 5}, wantErr: unix.ECONNRESET},
		"dropResponse": {rule: faults.Rule{Mode: faults.DropResponse}, wantErr: io.ErrUnexpectedEOF, wantCommits: 1},
		"slow":         {rule: faults.Rule{Mode: faults.Slow, Delay: 5}, wantStatus: 200, wantBody: answer, wantCommits: 1},
		"truncate": {
			rule: faults.Rule{Mode: faults.Truncate}, wantStatus: 200, wantErr: io.ErrUnexpectedEOF, wantBody: answer[:len(answer)/2],
			wantHeader: map[string]string{"Content-Length": "13", "Content-Type": "application/json"}, wantCommits: 1,
		},
		"truncate without a body": {
			rule: faults.Rule{Mode: faults.Truncate}, noAnswer: true, wantErr: io.ErrUnexpectedEOF, wantCommits: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := &backend{noAnswer: tc.noAnswer}
			addr := serve(t, injector(t, tc.rule).Middleware(b), nil)
			// Large enough not to fit into what net/http reads with the header.
			size := int64(300_000)
			if tc.rule.Mode == faults.Reset {
				size = 1 // the only mode that doesn't read the body: a large one would fail as it is sent
			}
			resp, got, err := receive(t, post(t, addr, logPath, strings.Repeat("x", int(size))))
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("client's error: got %v, want %v", err, tc.wantErr)
			}
			switch {
			case tc.wantStatus == 0 && resp != nil:
				t.Fatalf("answer: got %s, want none", resp.Status)
			case tc.wantStatus != 0 && (resp == nil || resp.StatusCode != tc.wantStatus):
				t.Fatalf("answer: got %v, want status %d", resp, tc.wantStatus)
			}
			if tc.wantBody != "*" && got != tc.wantBody {
				t.Errorf("body: got %q, want %q", got, tc.wantBody)
			}
			for k, want := range tc.wantHeader {
				if v := resp.Header.Get(k); v != want {
					t.Errorf("%s: got %q, want %q", k, v, want)
				}
			}
			if n := b.commits.Load(); n != tc.wantCommits {
				t.Errorf("commits: got %d, want %d", n, tc.wantCommits)
			}
			if want := tc.wantCommits * size; b.bytes.Load() != want {
				t.Errorf("bytes committed: got %d, want %d", b.bytes.Load(), want)
			}
		})
	}
}

func TestHangHoldsUntilTheClientLeaves(t *testing.T) {
	b := &backend{}
	in := injector(t, faults.Rule{Mode: faults.Hang})
	left := make(chan struct{})
	addr := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(left)
		in.Middleware(b).ServeHTTP(w, r)
	}), nil)
	c := post(t, addr, logPath, strings.Repeat("x", 300_000))
	if !silent(t, c) {
		t.Fatal("a hanging request was answered")
	}
	c.Close()
	wait(t, "the handler's end", left)
	if n := b.commits.Load(); n != 0 {
		t.Errorf("commits: got %d, want 0", n)
	}
}

func TestHangEndsWithTheRules(t *testing.T) {
	in := injector(t, faults.Rule{Mode: faults.Hang})
	addr := serve(t, in.Middleware(&backend{}), nil)
	c := post(t, addr, logPath, "x")
	if !silent(t, c) {
		t.Fatal("a hanging request was answered")
	}
	if err := in.SetRules(nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := receive(t, c); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("got %v, want the connection's end", err)
	}
	if resp, _, err := receive(t, post(t, addr, logPath, "x")); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("afterwards: got %v, %v, want 200", resp, err)
	}
}

// L3: the answer takes longer than the client waits, and the request commits.
func TestSlowCommitsForAClientThatLeft(t *testing.T) {
	b := &backend{entered: make(chan struct{}, 1)}
	b.then = func(r *http.Request) {
		if err := r.Context().Err(); err != nil {
			t.Errorf("the handler's context ended with its client: %v", err)
		}
	}
	addr := serve(t, injector(t, faults.Rule{Mode: faults.Slow, Delay: 200}).Middleware(b), nil)
	c := post(t, addr, logPath, strings.Repeat("x", 300_000))
	if !silent(t, c) {
		t.Fatal("answered before the delay")
	}
	c.Close()
	wait(t, "the commit", b.entered)
	if n := b.bytes.Load(); n != 300_000 {
		t.Errorf("bytes committed: got %d, want 300000", n)
	}
}

// A held poll behind a slow rule must not wait for a client that has gone.
func TestSlowEndsHoldsOfClientsThatLeft(t *testing.T) {
	ended := make(chan struct{})
	b := &backend{entered: make(chan struct{}, 1), then: func(r *http.Request) {
		<-r.Context().Done()
		close(ended)
	}}
	addr := serve(t, injector(t, faults.Rule{Mode: faults.Slow, Delay: 1}).Middleware(b), nil)
	c := post(t, addr, "/agent/v1/jobs/next", "")
	wait(t, "the hold", b.entered)
	c.Close()
	wait(t, "the hold's end", ended)
}

func TestHTTP2StreamsAreCut(t *testing.T) {
	for _, mode := range []faults.Mode{faults.Reset, faults.DropResponse, faults.Truncate} {
		t.Run(string(mode), func(t *testing.T) {
			b := &backend{}
			srv := httptest.NewUnstartedServer(injector(t, faults.Rule{Mode: mode, Count: 1}).Middleware(b))
			srv.EnableHTTP2 = true
			srv.StartTLS()
			defer srv.Close()
			resp, err := srv.Client().Post(srv.URL+logPath, "text/plain", strings.NewReader("x"))
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if err == nil {
				t.Fatal("got a whole answer, want an error")
			}
			want := int64(1)
			if mode == faults.Reset {
				want = 0
			}
			if n := b.commits.Load(); n != want {
				t.Errorf("commits: got %d, want %d", n, want)
			}
			resp, err = srv.Client().Post(srv.URL+logPath, "text/plain", strings.NewReader("x"))
			if err != nil || resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
				t.Fatalf("afterwards: got %v, %v, want 200 over HTTP/2", resp, err)
			}
			resp.Body.Close()
		})
	}
}

func TestResetReachesThroughTLS(t *testing.T) {
	srv := httptest.NewUnstartedServer(injector(t, faults.Rule{Mode: faults.Reset}).Middleware(&backend{}))
	out := faults.NewOutage(faults.OutageConfig{})
	srv.Listener = out.Listener(srv.Listener)
	srv.StartTLS()
	defer srv.Close()
	cfg := srv.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	cfg.ServerName, cfg.NextProtos = "example.com", []string{"http/1.1"}
	d := tls.Dialer{Config: cfg}
	c, err := d.DialContext(t.Context(), "tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	send(t, c, logPath, "x")
	if _, _, err := receive(t, c); !errors.Is(err, unix.ECONNRESET) {
		t.Fatalf("got %v, want %v", err, unix.ECONNRESET)
	}
}

func TestFirstMatchWinsAndCountsRunOut(t *testing.T) {
	never, always := 0.0, 1.0
	in := injector(t,
		faults.Rule{Mode: faults.Status, Status: 500, Probability: &never},
		faults.Rule{Mode: faults.Status, Status: 501, Method: "GET"},
		faults.Rule{Mode: faults.Status, Status: 502, Path: "/agent/v1/jobs/*/attempts/*/logs", Count: 2},
		faults.Rule{Mode: faults.Status, Status: 504, Probability: &always, Count: 1},
	)
	b := &backend{}
	addr := serve(t, in.Middleware(b), nil)
	var got []int
	for _, path := range []string{logPath, "/agent/v1/link", logPath, logPath, "/agent/v1/link"} {
		resp, _, err := receive(t, post(t, addr, path, "x"))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, resp.StatusCode)
	}
	want := []int{502, 504, 502, 200, 200}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("statuses: got %v, want %v", got, want)
		}
	}
	var hits []int64
	for _, r := range in.Rules() {
		hits = append(hits, r.Hits)
	}
	if want := []int64{0, 0, 2, 1}; hits[0] != want[0] || hits[1] != want[1] || hits[2] != want[2] || hits[3] != want[3] {
		t.Errorf("hits: got %v, want %v", hits, want)
	}
	want2 := "path /agent/v1/jobs/*/attempts/*/logs and the first 2 (2 so far)"
	if got := in.Rules()[2].Matches; got != want2 {
		t.Errorf("rule prints %q, want %q", got, want2)
	}
}

func TestProbability(t *testing.T) {
	p := 0.25
	dice := []float64{0, 0.2499, 0.25, 0.9}
	i := 0
	in := faults.NewInjector(faults.Config{Random: func() float64 { i++; return dice[i-1] }})
	if err := in.SetRules([]faults.Rule{{Mode: faults.Status, Probability: &p}}); err != nil {
		t.Fatal(err)
	}
	addr := serve(t, in.Middleware(&backend{}), nil)
	for i, want := range []int{503, 503, 200, 200} {
		resp, _, err := receive(t, post(t, addr, "/", ""))
		if err != nil || resp.StatusCode != want {
			t.Errorf("dice %v: got %v, %v, want %d", dice[i], resp, err, want)
		}
	}
}

// A server that shuts down must not wait for what hangs.
func TestCloseLetsHungRequestsGo(t *testing.T) {
	in := faults.NewInjector(faults.Config{})
	if err := in.SetRules([]faults.Rule{{Mode: faults.Hang}}); err != nil {
		t.Fatal(err)
	}
	entered := make(chan struct{}, 1)
	h := in.Middleware(&backend{})
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entered <- struct{}{}
		h.ServeHTTP(w, r)
	})}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ln) }()
	post(t, ln.Addr().String(), "/", "x")
	wait(t, "the request", entered)
	in.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		t.Fatalf("shutdown: %v", err)
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Fatal(err)
	}
}

func TestRulesAreChecked(t *testing.T) {
	minus := -0.5
	for want, rule := range map[string]faults.Rule{
		`mode "explode" is unknown`: {Mode: "explode"},
		`mode "" is unknown`:        {},
		`status 99`:                 {Mode: faults.Status, Status: 99},
		`probability -0.5`:          {Mode: faults.Status, Probability: &minus},
		`count -1`:                  {Mode: faults.Status, Count: -1},
		`delayMs -1`:                {Mode: faults.Slow, Delay: -1},
		`path "/a[": syntax error`:  {Mode: faults.Slow, Path: "/a["},
	} {
		in := faults.NewInjector(faults.Config{})
		keep := faults.Rule{Mode: faults.HTML}
		if err := in.SetRules([]faults.Rule{keep}); err != nil {
			t.Fatal(err)
		}
		err := in.SetRules([]faults.Rule{{Mode: faults.Hang}, rule})
		if err == nil || !strings.Contains(err.Error(), "rules[1]: "+want) {
			t.Errorf("%+v: got %v, want … rules[1]: %s …", rule, err, want)
		}
		if got := in.Rules(); len(got) != 1 || got[0].Mode != faults.HTML {
			t.Errorf("after a refused change: got %v, want the rule that was there", got)
		}
	}
}
