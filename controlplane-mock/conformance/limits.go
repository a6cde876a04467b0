package conformance

import (
	"bytes"
	"fmt"
	"strings"
)

// The limits are configurable, so a server that takes what is just above the default has others, and can't be held to these.
var limitChecks = []Check{
	{"ground/limit-json-body", secGround, []string{"| JSON body | 1 MiB | `413 too_large` |"}, limitJSONBody, 0},
	{"ground/limit-log-body", secGround, []string{"| log body as sent / unpacked | 8 MiB / 32 MiB | `413 too_large` |"}, limitLogBody, 0},
	{"ground/limit-unpacked", secGround, []string{"| log body as sent / unpacked | 8 MiB / 32 MiB | `413 too_large` |"}, limitUnpacked, 0},
	{"ground/limit-record", secGround, []string{"| one log record | 1 MiB | `413 too_large` |"}, limitRecord, 0},
	{"ground/limit-payload", secGround, []string{"| a job's payload, its result | 256 KiB each | `400 invalid` |"}, limitPayload, 0},
	{"ground/limit-names", secGround, []string{
		"| a type, a label | 128 characters | `400 invalid` |", "| an idempotency key | 256 characters | `400 invalid` |",
		"| a process id | 128 characters, dots allowed | `400 invalid` |",
	}, limitNames, 0},
}

// over checks an answer to what is above a default.
func (p *probe) over(r reply, status int, code string) {
	if r.err == nil && r.status/100 == 2 {
		p.skipf("the server's limit is above the default: %s was taken", r.op)
	}
	r.refused(status, code)
}

func limitJSONBody(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	pad := map[string]any{"unknown": strings.Repeat("x", 1<<20)}
	a.onJob(l, "heartbeat?waitMs=0", map[string]any{"unknown": strings.Repeat("x", 1<<20-1024)}).must(200)
	p.over(a.onJob(l, "heartbeat?waitMs=0", pad), 413, "too_large")
	p.over(p.adminCall("POST", "jobs", merged(pad, map[string]any{"type": p.kind})), 413, "too_large")
}

func limitLogBody(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.take()
	limit := a.link.int("maxLogBody")
	p.assert(limit > 0, "maxLogBody is %d", limit)
	if limit > 64<<20 {
		p.skipf("maxLogBody is %d, which is too much to send", limit)
	}
	line := out(strings.Repeat("x", 100_000))
	n := limit/int64(len(line)) + 1
	a.ship(l, batch{count: n, body: []byte(strings.Repeat(line, int(n)))}).refused(413, "too_large")
	p.assert(a.next(l) == 0, "next is %d after a body that was too large; want 0", a.next(l))
	n = limit / int64(len(line))
	got := a.ship(l, batch{count: n, body: []byte(strings.Repeat(line, int(n)))})
	if got.status == 413 && limit > 32<<20 {
		return // within one bound and above the other
	}
	got.must(200)
}

func limitUnpacked(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.take()
	const n = 34 // of nearly a MiB each: above 32 MiB
	body := pack(p, "gzip", bytes.Repeat([]byte(out(strings.Repeat("x", 1<<20-100))), n))
	p.over(a.ship(l, batch{count: n, body: body, encoding: "gzip"}), 413, "too_large")
	p.assert(a.next(l) == 0, "next is %d after a body that was too large; want 0", a.next(l))
}

func limitRecord(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.take()
	a.ship(l, batch{count: 1, body: []byte(out(strings.Repeat("x", 1<<20-100)))}).must(200)
	body := append(lines(1, 2), out(strings.Repeat("x", 1<<20))...)
	p.over(a.ship(l, batch{first: 1, count: 3, body: body}), 413, "too_large")
	p.assert(a.next(l) == 1, "next is %d after a body with a record that was too large; want 1: a body is stored whole or not at all", a.next(l))
}

func limitPayload(p *probe) {
	fits := map[string]any{"type": p.kind, "payload": map[string]any{"x": strings.Repeat("x", 256<<10-16)}}
	p.submit(fits)
	a := p.agent()
	l := a.start()
	large := strings.Repeat("x", 256<<10)
	p.over(a.complete(l, "succeeded", 0, map[string]any{"result": large}), 400, "invalid")
	a.complete(l, "succeeded", 0, map[string]any{"result": large[:256<<10-2]}).must(200)
	r := p.adminCall("POST", "jobs", map[string]any{"type": p.kind, "payload": large})
	p.over(r, 400, "invalid")
	named(r, "payload")
}

func limitNames(p *probe) {
	long := strings.Repeat("ä", 129) // characters, not bytes
	p.submit(map[string]any{"labels": map[string]string{strings.Repeat("ä", 128): strings.Repeat("ä", 128)}})
	p.mine(p.adminCall("POST", "jobs", map[string]any{"type": strings.Repeat("ä", 128), "idempotencyKey": p.kind + strings.Repeat("k", 256-len(p.kind))}).must(201).str("id"))
	p.over(p.adminCall("POST", "jobs", map[string]any{"type": long}), 400, "invalid")
	p.over(p.adminCall("POST", "jobs", map[string]any{"type": p.kind, "labels": map[string]string{"a": long}}), 400, "invalid")
	p.over(p.adminCall("POST", "jobs", map[string]any{"type": p.kind, "labels": map[string]string{long: "a"}}), 400, "invalid")
	p.over(p.adminCall("POST", "jobs", map[string]any{"type": p.kind, "idempotencyKey": strings.Repeat("k", 257)}), 400, "invalid")
	a := p.agent(map[string]any{"types": []string{strings.Repeat("ä", 128)}, "processId": fmt.Sprintf("a.b.%0124d", 1)})
	p.over(a.sendLink("", map[string]any{"types": []string{long}}), 400, "invalid")
	p.over(a.sendLink("", map[string]any{"processId": fmt.Sprintf("%0129d", 1)}), 400, "invalid")
	named(a.sendLink("", map[string]any{"processId": "a/b"}), "processId")
	a.process = fmt.Sprintf("%0129d", 1)
	p.over(a.poll(0), 400, "invalid")
}
