package conformance

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
)

const secGround = "Ground rules"

var groundChecks = []Check{
	{"ground/unknown-members", secGround, []string{"Both sides ignore members they don't know."}, unknownMembers, 0},
	{"ground/exact-names", secGround, []string{"Member names are camelCase and matched exactly (`Next` is not `next`)."}, exactNames, 0},
	{"ground/invalid-names-member", secGround, []string{"A required member that is missing, a wrong type, a number out of range: `400 invalid`, with the member named in `detail`."}, invalidMembers, 0},
	{"ground/utf8", secGround, []string{"**Bodies** are JSON objects in UTF-8, but for log bodies."}, bodiesAreObjects, 0},
	{"ground/ids", secGround, []string{"Ids are opaque: 1 to 64 characters from `A-Z a-z 0-9 _ -`."}, idShapes, 0},
	{"ground/base64", secGround, []string{"Bytes are padded standard base64."}, paddedBase64, 0},
	{"ground/stamps", secGround, []string{"RFC 3339 in resources, whole microseconds since the epoch in log records"}, stamps, 0},
	{"ground/wrong-credential", secGround, []string{
		"A credential of the wrong kind, like none at all, is `401 unauthenticated` with `WWW-Authenticate`",
		"| `/agent/v1/link/challenge` | none |", "| `/agent/v1/link` | an enrolment token, or none for a re-link |",
		"| `/agent/v1/…` | an API key |", "| `/api/v1/…`, `/mock/v1/…` | an admin token |",
	}, wrongCredentials, 0},
	{"ground/credential-before-body", secGround, []string{"that is decided before the body is read."}, credentialBeforeBody, 0},
	{"ground/bodies-of-successes", secGround, []string{"A `200`, `201` or `202` always has a JSON body, at least `{}`; an answer without a body is a `204`."},
		func(p *probe) { p.s.verdict(p, ruleJSONBody) }, last},
}

func unknownMembers(p *probe) {
	more := map[string]any{"somethingNew": map[string]any{"a": []int{1}}}
	a := p.stranger()
	p.agentCall("POST", "link/challenge", "", merged(more, map[string]any{"publicKey": []byte(a.pub()), "agentId": ""})).must(200)
	a.linked(a.sendLink(p.token(more), more), 201)
	p.submit(more)
	l := a.take()
	a.onJob(l, "heartbeat?waitMs=0", more).must(200)
	a.ship(l, batch{count: 1, body: []byte(`{"ts":1,"s":"out","m":"x","somethingNew":1}` + "\n")}).must(200)
	a.complete(l, "succeeded", 1, more).must(200)
}

func exactNames(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.take()
	for _, name := range []string{"LeaseToken", "leasetoken", "LEASETOKEN"} {
		a.onJob(l, "heartbeat?waitMs=0", map[string]any{"leaseToken": nil, name: l.token}).refused(400, "invalid")
	}
	a.onJob(l, "complete", map[string]any{"outcome": "succeeded", "LogRecords": 0}).refused(400, "invalid")
	a.beat(l, 0).must(200)
}

// named checks that an invalid answer names the member.
func named(r reply, member string) {
	r.refused(400, "invalid")
	r.p.assert(strings.Contains(r.fields().str("detail"), member), "%v: the detail doesn't name %q", r, member)
}

