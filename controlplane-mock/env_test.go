package controlplane

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

const adminToken = "admin-token-of-the-tests"

// env is a server behind real HTTP on connections in memory, and what a test says to it.
type env struct {
	t    *testing.T
	st   store.Store
	mem  *memStore // st, if it is one
	srv  *Server
	web  *http.Client
	stop context.CancelFunc // ends Run
	dial func(context.Context) (net.Conn, error)

	polls atomic.Int64 // for ids that are used once
}

// bubble runs a test in a bubble, where thirty seconds take none.
func bubble(t *testing.T, f func(t *testing.T, e *env)) {
	t.Helper()
	bubbleWith(t, nil, f)
}

func bubbleWith(t *testing.T, change func(*Config), f func(t *testing.T, e *env)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// net/http lingers half a second on a connection that it closes after a body it didn't want.
		t.Cleanup(func() { time.Sleep(time.Second) })
		f(t, newEnv(t, change))
	})
}

func newEnv(t *testing.T, change func(*Config)) *env {
	t.Helper()
	return newWrappedEnv(t, change, func(h http.Handler) http.Handler { return h })
}

func newWrappedEnv(t *testing.T, change func(*Config), wrap func(http.Handler) http.Handler) *env {
	t.Helper()
	cfg := Config{Store: newMemStore(), AdminToken: SumOf(adminToken)}
	if change != nil {
		change(&cfg)
	}
	srv, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	e := &env{t: t, st: cfg.Store, srv: srv, stop: cancel, dial: l.dial}
	e.mem, _ = cfg.Store.(*memStore)
	web := HTTPServer(wrap(srv.Handler()), nil)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := srv.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	wg.Go(func() { _ = web.Serve(l) })
	tr := &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return l.dial(ctx) },
		MaxIdleConnsPerHost: 100,
	}
	e.web = &http.Client{Transport: tr}
	t.Cleanup(func() {
		cancel()
		_ = web.Close()
		tr.CloseIdleConnections()
		wg.Wait()
	})
	return e
}

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// reply is an answer that was read to its end.
type reply struct {
	status int
	header http.Header
	body   []byte
	err    error
	took   time.Duration
}

func (r reply) problem() protocol.Problem {
	var p protocol.Problem
	if r.header.Get("Content-Type") == "application/problem+json" {
		_ = json.Unmarshal(r.body, &p)
	}
	return p
}

func (r reply) String() string { return fmt.Sprintf("%d %s %v", r.status, r.body, r.err) }

// want checks the status and, for errors, the code and that the answer is a whole problem.
func (r reply) want(t *testing.T, status int, code protocol.Code) reply {
	t.Helper()
	if r.err != nil || r.status != status {
		t.Fatalf("got %v; want %d %s", r, status, code)
	}
	switch {
	case code != "":
		p := r.problem()
		if p.Code != code || p.Status != status || p.Type == "" || p.Title == "" {
			t.Fatalf("got problem %+v (%s); want %d %s", p, r.body, status, code)
		}
	case status == http.StatusNoContent:
		if len(r.body) != 0 {
			t.Fatalf("204 with body %q", r.body)
		}
	}
	return r
}

func into[T any](t *testing.T, r reply) (v T) {
	t.Helper()
	if err := json.Unmarshal(r.body, &v); err != nil {
		t.Fatalf("%v: %v", r, err)
	}
	return v
}

// call sends one request. headers are "Name: value".
func (e *env) callCtx(ctx context.Context, method, path, credential string, body any, headers ...string) reply {
	var src io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		src = strings.NewReader(b)
	case []byte:
		src = bytes.NewReader(b)
	default:
		raw, err := json.Marshal(b)
		if err != nil {
			return reply{err: err}
		}
		src = bytes.NewReader(raw)
		headers = append([]string{"Content-Type: application/json"}, headers...)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://control.test"+path, src)
	if err != nil {
		return reply{err: err}
	}
	if credential != "" {
		req.Header.Set("Authorization", "Bearer "+credential)
	}
	for _, h := range headers {
		k, v, _ := strings.Cut(h, ": ")
		req.Header[http.CanonicalHeaderKey(k)] = append(req.Header[http.CanonicalHeaderKey(k)], v)
	}
	started := time.Now()
	resp, err := e.web.Do(req)
	if err != nil {
		return reply{err: err, took: time.Since(started)}
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	return reply{resp.StatusCode, resp.Header, raw, err, time.Since(started)}
}

func (e *env) call(method, path, credential string, body any, headers ...string) reply {
	return e.callCtx(e.t.Context(), method, path, credential, body, headers...)
}

func (e *env) admin(method, path string, body any) reply {
	return e.call(method, "/api/v1/"+path, adminToken, body)
}

// later runs a call beside the test; the channel brings its answer.
func later(f func() reply) <-chan reply {
	ch := make(chan reply, 1)
	go func() { ch <- f() }()
	return ch
}

// agent is one linked agent.
type agent struct {
	e       *env
	pub     ed25519.PublicKey
	priv    ed25519.PrivateKey
	id, key string
	process string
	link    protocol.Link
}

func (e *env) newAgent() *agent {
	pub, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		e.t.Fatal(err)
	}
	return &agent{e: e, pub: pub, priv: priv, process: "boot.p1"}
}

func (e *env) token(body any) string {
	e.t.Helper()
	if body == nil {
		body = map[string]any{}
	}
	return into[map[string]string](e.t, e.admin("POST", "enrolment-tokens", body).want(e.t, 201, ""))["token"]
}

