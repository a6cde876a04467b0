package conformance

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"sync"
	"time"
)

// agent is a client of the agents' side that does as it is told.
type agent struct {
	p       *probe
	key     ed25519.PrivateKey
	id      string
	apiKey  string
	process string
	link    fields // what its last link was told
}

// stranger is an agent that hasn't linked yet.
func (p *probe) stranger() *agent {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic("BUG: conformance: " + err.Error())
	}
	return &agent{p: p, key: key, process: p.unique("boot") + ".1"}
}

// agent is a linked one; with are members of its link that differ.
func (p *probe) agent(with ...map[string]any) *agent {
	a := p.stranger()
	a.linked(a.sendLink(p.token(nil), merged(with...)), 201)
	return a
}

func merged(with ...map[string]any) map[string]any {
	all := map[string]any{}
	for _, m := range with {
		maps.Copy(all, m)
	}
	return all
}

// token mints an enrolment token.
func (p *probe) token(body map[string]any) string {
	if body == nil {
		body = map[string]any{}
	}
	return p.adminCall("POST", "enrolment-tokens", body).must(201).str("token")
}

func (a *agent) pub() ed25519.PublicKey { return a.key.Public().(ed25519.PublicKey) } //nolint:forcetypeassert // documented to be one

func (a *agent) challenge() (nonce, serverID string) {
	f := a.p.agentCall("POST", "link/challenge", "", map[string]any{"publicKey": []byte(a.pub()), "agentId": a.id}).must(200)
	return f.str("nonce"), f.str("serverId")
}

// linkBody is a link with everything right; with replaces members, nil leaves one out.
func (a *agent) linkBody(with map[string]any) map[string]any {
	nonce, serverID := a.challenge()
	body := map[string]any{
		"agentId": a.id, "publicKey": []byte(a.pub()), "name": "conformance", "labels": map[string]string{}, "types": []string{a.p.kind},
		"connectors": []string{a.p.kind}, "version": "1.0.0", "os": "linux", "arch": "amd64", "processId": a.process, "start": true, "nonce": nonce,
	}
	for k, v := range with {
		if v == nil {
			delete(body, k)
			continue
		}
		body[k] = v
	}
	if _, given := with["signature"]; !given {
		id, _ := body["agentId"].(string)
		n, _ := body["nonce"].(string)
		body["signature"] = a.sign("agentd-link-v1", n, id, serverID)
	}
	return body
}

// sign signs texts as a link is signed.
func (a *agent) sign(parts ...string) []byte {
	var msg []byte
	for _, part := range parts {
		msg = append(binary.BigEndian.AppendUint32(msg, uint32(len(part))), part...)
	}
	return ed25519.Sign(a.key, msg)
}

func (a *agent) sendLink(token string, with map[string]any) reply {
	return a.p.agentCall("POST", "link", token, a.linkBody(with))
}

// linked takes what a link was told.
func (a *agent) linked(r reply, status int) fields {
	f := r.must(status)
	a.id, a.apiKey, a.link = f.str("agentId"), f.str("apiKey"), f
	a.p.mu.Lock()
	a.p.agents = append(a.p.agents, a.id)
	a.p.mu.Unlock()
	return f
}

// relink proves who it is.
func (a *agent) relink(with map[string]any) fields { return a.linked(a.sendLink("", with), 200) }

// twin is the same identity in another process that has the same API key.
func (a *agent) twin() *agent {
	b := *a
	b.process = a.p.unique("boot") + ".2"
	return &b
}

// pollVia is one poll of an instance, by its id and the rest of its query.
func (a *agent) pollVia(ctx context.Context, base, id, query string) reply {
	return a.p.patient(ctx, base, "GET", "/agent/v1/jobs/next?"+query, a.apiKey, nil, "Agentd-Poll-Id: "+id, "Agentd-Process-Id: "+a.process)
}

func (a *agent) pollID(id string, wait int, kinds ...string) reply {
	return a.pollVia(a.p.ctx, a.p.s.t.URL, id, a.query(wait, kinds...))
}

func (a *agent) query(wait int, kinds ...string) string {
	if len(kinds) == 0 {
		kinds = []string{a.p.kind}
	}
	return fmt.Sprintf("wait=%d&", wait) + url.Values{"type": kinds}.Encode()
}

func (a *agent) poll(wait int, kinds ...string) reply {
	return a.pollID(a.p.unique("poll"), wait, kinds...)
}

// lease is an offer that was taken.
type lease struct {
	fields
	job     string
	attempt int64
	token   string
}

func leased(f fields) lease {
	return lease{f, f.str("id"), f.int("attempt"), f.str("leaseToken")}
}

// take polls for a job that is pending.
func (a *agent) take() lease { return leased(a.poll(5).must(200)) }

// start takes a job and accepts it.
func (a *agent) start() lease {
	l := a.take()
	a.beat(l, 0).must(200)
	return l
}

// submit makes a job of the check's own type.
func (p *probe) submit(with map[string]any) fields {
	f := p.adminCall("POST", "jobs", merged(map[string]any{"type": p.kind}, with)).must(201)
	p.mine(f.str("id"))
	return f
}