func invalidMembers(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	defer a.kept(l)()
	named(p.agentCall("POST", "link/challenge", "", map[string]any{"agentId": ""}), "publicKey")
	named(p.agentCall("POST", "link/challenge", "", map[string]any{"publicKey": 5}), "publicKey")
	for _, name := range []string{"publicKey", "processId", "start", "nonce", "signature"} {
		named(a.sendLink("", map[string]any{name: nil}), name)
	}
	named(a.sendLink("", map[string]any{"start": "yes"}), "start")
	named(a.sendLink("", map[string]any{"types": "extract"}), "types")
	for _, call := range []string{"heartbeat?waitMs=0", "complete", "release"} {
		full := map[string]any{"outcome": "succeeded", "logRecords": 0}
		named(a.onJob(l, call, merged(full, map[string]any{"attempt": nil})), "attempt")
		named(a.onJob(l, call, merged(full, map[string]any{"attempt": "1"})), "attempt")
		named(a.onJob(l, call, merged(full, map[string]any{"attempt": 1.5})), "attempt")
		named(a.onJob(l, call, merged(full, map[string]any{"leaseToken": nil})), "leaseToken")
		named(a.onJob(l, call, merged(full, map[string]any{"leaseToken": 7})), "leaseToken")
	}
	named(a.onJob(l, "heartbeat?waitMs=0", map[string]any{"spooledBytes": -1}), "spooledBytes")
	named(a.onJob(l, "complete", map[string]any{"logRecords": 0}), "outcome")
	named(a.onJob(l, "complete", map[string]any{"outcome": "succeeded"}), "logRecords")
	named(a.complete(l, "finished", 0), "outcome")
	named(a.complete(l, "succeeded", -1), "logRecords")
	named(a.complete(l, "succeeded", 0, map[string]any{"startedAt": "yesterday"}), "startedAt")
	named(p.adminCall("POST", "jobs", map[string]any{}), "type")
	named(p.adminCall("POST", "jobs", map[string]any{"type": p.kind, "maxAttempts": 0}), "maxAttempts")
	named(p.adminCall("POST", "jobs", map[string]any{"type": p.kind, "timeoutMs": -1}), "timeoutMs")
	named(p.adminCall("POST", "jobs", map[string]any{"type": p.kind, "exclusive": "no"}), "exclusive")
	named(p.adminCall("POST", "jobs", map[string]any{"type": p.kind, "retryOn": []string{"succeeded"}}), "retryOn")
	for _, wait := range []string{"waitMs=-1", "waitMs=x", "waitMs=1.5"} {
		a.onJob(l, "heartbeat?"+wait, nil).refused(400, "invalid")
	}
	// Nothing of all that has settled the attempt.
	a.beat(l, 0).must(200)
}

func bodiesAreObjects(p *probe) {
	for _, body := range []string{"", "[]", "null", `"x"`, "5", "{", `{"publicKey":`, "{} {}", "{\"agentId\":\"\xff\xfe\"}"} {
		r := p.agentCall("POST", "link/challenge", "", []byte(body), "Content-Type: application/json")
		p.assert(r.status == 400 && r.code() == "invalid", "the body %q: %v; want 400 invalid", body, r)
	}
}

// isID says whether s may be an id.
func isID(s string) bool {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
	return s != "" && len(s) <= 64 && strings.Trim(s, alphabet) == ""
}

func idShapes(p *probe) {
	a := p.agent()
	p.assert(isID(a.id), "agentId is %q", a.id)
	id := p.submit(nil).str("id")
	p.assert(isID(id), "a job's id is %q", id)
	for _, bad := range []string{strings.Repeat("x", 65), "a.b", "a%20b", "ä"} {
		a.pollID(bad, 0).refused(400, "invalid")
	}
	leased(a.pollID(strings.Repeat("x", 52)+p.kind[len(p.kind)-12:], 5).must(200))
	named(p.adminCall("POST", "jobs", map[string]any{"type": p.kind, "agentId": strings.Repeat("x", 65)}), "agentId")
}

func paddedBase64(p *probe) {
	key := []byte(p.stranger().pub())
	ask := func(text string) reply {
		return p.agentCall("POST", "link/challenge", "", map[string]any{"publicKey": text})
	}
	ask(base64.StdEncoding.EncodeToString(key)).must(200)
	named(ask(base64.RawStdEncoding.EncodeToString(key)), "publicKey")
	// A key whose text differs between the two alphabets.
	odd := append([]byte{0xfb, 0xff, 0xbf}, key[3:]...)
	named(ask(base64.URLEncoding.EncodeToString(odd)), "publicKey")
}

