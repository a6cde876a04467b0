package conformance

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// probe is one check under way: who it is to the server, and what it made there. One goroutine's, but for what later starts.
type probe struct {
	ctx  context.Context
	s    *session
	kind string // a type and connector of this check's own
	deaf bool   // the answers are a broken server's: no rule for all answers counts
	wg   sync.WaitGroup

	ids    atomic.Int64
	mu     sync.Mutex
	jobs   []string // guarded by mu; to be settled at the end
	agents []string // guarded by mu; to be revoked at the end
}

func newProbe(ctx context.Context, s *session, index int) *probe {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	return &probe{ctx: ctx, s: s, kind: fmt.Sprintf("conformance-%d-%s", index, hex.EncodeToString(b[:]))}
}

// unique is an id that was not used before.
func (p *probe) unique(what string) string {
	return fmt.Sprintf("%s-%s-%d", what, p.kind[len(p.kind)-12:], p.ids.Add(1))
}

func (p *probe) failf(format string, args ...any) {
	panic(failed{fmt.Sprintf(format, args...)})
}

func (p *probe) skipf(format string, args ...any) {
	panic(skipped{fmt.Sprintf(format, args...)})
}

func (p *probe) assert(ok bool, format string, args ...any) {
	if !ok {
		p.failf(format, args...)
	}
}

// tidy settles the jobs and revokes the agents that the check made.
func (p *probe) tidy() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.ctx), 20*time.Second)
	defer cancel()
	for _, id := range p.jobs {
		p.send(ctx, p.s.t.AdminURL, "POST", "/api/v1/jobs/"+id+"/cancel", p.s.t.AdminToken, nil)
	}
	for _, id := range p.agents {
		p.send(ctx, p.s.t.AdminURL, "POST", "/api/v1/agents/"+id+"/revoke", p.s.t.AdminToken, nil)
	}
}

// reply is an answer that was read to its end, or the lack of one.
type reply struct {
	p      *probe
	op     string
	status int
	header http.Header
	body   []byte
	err    error
	took   time.Duration
}

func (r reply) String() string {
	if r.err != nil {
		return fmt.Sprintf("%s: no answer: %v", r.op, r.err)
	}
	body := r.body
	if len(body) > 300 {
		body = append(bytes.Clone(body[:300]), "…"...)
	}
	return fmt.Sprintf("%s: %d %s", r.op, r.status, body)
}

// maxReply bounds what is read of an answer: above the longest log that a check writes.
const maxReply = 64 << 20

// send makes one request. headers are "Name: value"; one that names Content-Type replaces the one that the body suggests.
func (p *probe) send(ctx context.Context, base, method, path, credential string, body any, headers ...string) reply {
	r := reply{p: p, op: method + " " + path}
	var src io.Reader
	contentType := ""
	switch b := body.(type) {
	case nil:
	case io.Reader:
		src = b
	case []byte:
		src = bytes.NewReader(b)
	default:
		raw, err := json.Marshal(b)
		if err != nil {
			panic("BUG: conformance: a body that can't be encoded: " + err.Error())
		}
		src, contentType = bytes.NewReader(raw), "application/json"
	}
	req, err := http.NewRequestWithContext(ctx, method, base+path, src)
	if err != nil {
		r.err = err
		return r
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if credential != "" {
		req.Header.Set("Authorization", "Bearer "+credential)
	}
	for _, h := range headers {
		k, v, _ := strings.Cut(h, ": ")
		if k == "Content-Length" {
			req.ContentLength, _ = strconv.ParseInt(v, 10, 64)
			continue
		}
		req.Header.Set(k, v)
	}
	began := time.Now()
	resp, err := p.s.web.Do(req)
	if err == nil {
		r.status, r.header = resp.StatusCode, resp.Header
		r.body, err = io.ReadAll(io.LimitReader(resp.Body, maxReply))
		resp.Body.Close()
	}
	r.err, r.took = err, time.Since(began)
	if err == nil {
		p.s.observe(r)
	}
	return r
}

// patient is send for a caller that isn't there to be throttled: it waits as it is told to and asks again. Checks make
// some hundred wrong calls from one address, and a server may well object.
func (p *probe) patient(ctx context.Context, base, method, path, credential string, body any, headers ...string) reply {
	for {
		r := p.send(ctx, base, method, path, credential, body, headers...)
		if r.err != nil || r.status != http.StatusTooManyRequests || r.code() != "throttled" {
			return r
		}
		if _, once := body.(io.Reader); once {
			return r
		}
		seconds, _ := strconv.Atoi(r.header.Get("Retry-After"))
		p.pause(time.Duration(max(seconds, 1)) * time.Second)
	}
}

// agentCall and adminCall go to the two sides.
func (p *probe) agentCall(method, path, credential string, body any, headers ...string) reply {
	return p.patient(p.ctx, p.s.t.URL, method, "/agent/v1/"+path, credential, body, headers...)
}

func (p *probe) adminCall(method, path string, body any, headers ...string) reply {
	return p.patient(p.ctx, p.s.t.AdminURL, method, "/api/v1/"+path, p.s.t.AdminToken, body, headers...)
}

// later makes a call beside the check.
func (p *probe) later(f func() reply) <-chan reply {
	ch := make(chan reply, 1)
	p.wg.Go(func() { ch <- f() })
	return ch
}

// within waits for a call that later made.
func (p *probe) within(d time.Duration, ch <-chan reply, what string) reply {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case r := <-ch:
		return r
	case <-timer.C:
		p.failf("%s: not answered within %v", what, d)
	case <-p.ctx.Done():
		p.failf("%s: not answered until the check's own end", what)
	}
	panic("not reached")
}

