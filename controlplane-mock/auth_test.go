package controlplane

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"agentd/agent/protocol"
)

// neverRead fails a test that reads a body before it has decided about the credential.
type neverRead struct{ t *testing.T }

func (n neverRead) Read([]byte) (int, error) {
	n.t.Error("the body was read before the credential was refused")
	return 0, io.EOF
}

// Every route with every kind of credential, and the exact answer. Bodies are what the route wants, so that what is
// let through gets as far as its own answer.
func TestEveryRouteWithEveryCredential(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, other, gone := e.agent(nil), e.agent(nil), e.agent(nil)
		e.admin("POST", "agents/"+gone.id+"/revoke", nil).want(t, 200, "")
		expired := e.agent(nil)
		e.admin("POST", "agents/"+expired.id+"/expire-key", nil).want(t, 200, "")
		e.submit(nil)
		j := a.start()
		a.ship(j, 0, 1, outLine("x")).want(t, 200, "")
		enrol := e.token(nil)
		claim := fmt.Sprintf(`{"attempt":%d,"leaseToken":%q}`, j.Attempt, j.LeaseToken)
		poll := []string{"Agentd-Poll-Id: p", "Agentd-Process-Id: " + a.process}
		token := []string{"Agentd-Lease-Token: " + j.LeaseToken}
		kinds := []string{"none", "malformed", "unknown", "expired", "revoked", "other agent", "enrolment", "admin", "right"}
		credential := map[string]string{
			"malformed": "Basic YTpi", "unknown": "Bearer " + apiKeyPrefix + "x", "expired": "Bearer " + expired.key, "revoked": "Bearer " + gone.key,
			"other agent": "Bearer " + other.key, "enrolment": "Bearer " + enrol, "admin": "Bearer " + adminToken, "right": "Bearer " + a.key,
		}
		agentWants := map[string]int{"none": 401, "malformed": 401, "unknown": 401, "expired": 401, "revoked": 403, "enrolment": 401, "admin": 401}
		adminWants := map[string]int{"none": 401, "malformed": 401, "unknown": 401, "expired": 401, "revoked": 401, "other agent": 401, "enrolment": 401, "right": 401}
		linkWants := map[string]int{"none": 400, "malformed": 401, "unknown": 401, "expired": 401, "revoked": 401, "other agent": 401, "enrolment": 400, "admin": 401, "right": 401}
		open := map[string]int{}
		rows := []struct {
			method, path, body string
			headers            []string
			wants              map[string]int // by kind; else let
			let                int            // what a credential that is let through gets
			otherAgent         int            // what another agent's key gets
		}{
			{"POST", "/agent/v1/link/challenge", `{"publicKey":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}`, nil, open, 200, 200},
			{"POST", "/agent/v1/link", `{}`, nil, linkWants, 0, 401},
			{"GET", "/agent/v1/jobs/next?wait=0&type=zz", "", poll, agentWants, 204, 204},
			{"POST", "/agent/v1/jobs/" + j.ID + "/heartbeat", claim, nil, agentWants, 200, 409},
			{"POST", "/agent/v1/jobs/" + j.ID + "/complete", claim, nil, agentWants, 400, 400},
			{"POST", "/agent/v1/jobs/" + j.ID + "/release", `{"attempt":77,"leaseToken":"x"}`, nil, agentWants, 409, 409},
			{"POST", logPath(j, "?first=0&count=0"), "", append(token, digestOf(nil)), agentWants, 200, 404},
			{"GET", logPath(j, "/next"), "", token, agentWants, 200, 404},
			{"POST", "/agent/v1/queries/activate", `{"type":"x","connectors":["c"],"maxQueries":1,"waitMs":0}`, poll, agentWants, 200, 200},
			{"POST", "/agent/v1/queries/nope/answer", `{"leaseToken":"x","page":{"items":[]}}`, nil, agentWants, 410, 410},
			{"POST", "/api/v1/queries", `{"type":"x","connector":"c","query":{},"timeoutMs":1}`, nil, adminWants, 503, 0},
			{"POST", "/api/v1/jobs", `{"type":"x"}`, nil, adminWants, 201, 0},
			{"GET", "/api/v1/jobs", "", nil, adminWants, 200, 0},
			{"GET", "/api/v1/jobs/" + j.ID, "", nil, adminWants, 200, 0},
			{"GET", "/api/v1/jobs/" + j.ID + "/logs", "", nil, adminWants, 200, 0},
			{"POST", "/api/v1/jobs/nope/cancel", "", nil, adminWants, 404, 0},
			{"POST", "/api/v1/jobs/" + j.ID + "/retry", "", nil, adminWants, 409, 0},
			{"GET", "/api/v1/agents", "", nil, adminWants, 200, 0},
			{"GET", "/api/v1/agents/" + a.id, "", nil, adminWants, 200, 0},
			{"POST", "/api/v1/agents/nope/revoke", "", nil, adminWants, 404, 0},
			{"POST", "/api/v1/agents/nope/restore", "", nil, adminWants, 404, 0},
			{"POST", "/api/v1/agents/nope/expire-key", "", nil, adminWants, 404, 0},
			{"POST", "/api/v1/enrolment-tokens", "", nil, adminWants, 201, 0},
			{"GET", "/metrics", "", nil, open, 200, 200},
			{"GET", "/healthz", "", nil, open, 200, 200},
			{"GET", "/readyz", "", nil, open, 200, 200},
		}
		covered := map[string]bool{}
		for _, row := range rows {
			for _, kind := range kinds {
				want, set := row.wants[kind]
				if !set {
					want = row.let
					if kind == "other agent" {
						want = row.otherAgent
					}
				}
				req := httptest.NewRequestWithContext(t.Context(), row.method, row.path, strings.NewReader(row.body))
				if want == 401 || want == 403 {
					req.Body = io.NopCloser(neverRead{t})
				}
				for _, h := range row.headers {
					k, v, _ := strings.Cut(h, ": ")
					req.Header.Set(k, v)
				}
				if c := credential[kind]; c != "" {
					req.Header.Set("Authorization", c)
				}
				rec := httptest.NewRecorder()
				e.srv.Handler().ServeHTTP(rec, req)
				r := reply{status: rec.Code, header: rec.Header(), body: rec.Body.Bytes()}
				if r.status != want {
					t.Errorf("%s %s with %s: %v; want %d", row.method, row.path, kind, r, want)
				}
				if r.status >= 400 && r.problem().Status != r.status {
					t.Errorf("%s %s with %s: not a problem: %v", row.method, row.path, kind, r)
				}
				if (r.status == 401) != (r.header.Get("WWW-Authenticate") != "") {
					t.Errorf("%s %s with %s: %d with WWW-Authenticate %q", row.method, row.path, kind, r.status, r.header.Get("WWW-Authenticate"))
				}
			}
			covered[row.method+" "+pattern(e.srv, row.path)] = true
		}
		for _, r := range append(append(e.srv.agentRoutes(), e.srv.adminRoutes()...), e.srv.healthRoutes()...) {
			for m := range r.by {
				if !covered[m+" "+r.path] {
					t.Errorf("no row for %s %s", m, r.path)
				}
			}
		}
	})
}