func stamps(p *probe) {
	a := p.agent()
	job := p.submit(nil)
	p.assert(!job.time("createdAt").IsZero(), "createdAt is not set")
	l := a.start()
	p.assert(l.time("createdAt").Equal(job.time("createdAt")), "createdAt is %s for the agent and %s for people", l.str("createdAt"), job.str("createdAt"))
	started, finished := "2026-01-02T03:04:05Z", "2026-01-02T04:05:06.5Z"
	a.complete(l, "succeeded", 1, map[string]any{"startedAt": started, "finishedAt": finished}).must(200)
	t := p.attempt(l.job, l.attempt)
	for name, want := range map[string]string{"startedAt": started, "finishedAt": finished} {
		got := t.time(name)
		p.assert(got.Equal(fields{p: p, raw: map[string]jsonRaw{name: jsonRaw(fmt.Sprintf("%q", want))}}.time(name)), "%s was reported as %s and reads %s", name, want, t.str(name))
	}
	a.ship(l, batch{count: 1, body: []byte("{\"ts\":1732888888123456,\"s\":\"out\",\"m\":\"x\"}\n")}).must(200)
	got := p.text(l.job, "?format=ndjson")
	p.assert(strings.Contains(got, `"ts":1732888888123456`), "ts 1732888888123456 reads back as %s", got)
	seen := p.adminCall("GET", "agents/"+a.id, nil).must(200)
	p.assert(!seen.time("lastSeenAt").IsZero(), "lastSeenAt is not set")
}

func wrongCredentials(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.take()
	unused := p.token(nil)
	admin := p.s.t.AdminToken
	agents := []string{
		"GET jobs/next?wait=0&type=" + p.kind, "POST jobs/" + l.job + "/heartbeat", "POST jobs/" + l.job + "/complete", "POST jobs/" + l.job + "/release",
		"POST " + l.logs() + "?first=0&count=0", "GET " + l.logs() + "/next", "POST queries/activate", "POST queries/x/answer",
	}
	for _, route := range agents {
		method, path, _ := strings.Cut(route, " ")
		for kind, credential := range map[string]string{"none": "", "an admin token": admin, "an enrolment token": unused, "rubbish": "rubbish"} {
			p.unauthenticated(kind+" on "+route, p.agentCall(method, path, credential, []byte("{}"), "Content-Type: application/json"))
		}
	}
	for kind, credential := range map[string]string{"an API key": a.apiKey, "an admin token": admin, "rubbish": "rubbish"} {
		p.unauthenticated(kind+" on link", a.sendLink(credential, nil))
	}
	for _, route := range []string{"GET jobs", "POST jobs", "GET jobs/" + l.job, "POST jobs/" + l.job + "/cancel", "GET agents", "POST agents/" + a.id + "/revoke", "POST enrolment-tokens", "POST queries"} {
		method, path, _ := strings.Cut(route, " ")
		for kind, credential := range map[string]string{"none": "", "an API key": a.apiKey, "an enrolment token": unused, "rubbish": "rubbish"} {
			p.unauthenticated(kind+" on "+route, p.patient(p.ctx, p.s.t.AdminURL, method, "/api/v1/"+path, credential, []byte("{}"), "Content-Type: application/json"))
		}
	}
	// Nothing was done on the way.
	a.beat(l, 0).must(200)
	p.stranger().linkedWith(unused)
}

// linkedWith links with a token that must be good.
func (a *agent) linkedWith(token string) { a.linked(a.sendLink(token, nil), 201) }

func (p *probe) unauthenticated(what string, r reply) {
	p.assert(r.err == nil && r.status == 401 && r.code() == "unauthenticated", "%s: %v; want 401 unauthenticated", what, r)
	p.assert(r.header.Get("WWW-Authenticate") != "", "%s: the 401 has no WWW-Authenticate", what)
}

// silent is a body that never comes.
type silent struct{ done <-chan struct{} }

func (s silent) Read([]byte) (int, error) {
	<-s.done
	return 0, io.ErrUnexpectedEOF
}

func credentialBeforeBody(p *probe) {
	for _, path := range []string{"link", "jobs/x/complete", "jobs/x/attempts/1/logs?first=0&count=1"} {
		ch := p.later(func() reply {
			// Larger than what servers swallow to keep a connection.
			return p.send(p.ctx, p.s.t.URL, http.MethodPost, "/agent/v1/"+path, "rubbish", silent{p.ctx.Done()}, "Content-Length: 1000000", "Content-Type: application/json")
		})
		p.unauthenticated("POST "+path+" with rubbish and no body yet", p.within(soon, ch, "POST "+path+" whose body never comes"))
	}
}