// mine has a job settled at the end.
func (p *probe) mine(job string) {
	p.mu.Lock()
	p.jobs = append(p.jobs, job)
	p.mu.Unlock()
}

func (p *probe) job(id string) fields { return p.adminCall("GET", "jobs/"+id, nil).must(200) }

func (p *probe) status(id string) string { return p.job(id).str("status") }

// attempt is one attempt of a job, as the admin side shows it.
func (p *probe) attempt(job string, number int64) fields {
	for _, a := range p.job(job).objects("attempts") {
		if a.int("attempt") == number {
			return a
		}
	}
	p.failf("job %s shows no attempt %d", job, number)
	return fields{}
}

// isStatus waits for a job's status, and isState for an attempt's.
func (p *probe) isStatus(id, want string, d time.Duration) {
	p.until(d, "job "+id+" becomes "+want, func() bool { return p.status(id) == want })
}

func (p *probe) isState(l lease, want string, d time.Duration) {
	p.until(d, fmt.Sprintf("attempt %d becomes %s", l.attempt, want), func() bool { return p.attempt(l.job, l.attempt).str("state") == want })
}

// onJob is a job call of the attempt's holder; with replaces members, nil leaves one out.
func (a *agent) onJob(l lease, call string, with map[string]any) reply {
	body := map[string]any{"attempt": l.attempt, "leaseToken": l.token}
	for k, v := range with {
		if v == nil {
			delete(body, k)
			continue
		}
		body[k] = v
	}
	return a.p.agentCall("POST", "jobs/"+l.job+"/"+call, a.apiKey, body)
}

func (a *agent) beat(l lease, wait time.Duration) reply {
	return a.onJob(l, fmt.Sprintf("heartbeat?waitMs=%d", wait.Milliseconds()), nil)
}

// kept renews a lease until the function that it returns is called, for checks with more calls than a busy machine makes within a TTL.
func (a *agent) kept(l lease) (stop func()) {
	ctx, cancel := context.WithCancel(a.p.ctx)
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(a.p.ttl() / 6)
		defer tick.Stop()
		for {
			a.p.send(ctx, a.p.s.t.URL, "POST", "/agent/v1/jobs/"+l.job+"/heartbeat?waitMs=0", a.apiKey, map[string]any{"attempt": l.attempt, "leaseToken": l.token})
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

func (a *agent) complete(l lease, outcome string, logRecords int64, with ...map[string]any) reply {
	return a.onJob(l, "complete", merged(append(with, map[string]any{"outcome": outcome, "logRecords": logRecords})...))
}

func (a *agent) release(l lease) reply {
	return a.onJob(l, "release", map[string]any{"reason": "draining"})
}

// batch is a log body with what goes with it. Zero members are filled in by ship.
type batch struct {
	first, count int64
	body         []byte
	encoding     string
	final        bool
	digest       string // the whole header; "none": left out
	token        string // "none": left out
	contentType  string
}

func digestOf(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

func (l lease) logs() string { return fmt.Sprintf("jobs/%s/attempts/%d/logs", l.job, l.attempt) }

func (a *agent) ship(l lease, b batch) reply {
	headers := []string{"Content-Type: application/x-ndjson", "Content-Encoding: identity", "Content-Digest: " + digestOf(b.body), "Agentd-Lease-Token: " + l.token}
	set := func(i int, name, value string) {
		if value != "" {
			headers[i] = name + ": " + value
		}
	}
	set(0, "Content-Type", b.contentType)
	set(1, "Content-Encoding", b.encoding)
	set(2, "Content-Digest", b.digest)
	set(3, "Agentd-Lease-Token", b.token)
	var sent []string
	for _, h := range headers {
		if !strings.HasSuffix(h, ": none") {
			sent = append(sent, h)
		}
	}
	path := fmt.Sprintf("%s?first=%d&count=%d", l.logs(), b.first, b.count)
	if b.final {
		path += "&final=1"
	}
	return a.p.agentCall("POST", path, a.apiKey, b.body, sent...)
}

// next asks how much of a log is stored.
func (a *agent) next(l lease) int64 {
	return a.p.agentCall("GET", l.logs()+"/next", a.apiKey, nil, "Agentd-Lease-Token: "+l.token).must(200).int("next")
}

// out is a record of standard output.
func out(text string) string {
	return fmt.Sprintf("{\"ts\":1732888888123456,\"s\":\"out\",\"m\":%q}\n", text)
}

// lines are n of them, numbered from first.
func lines(first, n int) []byte {
	var b strings.Builder
	for i := range n {
		b.WriteString(out(fmt.Sprintf("n=%d", first+i)))
	}
	return []byte(b.String())
}

// text is a job's log as people read it.
func (p *probe) text(job, query string) string {
	r := p.adminCall("GET", "jobs/"+job+"/logs"+query, nil)
	p.assert(r.err == nil && r.status == 200, "%v; want 200", r)
	return string(r.body)
}