// pattern finds the route that a path belongs to.
func pattern(s *Server, path string) string {
	mux := http.NewServeMux()
	for _, r := range append(append(s.agentRoutes(), s.adminRoutes()...), s.healthRoutes()...) {
		mux.HandleFunc(r.path, func(http.ResponseWriter, *http.Request) {})
	}
	_, p := mux.Handler(httptest.NewRequest(http.MethodGet, path, nil))
	return p
}

func TestUnknownRoutesAndMethods(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		for _, path := range []string{"/", "/agent", "/agent/v1", "/agent/v2/jobs/next", "/agent/v1/jobs", "/agent/v1/jobs/next/", "/agent/v1//jobs/next", "/agent/v1/x/../jobs/next", "/api/v1/nope", "/mock/v1/faults"} {
			e.call("GET", path, adminToken, nil).want(t, 404, protocol.CodeNotFound)
		}
		for _, tc := range []struct{ method, path, allow string }{
			{"POST", "/agent/v1/jobs/next", "GET"}, {"HEAD", "/agent/v1/jobs/next", "GET"}, {"GET", "/agent/v1/link", "POST"}, {"DELETE", "/api/v1/jobs", "GET, POST"},
			{"PUT", "/agent/v1/jobs/j/attempts/1/logs", "POST"}, {"OPTIONS", "/api/v1/agents", "GET"}, {"BREW", "/healthz", "GET"},
		} {
			r := e.call(tc.method, tc.path, "", nil)
			if r.status != 405 || r.header.Get("Allow") != tc.allow || r.header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s %s: %v, Allow %q; want 405 and %q", tc.method, tc.path, r, r.header.Get("Allow"), tc.allow)
			}
			if tc.method != "HEAD" {
				r.want(t, 405, protocol.CodeInvalid)
			}
		}
	})
}

