package conformance

import (
	"fmt"
	"strings"
)

const saysLogs = "`follow=true` waits while the job is pending, and ends when the attempt is over and its log complete, or its length will never be known."

var readChecks = []Check{
	{"admin/logs-text", secAdmin, []string{"by default the latest attempt, from record 0, as `text` (parts joined per stream, a gap on a line of its own, no newline added after `eof`)"}, logsText, 0},
	{"admin/logs-from", secAdmin, []string{"| `GET jobs/{id}/logs?attempt=&from=&format=&follow=` |", "`ndjson` has the records with their number as `n`."}, logsFrom, 0},
	{"admin/logs-none", secAdmin, []string{"No attempt yet: `200`, empty |"}, logsNone, 0},
	{"admin/logs-follow", secAdmin, []string{saysLogs}, logsFollow, 0},
	{"admin/logs-follow-unknown", secAdmin, []string{"or its length will never be known."}, logsFollowUnknown, 0},
}

func logsText(p *probe) {
	a := p.agent()
	p.submit(map[string]any{"retryOn": []string{"failed"}})
	l := a.start()
	a.shipAll(l, 0, 1, `{"ts":1,"s":"out","m":"of the first attempt"}`).must(200)
	a.complete(l, "failed", 1).must(200)
	m := a.start()
	a.shipAll(m, 0, 6, `{"ts":1,"s":"out","m":"a ","part":true}`, `{"ts":1,"s":"out","m":"line"}`, `{"ts":1,"s":"agent","gap":3,"reason":"damaged"}`, `{"ts":1,"s":"err","m":"end","eof":true}`).must(200)
	r := p.adminCall("GET", "jobs/"+l.job+"/logs", nil)
	rows := strings.Split(string(r.body), "\n")
	p.assert(r.status == 200 && len(rows) == 3 && rows[0] == "a line" && strings.Contains(rows[1], "3") && rows[2] == "end", "the latest attempt's log reads %q", r.body)
	p.holds(l, "of the first attempt\n")
	p.adminCall("GET", fmt.Sprintf("jobs/%s/logs?attempt=%d", l.job, m.attempt+9), nil).refused(404, "not_found")
	p.adminCall("GET", "jobs/"+l.job+"/logs?format=html", nil).refused(400, "invalid")
	p.adminCall("GET", "jobs/"+p.unique("job")+"/logs", nil).refused(404, "not_found")
}

func logsFrom(p *probe) {
	a, l := p.taken()
	a.append(l, 0, 5, 5)
	a.shipAll(l, 5, 11, `{"ts":1,"s":"agent","gap":10,"reason":"spoolFull"}`, `{"ts":1,"s":"out","m":"n=15"}`).must(200)
	got := p.text(l.job, "?from=3")
	p.assert(strings.HasPrefix(got, "n=3\nn=4\n") && strings.HasSuffix(got, "\nn=15\n"), "from=3 reads %q", got)
	got = p.text(l.job, "?from=15&format=text")
	p.assert(got == "n=15\n", "from=15 reads %q; want the last line", got)
	got = p.text(l.job, "?from=16")
	p.assert(got == "", "from=16, which is next, reads %q; want nothing", got)
	for i, f := range p.records(l) {
		want := []int64{0, 1, 2, 3, 4, 5, 15}[i]
		p.assert(f.int("n") == want, "record %d of the ndjson log has n %d; want %d", i, f.int("n"), want)
	}
	p.adminCall("GET", "jobs/"+l.job+"/logs?from=-1", nil).refused(400, "invalid")
}

func logsNone(p *probe) {
	id := p.submit(nil).str("id")
	p.assert(p.text(id, "") == "" && p.text(id, "?format=ndjson") == "", "the log of a job without attempts isn't empty")
}

func logsFollow(p *probe) {
	a := p.agent()
	id := p.submit(nil).str("id")
	follow := p.later(func() reply { return p.adminCall("GET", "jobs/"+id+"/logs?follow=true", nil) })
	p.pause(p.ttl() / 10) // until it follows
	l := a.start()
	a.append(l, 0, 3, 3)
	a.complete(l, "succeeded", 6).must(200)
	p.pause(p.ttl() / 10) // over, and the log not complete: it must go on
	select {
	case r := <-follow:
		p.failf("%v: the follower's answer ended before the log was complete", r)
	default:
	}
	a.append(l, 3, 3, 6)
	r := p.within(soon, follow, "a followed log, complete by now")
	p.assert(r.status == 200 && string(r.body) == numbered(6), "%v; want six lines", r)
	// What has ended is answered at once.
	p.assert(p.text(id, "?follow=true") == numbered(6), "following a log that has ended doesn't read it")
}

func logsFollowUnknown(p *probe) {
	a := p.agent()
	p.submit(map[string]any{"maxAttempts": 1})
	l := a.start()
	a.append(l, 0, 2, 2)
	follow := p.later(func() reply { return p.adminCall("GET", "jobs/"+l.job+"/logs?follow=true", nil) })
	r := p.within(3*p.ttl()+soon, follow, "the followed log of an attempt that was lost")
	p.assert(r.status == 200 && string(r.body) == numbered(2), "%v; want two lines", r)
	state := p.attempt(l.job, l.attempt).str("state")
	p.assert(state == "lost", "the follower's answer ended while the attempt was %s", state)
}
