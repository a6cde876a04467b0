package conformance

import (
	"context"
	"net/http"
	"strings"
	"time"
)

const secFaults = "Faults"

var faultChecks = []Check{
	{"faults/admin", secFaults, []string{"Only when the server was started with them enabled, on the admin port, with an admin token.", "`GET` reads the rules, `DELETE` clears them.", "an unknown mode is `400`."}, faultsAdmin, faulty},
	{"faults/first-match", secFaults, []string{"The first rule that matches wins; `count` 0 is without end"}, faultsFirst, faulty},
	{"faults/status", secFaults, []string{"| `status` | answers the status |"}, faultStatus, faulty},
	{"faults/slow", secFaults, []string{"| `slow` | waits `delayMs` before the handler |"}, faultSlow, faulty},
	{"faults/hang", secFaults, []string{"| `hang` | holds until the client leaves |"}, faultHang, faulty},
	{"faults/reset", secFaults, []string{"| `reset` | cuts the connection before the handler |"}, faultReset, faulty},
	{"faults/drop-response", secFaults, []string{"| `dropResponse` | lets the handler commit, then cuts |"}, faultDrop, faulty},
	{"faults/truncate", secFaults, []string{"| `truncate` | sends half of the answer |"}, faultTruncate, faulty},
	{"faults/html", secFaults, []string{"| `html` | answers 200 with a page |"}, faultHTML, faulty},
}

func (p *probe) mock(method, path string, body any) reply {
	return p.send(p.ctx, p.s.t.AdminURL, method, "/mock/v1/"+path, p.s.t.AdminToken, body)
}

// rules are in force until the check ends.
func (p *probe) rules(rules ...map[string]any) {
	p.mock("PUT", "faults", map[string]any{"rules": rules}).must(200)
}

func (p *probe) clear() {
	r := p.mock("DELETE", "faults", nil)
	p.assert(r.err == nil && r.status/100 == 2, "%v; want the rules cleared", r)
}

// struck is an agent with an offer, and a rule for its log route alone.
func (p *probe) struck(mode string, with map[string]any) (*agent, lease) {
	a, l := p.taken()
	p.rules(merged(map[string]any{"method": "POST", "path": "/agent/v1/jobs/" + l.job + "/attempts/*/logs", "mode": mode}, with))
	return a, l
}

func faultsAdmin(p *probe) {
	defer p.mock("DELETE", "faults", nil)
	r := p.send(p.ctx, p.s.t.AdminURL, "GET", "/mock/v1/faults", "", nil)
	p.unauthenticated("faults without a token", r)
	p.rules(map[string]any{"method": "POST", "path": "/agent/v1/nothing/*", "mode": "hang"})
	rules := p.mock("GET", "faults", nil).must(200).objects("rules")
	p.assert(len(rules) == 1 && rules[0].str("mode") == "hang" && rules[0].str("path") == "/agent/v1/nothing/*", "the rules read %v", rules)
	p.mock("PUT", "faults", map[string]any{"rules": []any{map[string]any{"mode": "explode"}}}).refused(400, "invalid")
	rules = p.mock("GET", "faults", nil).must(200).objects("rules")
	p.assert(len(rules) == 1, "a rule that was refused has changed the others: %v", rules)
	p.clear()
	p.assert(len(p.mock("GET", "faults", nil).must(200).objects("rules")) == 0, "the rules weren't cleared")
}

func faultsFirst(p *probe) {
	defer p.mock("DELETE", "faults", nil)
	a, l := p.taken()
	path := "/agent/v1/jobs/" + l.job + "/attempts/*/logs"
	p.rules(map[string]any{"path": path, "mode": "status", "status": 500, "code": "internal", "count": 2}, map[string]any{"path": path, "mode": "status", "status": 503, "code": "unavailable"},
		map[string]any{"path": path, "mode": "hang"})
	for i, want := range []int{500, 500, 503, 503, 503} {
		r := a.ship(l, batch{count: 1, body: lines(0, 1)})
		p.assert(r.status == want, "request %d: %v; want %d", i, r, want)
	}
	a.beat(l, 0).must(200)
}

func faultStatus(p *probe) {
	defer p.mock("DELETE", "faults", nil)
	a, l := p.struck("status", map[string]any{"status": 503, "code": "unavailable", "retryAfter": "2", "count": 1})
	r := a.ship(l, batch{count: 1, body: lines(0, 1)}).refused(503, "unavailable")
	p.assert(r.header.Get("Retry-After") == "2", "Retry-After is %q; want 2", r.header.Get("Retry-After"))
	p.assert(a.next(l) == 0, "a request that was answered with a status was carried out")
	a.append(l, 0, 1, 1)
}

func faultSlow(p *probe) {
	defer p.mock("DELETE", "faults", nil)
	a, l := p.struck("slow", map[string]any{"delayMs": 700, "count": 1})
	r := a.ship(l, batch{count: 1, body: lines(0, 1)})
	p.assert(r.must(200).int("next") == 1 && r.took >= 700*time.Millisecond, "%v after %v; want next 1 after at least 700ms", r, r.took)
}

func faultHang(p *probe) {
	defer p.mock("DELETE", "faults", nil)
	a, l := p.struck("hang", map[string]any{"count": 1})
	ctx, cancel := context.WithTimeout(p.ctx, time.Second)
	defer cancel()
	r := p.send(ctx, p.s.t.URL, "POST", "/agent/v1/"+l.logs()+"?first=0&count=0", a.apiKey, nil, "Agentd-Lease-Token: "+l.token)
	p.assert(r.err != nil, "%v; want no answer at all", r)
	p.assert(a.next(l) == 0, "a request that hung was carried out")
}