func TestSidesArePlacedApart(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		get := func(h http.Handler, path string) int {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
			return rec.Code
		}
		for _, tc := range []struct {
			path         string
			agent, admin int
		}{{"/api/v1/jobs", 404, 401}, {"/agent/v1/jobs/next", 401, 404}, {"/metrics", 404, 200}, {"/healthz", 200, 200}, {"/readyz", 200, 200}} {
			if got := get(e.srv.AgentHandler(), tc.path); got != tc.agent {
				t.Errorf("agent side, %s: %d; want %d", tc.path, got, tc.agent)
			}
			if got := get(e.srv.AdminHandler(), tc.path); got != tc.admin {
				t.Errorf("admin side, %s: %d; want %d", tc.path, got, tc.admin)
			}
		}
		var through bool
		mock := e.srv.RequireAdmin(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { through = true; w.WriteHeader(http.StatusNoContent) }))
		if get(mock, "/mock/v1/faults") != 401 || through {
			t.Error("RequireAdmin let someone through without a token")
		}
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/mock/v1/faults", nil)
		req.Header.Set("Authorization", "Bearer "+adminToken)
		mock.ServeHTTP(httptest.NewRecorder(), req)
		if !through {
			t.Error("RequireAdmin refused the admin")
		}
	})
}

// A body that comes a byte now and then ends with its deadline, not with the client's patience; a hold isn't cut by it.
func TestSlowBodies(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		e.submit(nil)
		j := a.start()
		conn, err := e.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		started := time.Now()
		answer := make(chan string, 1)
		go func() {
			var b bytes.Buffer
			_, _ = io.Copy(&b, conn)
			answer <- b.String()
		}()
		fmt.Fprintf(conn, "POST /agent/v1/jobs/%s/heartbeat HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 1000\r\n\r\n", j.ID, a.key)
		for {
			if _, err := conn.Write([]byte(" ")); err != nil {
				break
			}
			pass(time.Second)
		}
		if took := time.Since(started); took < 30*time.Second || took > 33*time.Second {
			t.Errorf("cut after %v; want 30s", took)
		}
		if got := <-answer; !strings.Contains(got, `"code":"unavailable"`) {
			t.Errorf("answered %q; want unavailable", got)
		}
		e.submit(nil)
		b := e.agent(nil)
		k := b.start()
		e.srv.SetPace(150*time.Second, 45*time.Second)
		if r := b.on(k, "heartbeat?waitMs=60000", nil).want(t, 200, ""); r.took != 50*time.Second {
			t.Errorf("held for %v; want 50s, beyond the body's deadline", r.took)
		}
	})
}

func TestSlowAndLargeHeaders(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		conn, err := e.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		started := time.Now()
		fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n")
		if _, err := io.ReadAll(conn); err != nil {
			t.Error(err)
		}
		if took := time.Since(started); took != 10*time.Second {
			t.Errorf("a header that never ends was cut after %v; want 10s", took)
		}
		if r := e.call("GET", "/healthz", "", nil, "X-Big: "+strings.Repeat("x", 64<<10)); r.status != http.StatusRequestHeaderFieldsTooLarge && r.err == nil {
			t.Errorf("64 KiB of header: %v; want 431", r)
		}
	})
}

func TestLimiterForgetsTheLongestUnused(t *testing.T) {
	l := newLimiter[int](0.001, 1, 3)
	take := func(k int, want bool) {
		t.Helper()
		if _, ok := l.take(k); ok != want {
			t.Errorf("take %d: %v; want %v", k, ok, want)
		}
	}
	for k := range 3 {
		take(k, true)
	}
	take(0, false) // and is now the last to go
	take(3, true)  // 1 makes room
	take(0, false)
	take(1, true)
	if n := l.recent.Len(); n != 3 || len(l.buckets) != 3 {
		t.Errorf("%d and %d entries; want 3", n, len(l.buckets))
	}
}

func TestAddresses(t *testing.T) {
	for remote, want := range map[string]string{
		"10.1.2.3:99": "10.1.2.3/32", "[::ffff:10.1.2.3]:99": "10.1.2.3/32", "[2001:db8:1:2:3::4]:1": "2001:db8:1:2::/64", "[fe80::1%eth0]:5": "fe80::/64", "pipe": "invalid Prefix",
	} {
		if got := address(&http.Request{RemoteAddr: remote}).String(); got != want {
			t.Errorf("%s: %s; want %s", remote, got, want)
		}
	}
}