func (a *agent) challenge() protocol.Challenge {
	a.e.t.Helper()
	r := a.e.call("POST", "/agent/v1/link/challenge", "", map[string]any{"publicKey": a.pub, "agentId": a.id}).want(a.e.t, 200, "")
	return into[protocol.Challenge](a.e.t, r)
}

// linkBody is a link's body with everything right; with replaces fields.
func (a *agent) linkBody(with map[string]any) map[string]any {
	a.e.t.Helper()
	ch := a.challenge()
	body := map[string]any{
		"agentId": a.id, "publicKey": []byte(a.pub), "name": "host", "labels": map[string]string{"region": "eu-1"}, "types": []string{"extract"},
		"connectors": []string{}, "version": "1.0.0", "os": "linux", "arch": "amd64", "processId": a.process, "start": true, "nonce": ch.Nonce,
	}
	maps.Copy(body, with)
	if _, set := with["signature"]; !set {
		id, _ := body["agentId"].(string)
		nonce, _ := body["nonce"].(string)
		body["signature"] = a.sign(nonce, id, ch.ServerID)
	}
	return body
}

// sign is written apart from the server's linkMessage.
func (a *agent) sign(parts ...string) []byte {
	var b bytes.Buffer
	for _, p := range append([]string{"agentd-link-v1"}, parts...) {
		n := len(p)
		b.Write([]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		b.WriteString(p)
	}
	return ed25519.Sign(a.priv, b.Bytes())
}

func (a *agent) sendLink(token string, with map[string]any) reply {
	a.e.t.Helper()
	return a.e.call("POST", "/agent/v1/link", token, a.linkBody(with))
}

// linked takes what a link answered.
func (a *agent) linked(r reply) *agent {
	a.e.t.Helper()
	a.link = into[protocol.Link](a.e.t, r)
	a.id, a.key = a.link.AgentID, a.link.APIKey
	return a
}

// agent makes and links one.
func (e *env) agent(with map[string]any) *agent {
	e.t.Helper()
	a := e.newAgent()
	return a.linked(a.sendLink(e.token(nil), with).want(e.t, 201, ""))
}

func (a *agent) pollAs(ctx context.Context, pollID, query string) reply {
	return a.e.callCtx(ctx, "GET", "/agent/v1/jobs/next?"+query, a.key, nil, "Agentd-Poll-Id: "+pollID, "Agentd-Process-Id: "+a.process)
}

func (a *agent) poll(query string) reply {
	return a.pollAs(a.e.t.Context(), fmt.Sprintf("poll-%d", a.e.polls.Add(1)), query)
}

func (e *env) submit(body map[string]any) JobView {
	e.t.Helper()
	if body == nil {
		body = map[string]any{}
	}
	if body["type"] == nil {
		body["type"] = "extract"
	}
	return into[JobView](e.t, e.admin("POST", "jobs", body).want(e.t, 201, ""))
}

func (e *env) job(id string) JobView {
	e.t.Helper()
	return into[JobView](e.t, e.admin("GET", "jobs/"+id, nil).want(e.t, 200, ""))
}

// lease takes one job that is pending.
func (a *agent) lease() protocol.Job {
	a.e.t.Helper()
	return into[protocol.Job](a.e.t, a.poll("wait=0&type=extract").want(a.e.t, 200, ""))
}

func (a *agent) on(j protocol.Job, call string, with map[string]any) reply {
	body := map[string]any{"attempt": j.Attempt, "leaseToken": j.LeaseToken}
	maps.Copy(body, with)
	return a.e.call("POST", "/agent/v1/jobs/"+j.ID+"/"+call, a.key, body)
}

// start leases a job and accepts it.
func (a *agent) start() protocol.Job {
	a.e.t.Helper()
	j := a.lease()
	a.on(j, "heartbeat?waitMs=0", nil).want(a.e.t, 200, "")
	return j
}

func (a *agent) complete(j protocol.Job, outcome protocol.Outcome, logRecords int64) reply {
	return a.on(j, "complete", map[string]any{"outcome": outcome, "logRecords": logRecords})
}

func digestOf(body []byte) string {
	sum := sha256.Sum256(body)
	return "Content-Digest: sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

func logPath(j protocol.Job, query string) string {
	return fmt.Sprintf("/agent/v1/jobs/%s/attempts/%d/logs%s", j.ID, j.Attempt, query)
}

// ship sends lines as records, uncompressed.
func (a *agent) ship(j protocol.Job, first, count int64, body string, headers ...string) reply {
	return a.shipQuery(j, fmt.Sprintf("?first=%d&count=%d", first, count), []byte(body), headers...)
}

func (a *agent) shipQuery(j protocol.Job, query string, body []byte, headers ...string) reply {
	if !slices.ContainsFunc(headers, func(h string) bool { return strings.HasPrefix(h, "Content-Encoding:") }) {
		headers = append(headers, "Content-Encoding: identity")
	}
	headers = append([]string{"Agentd-Lease-Token: " + j.LeaseToken, "Content-Type: application/x-ndjson", digestOf(body)}, headers...)
	return a.e.call("POST", logPath(j, query), a.key, body, headers...)
}

func outLine(text string) string { return fmt.Sprintf("{\"ts\":1,\"s\":\"out\",\"m\":%q}\n", text) }

// pass lets a bubble's time go on.
func pass(d time.Duration) { time.Sleep(d) }

// until waits for something that tells nobody when it happens.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick, end := time.NewTicker(100*time.Microsecond), time.After(30*time.Second)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("%s: not within 30s", what)
		}
	}
}