// cut expects no whole answer.
func (p *probe) cut(r reply) {
	p.assert(r.err != nil, "%v; want a connection that is cut", r)
}

// shipOnce sends a batch so that no client repeats it by itself.
func (a *agent) shipOnce(l lease) reply {
	body := lines(0, 1)
	return a.p.send(a.p.ctx, a.p.s.t.URL, "POST", "/agent/v1/"+l.logs()+"?first=0&count=1", a.apiKey, strings.NewReader(string(body)),
		"Content-Type: application/x-ndjson", "Content-Digest: "+digestOf(body), "Agentd-Lease-Token: "+l.token)
}

func faultReset(p *probe) {
	defer p.mock("DELETE", "faults", nil)
	a, l := p.struck("reset", map[string]any{"count": 1})
	p.cut(a.shipOnce(l))
	p.assert(a.next(l) == 0, "a request that was reset was carried out")
}

func faultDrop(p *probe) {
	defer p.mock("DELETE", "faults", nil)
	a, l := p.struck("dropResponse", map[string]any{"count": 1})
	p.cut(a.shipOnce(l))
	p.assert(a.next(l) == 1, "next is %d after a batch whose response was dropped; want 1", a.next(l))
}

func faultTruncate(p *probe) {
	defer p.mock("DELETE", "faults", nil)
	a, l := p.struck("truncate", map[string]any{"count": 1})
	p.cut(a.shipOnce(l))
	p.assert(a.next(l) == 1, "next is %d after a batch whose answer was truncated; want 1", a.next(l))
}

func faultHTML(p *probe) {
	defer p.mock("DELETE", "faults", nil)
	a, l := p.struck("html", map[string]any{"count": 1})
	r := a.shipOnce(l)
	p.assert(r.status == 200 && strings.HasPrefix(r.header.Get("Content-Type"), "text/html"), "%v with Content-Type %q; want a page", r, r.header.Get("Content-Type"))
	p.assert(a.next(l) == 0, "a request that was answered with a page was carried out")
}

var outageChecks = []Check{
	{"faults/outage-refuse", secFaults, []string{"takes the agent port down, open connections too, while the admin port stays up"}, outageRefuse, faulty},
	{"faults/outage-blackhole", secFaults, []string{"`blackhole` accepts and stays silent."}, outageBlackhole, faulty},
	{"faults/outage-reaper-rests", secFaults, []string{"The reaper rests meanwhile and for one TTL after, as if the server had been stopped"}, outageRests, faulty},
	{"faults/outage-partition", secFaults, []string{"with `\"partition\":true` it goes on."}, outagePartition, faulty},
}

func (p *probe) outage(mode string, d time.Duration, partition bool) {
	r := p.mock("PUT", "outage", map[string]any{"mode": mode, "forMs": d.Milliseconds(), "partition": partition})
	p.assert(r.err == nil && r.status/100 == 2, "%v; want an outage", r)
}

func (p *probe) endOutage() {
	r := p.mock("DELETE", "outage", nil)
	p.assert(r.err == nil && r.status/100 == 2, "%v; want the outage ended", r)
}

// down is whether an agent's call stays without an answer.
func (a *agent) down(patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(a.p.ctx, patience)
	defer cancel()
	return a.p.send(ctx, a.p.s.t.URL, "GET", "/agent/v1/jobs/next?"+a.query(0), a.apiKey, nil, "Agentd-Poll-Id: "+a.p.unique("poll"), "Agentd-Process-Id: "+a.process).err != nil
}

func outageRefuse(p *probe) {
	defer p.mock("DELETE", "outage", nil)
	a := p.agent()
	held := p.later(func() reply { return a.poll(45) })
	p.pause(300 * time.Millisecond) // until it is held
	p.outage("refuse", 2*time.Second, false)
	p.cut(p.within(soon, held, "a poll that was held when the outage began"))
	p.assert(a.down(time.Second), "an agent's call is answered during the outage")
	p.submit(nil)
	p.until(2*time.Second+soon, "the outage ends by itself", func() bool { return !a.down(time.Second) })
}

func outageBlackhole(p *probe) {
	defer p.mock("DELETE", "outage", nil)
	a := p.agent()
	p.outage("blackhole", 30*time.Second, false)
	began := time.Now()
	p.assert(a.down(700*time.Millisecond), "an agent's call is answered during the outage")
	p.assert(time.Since(began) > 600*time.Millisecond, "the connection was refused after %v; want silence", time.Since(began))
	p.submit(nil)
	p.endOutage()
	p.until(soon, "the outage was ended", func() bool { return !a.down(time.Second) })
}

func outageRests(p *probe) {
	defer p.mock("DELETE", "outage", nil)
	a := p.agent()
	p.submit(map[string]any{"maxAttempts": 1})
	l := a.start()
	p.outage("refuse", p.ttl()*2, false)
	p.until(p.ttl()*2+soon, "the outage ends by itself", func() bool { return !a.down(time.Second) })
	r := a.beat(l, 0)
	p.assert(r.status == http.StatusOK, "a heartbeat after an outage of two TTLs: %v; want 200", r)
	p.lapse(l)
}

func outagePartition(p *probe) {
	defer p.mock("DELETE", "outage", nil)
	a := p.agent()
	p.submit(map[string]any{"maxAttempts": 1})
	l := a.start()
	p.outage("refuse", p.ttl()*4+soon, true)
	p.lapse(l)
	p.assert(a.down(time.Second), "the lease ran out only after the outage")
}
