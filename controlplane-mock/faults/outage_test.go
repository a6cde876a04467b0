package faults_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentd/controlplane-mock/faults"
)

// hold is a handler that commits and then waits for its client to leave, as a held poll does.
func hold() *backend {
	return &backend{entered: make(chan struct{}, 8), then: func(r *http.Request) {
		if r.URL.Path == "/hold" {
			<-r.Context().Done()
		}
	}}
}

func begin(t *testing.T, out *faults.Outage, mode faults.OutageMode) {
	t.Helper()
	if err := out.Begin(faults.OutageSpec{Mode: mode, For: 60_000}); err != nil {
		t.Fatal(err)
	}
}

func TestRefuse(t *testing.T) {
	out := faults.NewOutage(faults.OutageConfig{})
	b := hold()
	addr := serve(t, b, out.Listener)
	idle := post(t, addr, "/", "x")
	if _, _, err := receive(t, idle); err != nil {
		t.Fatal(err)
	}
	wait(t, "the first call", b.entered)
	held := post(t, addr, "/hold", "x")
	wait(t, "the hold", b.entered)

	begin(t, out, faults.Refuse)
	for name, c := range map[string]net.Conn{"idle": idle, "held": held} {
		if _, _, err := receive(t, c); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the %s connection: got %v, want %v", name, err, unix.ECONNRESET)
		}
	}
	for range 3 {
		if _, err := net.Dial("tcp", addr); !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatalf("a new connection: got %v, want %v", err, unix.ECONNREFUSED)
		}
	}
	if ln, err := net.Listen("tcp", addr); err == nil {
		ln.Close()
		t.Error("somebody else could take the port")
	}

	out.End()
	if resp, body, err := receive(t, post(t, addr, "/", "x")); err != nil || body != answer {
		t.Fatalf("afterwards: got %v, %q, %v, want %q", resp, body, err, answer)
	}
}

func TestBlackhole(t *testing.T) {
	out := faults.NewOutage(faults.OutageConfig{})
	b := hold()
	addr := serve(t, b, out.Listener)
	idle := post(t, addr, "/", "x")
	if _, _, err := receive(t, idle); err != nil {
		t.Fatal(err)
	}
	wait(t, "the first call", b.entered)
	held := post(t, addr, "/hold", "x")
	wait(t, "the hold", b.entered)

	begin(t, out, faults.Blackhole)
	send(t, idle, "/", "x")
	fresh := post(t, addr, "/", "x")
	conns := map[string]net.Conn{"idle": idle, "held": held, "fresh": fresh}
	for name, c := range conns {
		if !silent(t, c) {
			t.Errorf("the %s connection isn't silent", name)
		}
	}
	if n := b.commits.Load(); n != 2 {
		t.Errorf("commits: got %d, want the 2 from before", n)
	}

	out.End()
	for name, c := range conns {
		if _, _, err := receive(t, c); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the %s connection afterwards: got %v, want %v", name, err, unix.ECONNRESET)
		}
	}
	if _, body, err := receive(t, post(t, addr, "/", "x")); err != nil || body != answer {
		t.Fatalf("afterwards: got %q, %v, want %q", body, err, answer)
	}
	if n := b.commits.Load(); n != 3 {
		t.Errorf("commits: got %d, want 3: what a black hole swallowed never arrives", n)
	}
}

func TestOutageOnASharedPort(t *testing.T) {
	for _, mode := range []faults.OutageMode{faults.Refuse, faults.Blackhole} {
		t.Run(string(mode), func(t *testing.T) {
			out := faults.NewOutage(faults.OutageConfig{})
			b := hold()
			agentSide := func(r *http.Request) bool { return r.URL.Path != "/admin" }
			addr := serve(t, out.Handler(b, agentSide), nil)
			held := post(t, addr, "/hold", "x")
			wait(t, "the hold", b.entered)

			begin(t, out, mode)
			fresh := post(t, addr, "/", "x")
			conns := map[string]net.Conn{"held": held, "fresh": fresh}
			if mode == faults.Blackhole {
				for name, c := range conns {
					if !silent(t, c) {
						t.Errorf("the %s connection isn't silent", name)
					}
				}
			}
			if _, body, err := receive(t, post(t, addr, "/admin", "x")); err != nil || body != answer {
				t.Errorf("the admin side: got %q, %v, want %q", body, err, answer)
			}
			if mode == faults.Blackhole {
				out.End()
			}
			for name, c := range conns {
				if _, _, err := receive(t, c); !errors.Is(err, unix.ECONNRESET) {
					t.Errorf("the %s connection: got %v, want %v", name, err, unix.ECONNRESET)
				}
			}
			out.End()
			if _, body, err := receive(t, post(t, addr, "/", "x")); err != nil || body != answer {
				t.Fatalf("afterwards: got %q, %v, want %q", body, err, answer)
			}
			if n := b.commits.Load(); n != 3 {
				t.Errorf("commits: got %d, want 3 (hold, admin, afterwards)", n)
			}
		})
	}
}