func (p *probe) pause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.ctx.Done():
		p.failf("the check took too long")
	}
}

// soon bounds what the protocol has happen at once, from something that waits for the end of a hold or a TTL.
const soon = 15 * time.Second

// until asks again and again, for as long as d.
func (p *probe) until(d time.Duration, what string, ok func() bool) {
	end := time.Now().Add(d)
	for !ok() {
		if time.Now().After(end) {
			p.failf("%s: not within %v", what, d)
		}
		p.pause(min(200*time.Millisecond, p.ttl()/20))
	}
}

// tries repeats what a busy machine may spoil by being late; one success is enough, and a server that breaks the rule has none.
func (p *probe) tries(f func() (ok bool, seen string)) {
	const most = 4
	var seen string
	for range most {
		ok, what := f()
		if ok {
			return
		}
		seen = what
	}
	p.failf("%d times out of %d: %s", most, most, seen)
}

func (p *probe) ttl() time.Duration { return p.s.ttl }

// must checks a success and returns its members.
func (r reply) must(status int) fields {
	if r.err != nil || r.status != status {
		r.p.failf("%v; want %d", r, status)
	}
	if status == http.StatusNoContent {
		return fields{}
	}
	return r.fields()
}

// refused checks an error.
func (r reply) refused(status int, code string) reply {
	if r.err != nil || r.status != status || r.code() != code {
		r.p.failf("%v; want %d %s", r, status, code)
	}
	return r
}

func (r reply) code() string {
	var all map[string]json.RawMessage
	var code string
	if json.Unmarshal(r.body, &all) == nil {
		_ = json.Unmarshal(all["code"], &code) // absent: no code
	}
	return code
}

func (r reply) fields() fields {
	f := fields{p: r.p, where: r.op}
	if err := json.Unmarshal(r.body, &f.raw); err != nil || f.raw == nil {
		r.p.failf("%v: the body is not a JSON object", r)
	}
	return f
}

// fields are the members of an object. Names are matched exactly, which encoding/json alone doesn't do.
type fields struct {
	p     *probe
	where string
	raw   map[string]json.RawMessage
}

func take[T any](f fields, name string, what string) (v T) {
	raw, ok := f.raw[name]
	if !ok {
		f.p.failf("%s: the answer has no member %q", f.where, name)
	}
	if string(raw) == "null" || json.Unmarshal(raw, &v) != nil {
		f.p.failf("%s: %s is %s; want %s", f.where, name, raw, what)
	}
	return v
}

func (f fields) str(name string) string    { return take[string](f, name, "a string") }
func (f fields) int(name string) int64     { return take[int64](f, name, "a whole number") }
func (f fields) bool(name string) bool     { return take[bool](f, name, "true or false") }
func (f fields) strs(name string) []string { return take[[]string](f, name, "a list of strings") }
func (f fields) has(name string) bool      { _, ok := f.raw[name]; return ok }
func (f fields) null(name string) bool     { return f.has(name) && string(f.raw[name]) == "null" }
func (f fields) labels() map[string]string {
	return take[map[string]string](f, "labels", "an object of strings")
}
func (f fields) millis(n string) time.Duration { return time.Duration(f.int(n)) * time.Millisecond }

func (f fields) obj(name string) fields {
	return fields{p: f.p, where: f.where + ": " + name, raw: take[map[string]json.RawMessage](f, name, "an object")}
}

func (f fields) objects(name string) []fields {
	var out []fields
	for i, raw := range take[[]map[string]json.RawMessage](f, name, "a list of objects") {
		out = append(out, fields{p: f.p, where: fmt.Sprintf("%s: %s[%d]", f.where, name, i), raw: raw})
	}
	return out
}

func (f fields) time(name string) time.Time {
	t, err := time.Parse(time.RFC3339, f.str(name))
	f.p.assert(err == nil, "%s: %s is %s; want an RFC 3339 time", f.where, name, f.raw[name])
	return t
}

// json compares a member with what it should mean.
func (f fields) json(name, want string) {
	raw, ok := f.raw[name]
	if !ok || !sameJSON(raw, []byte(want)) {
		f.p.failf("%s: %s is %s; want %s", f.where, name, raw, want)
	}
}

func sameJSON(a, b []byte) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	s, err1 := json.Marshal(x)
	t, err2 := json.Marshal(y)
	return err1 == nil && err2 == nil && bytes.Equal(s, t)
}