func TestOutageEndsByItself(t *testing.T) {
	out := faults.NewOutage(faults.OutageConfig{})
	addr := serve(t, &backend{}, out.Listener)
	begun := time.Now()
	if err := out.Begin(faults.OutageSpec{Mode: faults.Refuse, For: 200}); err != nil {
		t.Fatal(err)
	}
	if st := out.State(); !st.Active || st.Mode != faults.Refuse || st.Remaining < 1 || st.Remaining > 200 {
		t.Errorf("state: got %+v, want active, refuse, at most 200 ms", st)
	}
	for {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
			break
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatal(err)
		}
		if time.Since(begun) > patience {
			t.Fatal("the outage doesn't end")
		}
	}
	if d := time.Since(begun); d < 200*time.Millisecond {
		t.Errorf("ended after %v, want 200 ms", d)
	}
	if st := out.State(); st != (faults.OutageState{}) {
		t.Errorf("state afterwards: got %+v, want none", st)
	}
}

func TestOutagesOneAfterTheOther(t *testing.T) {
	out := faults.NewOutage(faults.OutageConfig{})
	addr := serve(t, &backend{}, out.Listener)
	for i := range 20 {
		begin(t, out, faults.Blackhole)
		begin(t, out, faults.Refuse)
		if _, err := net.Dial("tcp", addr); !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatalf("round %d: got %v, want %v", i, err, unix.ECONNREFUSED)
		}
		out.End()
		if _, body, err := receive(t, post(t, addr, "/", "x")); err != nil || body != answer {
			t.Fatalf("round %d: got %q, %v, want %q", i, body, err, answer)
		}
	}
}

// A server that closes during an outage must not leave a connection or an Accept behind (goleak looks, too).
func TestCloseDuringAnOutage(t *testing.T) {
	for _, mode := range []faults.OutageMode{faults.Refuse, faults.Blackhole} {
		out := faults.NewOutage(faults.OutageConfig{})
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addr := ln.Addr().String()
		wrapped := out.Listener(ln)
		b := hold()
		srv := &http.Server{Handler: b}
		done := make(chan error, 1)
		go func() { done <- srv.Serve(wrapped) }()
		c := post(t, addr, "/hold", "x")
		wait(t, "the hold", b.entered)
		begin(t, out, mode)
		srv.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("%s: got %v, want %v", mode, err, http.ErrServerClosed)
		}
		if _, _, err := receive(t, c); err == nil || errors.Is(err, io.EOF) && mode == faults.Refuse {
			t.Errorf("%s: the client's connection: got %v, want a reset", mode, err)
		}
		out.Close()
	}
}

func TestAPI(t *testing.T) {
	in, out := injector(t), faults.NewOutage(faults.OutageConfig{})
	defer out.Close()
	addr := serve(t, faults.API(in, out), nil)
	call := func(method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(method, "http://"+addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := req.Write(c); err != nil {
			t.Fatal(err)
		}
		resp, got, err := receive(t, c)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, strings.TrimSpace(got)
	}
	for _, tc := range []struct {
		method, path, body string
		status             int
		want               string // contained
	}{
		{"GET", "/mock/v1/faults", "", 200, `{"rules":[]}`},
		{"PUT", "/mock/v1/faults", `{"rules":[{"method":"POST","path":"/agent/v1/jobs/*/attempts/*/logs","mode":"status","status":503,"code":"","retryAfter":"2","delayMs":0,"probability":1.0,"count":0}]}`, 200, `"mode":"status"`},
		{"GET", "/mock/v1/faults", "", 200, `"hits":0,"matches":"method POST and path /agent/v1/jobs/*/attempts/*/logs and probability 1"`},
		{"PUT", "/mock/v1/faults", `{"rules":[{"mode":"explode"}]}`, 400, `rules[0]: mode \"explode\" is unknown`},
		{"PUT", "/mock/v1/faults", `{"rules":[{"mode":"hang","colour":"red"}]}`, 400, `unknown field`},
		{"PUT", "/mock/v1/faults", `{}`, 400, `rules is missing`},
		{"PUT", "/mock/v1/faults", `{"rules":[]} x`, 400, `more than one JSON value`},
		{"PUT", "/mock/v1/faults", strings.Repeat(" ", 1<<20) + `{}`, 413, `too_large`},
		{"POST", "/mock/v1/faults", ``, 405, `invalid`},
		{"DELETE", "/mock/v1/faults", "", 204, ``},
		{"GET", "/mock/v1/faults", "", 200, `{"rules":[]}`},
		{"PUT", "/mock/v1/outage", `{"mode":"refuse","forMs":20000,"partition":true}`, 200, `{"active":true,"mode":"refuse","remainingMs":`},
		{"GET", "/mock/v1/outage", ``, 200, `"partition":true`},
		{"DELETE", "/mock/v1/outage", ``, 204, ``},
		{"GET", "/mock/v1/outage", ``, 200, `{"active":false}`},
		{"PUT", "/mock/v1/outage", `{"mode":"sulk","forMs":1}`, 400, `mode \"sulk\" is unknown`},
		{"PUT", "/mock/v1/outage", `{"mode":"refuse"}`, 400, `forMs 0`},
		{"GET", "/mock/v1/else", ``, 404, `not_found`},
	} {
		status, got := call(tc.method, tc.path, tc.body)
		if status != tc.status || !strings.Contains(got, tc.want) {
			t.Errorf("%s %s %.80s: got %d %s, want %d … %s …", tc.method, tc.path, tc.body, status, got, tc.status, tc.want)
		}
	}
}
