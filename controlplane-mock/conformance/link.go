package conformance

import (
	"bytes"
	"slices"
	"strings"
	"time"
)

const (
	secIdentity  = "Identity"
	secChallenge = "`POST /agent/v1/link/challenge`"
	secLink      = "`POST /agent/v1/link`"
	secClones    = "Cloned identities"
	secRevoked   = "Revocation"
)

var linkChecks = []Check{
	{"identity/challenge", secChallenge, []string{"No credential. `{\"publicKey\":\"…\",\"agentId\":\"\"}` → `200 {\"nonce\",\"serverId\",\"expiresInMs\"}`"}, challenges, 0},
	{"identity/nonce-once", secChallenge, []string{"The nonce is good for one link, with that public key"}, nonceOnce, 0},
	{"identity/nonce-anywhere", secChallenge, []string{"on every instance. `serverId` names the control plane, not the instance."}, nonceAnywhere, peers},
	{"identity/link-answer", secLink, []string{"Answer, `201` for a first link and `200` for a re-link"}, linkAnswer, 0},
	{"identity/first-link", secLink, []string{"| a valid token, no `agentId`, a new public key | `201`, a new agent; the token is used |"}, firstLink, 0},
	{"identity/link-repeated", secLink, []string{"| the same token and public key once more (the answer was lost) | `201`, the same agent, a new key; the token isn't used again |"}, linkRepeated, 0},
	{"identity/another-token", secLink, []string{"| another valid token with a known public key | `201`, the same agent; the token is used |"}, anotherToken, 0},
	{"identity/take-over", secLink, []string{"that agent: the new public key takes it over, and the old key pair and API keys end at once |"}, takeOver, 0},
	{"identity/bound-to-another", secLink, []string{"| a token bound to another agent's id | `401` |"}, boundToAnother, 0},
	{"identity/re-link", secLink, []string{"| no token, its `agentId`, proof by its key | `200`, the same agent, a new key; name, labels, types and connectors are replaced |"}, reLink, 0},
	{"identity/another-key", secLink, []string{"| a known `agentId`, another public key | `409 identity_conflict` |"}, anotherKey, 0},
	{"identity/refusals-alike", secLink, []string{"| a bad signature; a nonce that is unknown, used or expired; an unknown id; a bad token | `401`, all alike |"}, refusalsAlike, 0},
	{"identity/signature", secLink, []string{"Ed25519 over four texts, `agentd-link-v1`, `nonce`, `agentId`, `serverId`, in this order, each as UTF-8 as it stands in the JSON and preceded by its length in bytes as a 4-byte big-endian integer."}, signatures, 0},
	{"identity/neither", secLink, []string{"| neither token nor `agentId` | `400` |"}, neither, 0},
	{"identity/start-required", secLink, []string{"`processId` (required): one per process of the agent, at most 128 characters.", "`start` (required): true on the process's first link, false on its later ones."}, startRequired, 0},
	{"identity/old-key-overlaps", secLink, []string{"After a re-link the same process's old API key is good for 60 s more, so that calls in flight succeed."}, oldKeyOverlaps, 0},
	{"identity/old-key-ends", secLink, []string{"After a re-link the same process's old API key is good for 60 s more, so that calls in flight succeed."}, oldKeyEnds, minute},
}

func challenges(p *probe) {
	a := p.stranger()
	f := p.agentCall("POST", "link/challenge", "", map[string]any{"publicKey": []byte(a.pub()), "agentId": ""}).must(200)
	p.assert(f.str("nonce") != "" && f.str("serverId") != "" && f.int("expiresInMs") > 0, "nonce, serverId and expiresInMs are wanted: %s", f.raw)
	again, server := a.challenge()
	p.assert(again != f.str("nonce"), "two challenges have the same nonce")
	p.assert(server == f.str("serverId"), "serverId is %q and then %q", f.str("serverId"), server)
	a.linkedWith(p.token(nil))
	p.assert(a.link.str("serverId") == server, "serverId is %q in the challenge and %q in the link", server, a.link.str("serverId"))
}

func nonceOnce(p *probe) {
	a := p.agent()
	body := a.linkBody(nil)
	p.agentCall("POST", "link", "", body).must(200)
	p.agentCall("POST", "link", "", body).refused(401, "unauthenticated")
	// A nonce of another key.
	b := p.stranger()
	nonce, _ := b.challenge()
	a.sendLink("", map[string]any{"nonce": nonce}).refused(401, "unauthenticated")
	a.relink(nil)
}

func nonceAnywhere(p *probe) {
	a := p.stranger()
	token := p.token(map[string]any{"maxUses": 1 + len(p.s.t.Peers)})
	for _, peer := range p.s.t.Peers {
		f := p.patient(p.ctx, peer, "POST", "/agent/v1/link", token, a.linkBody(nil)).must(201)
		_, server := a.challenge()
		p.assert(f.str("serverId") == server, "serverId is %q at one instance and %q at another", server, f.str("serverId"))
		a.linked(p.patient(p.ctx, p.s.t.URL, "POST", "/agent/v1/link", token, a.linkBody(nil)), 201)
	}
}

func linkAnswer(p *probe) {
	a := p.agent()
	f := a.link
	p.assert(f.str("apiKey") != "", "apiKey is empty")
	ttl, beat := f.int("leaseTtlMs"), f.int("heartbeatMs")
	p.assert(beat > 0 && beat < ttl, "heartbeatMs is %d with a leaseTtlMs of %d: no lease would live", beat, ttl)
	p.assert(f.int("apiKeyExpiresInMs") > 0 && f.int("pollWaitMs") >= 0 && f.int("maxLogBody") > 0, "a number is out of range: %s", f.raw)
	for _, must := range []string{"zstd", "gzip"} {
		p.assert(slices.Contains(f.strs("logEncodings"), must), "logEncodings are %v: every server takes %s", f.strs("logEncodings"), must)
	}
	p.assert(f.str("serverId") != "", "serverId is empty")
	a.relink(nil)
	p.assert(a.link.int("leaseTtlMs") == ttl, "leaseTtlMs is %d after a re-link", a.link.int("leaseTtlMs"))
}

func firstLink(p *probe) {
	token := p.token(nil)
	a, b := p.stranger(), p.stranger()
	a.linkedWith(token)
	a.poll(0).must(204)
	b.sendLink(token, nil).refused(401, "unauthenticated")
	b.linkedWith(p.token(nil))
	p.assert(a.id != b.id, "two agents have the id %s", a.id)
}

func linkRepeated(p *probe) {
	token := p.token(map[string]any{"maxUses": 2})
	a, b, c := p.stranger(), p.stranger(), p.stranger()
	a.linkedWith(token)
	id, key := a.id, a.apiKey
	for range 2 {
		a.id = ""
		a.linkedWith(token)
		p.assert(a.id == id, "the repeated link made agent %s of %s", a.id, id)
		p.assert(a.apiKey != key, "the repeated link gave the same API key")
		a.poll(0).must(204)
	}
	b.linkedWith(token)
	c.sendLink(token, nil).refused(401, "unauthenticated")
	// Also once the token is used up.
	a.id = ""
	a.linkedWith(token)
	p.assert(a.id == id, "the repeated link made agent %s of %s", a.id, id)
}

func anotherToken(p *probe) {
	a := p.agent()
	id := a.id
	token := p.token(nil)
	a.id = ""
	a.linkedWith(token)
	p.assert(a.id == id, "a known public key became agent %s with another token; want %s", a.id, id)
	p.stranger().sendLink(token, nil).refused(401, "unauthenticated")
}

func takeOver(p *probe) {
	a := p.agent()
	b := p.stranger()
	b.linkedWith(p.token(map[string]any{"agentId": a.id}))
	p.assert(b.id == a.id, "the token is bound to %s and gave %s", a.id, b.id)
	p.unauthenticated("the API key of the old key pair", a.poll(0))
	a.sendLink("", nil).refused(409, "identity_conflict")
	b.poll(0).must(204)
	b.relink(nil)
}

func boundToAnother(p *probe) {
	a, b := p.agent(), p.agent()
	token := p.token(map[string]any{"agentId": a.id})
	b.sendLink(token, nil).refused(401, "unauthenticated")
	b.sendLink(token, map[string]any{"agentId": ""}).refused(401, "unauthenticated")
	b.poll(0).must(204)
	a.poll(0).must(204)
}

func reLink(p *probe) {
	a := p.agent(map[string]any{"name": "before", "labels": map[string]string{"region": "eu-1"}})
	id, key := a.id, a.apiKey
	connectors, types := []string{p.unique("c")}, []string{p.unique("t"), p.kind}
	a.relink(map[string]any{"name": "after", "labels": map[string]string{"zone": "b"}, "types": types, "connectors": connectors, "start": false})
	p.assert(a.id == id, "agent %s became %s by a re-link", id, a.id)
	p.assert(a.apiKey != key, "the re-link gave the old API key")
	a.poll(0).must(204)
	f := p.adminCall("GET", "agents/"+id, nil).must(200)
	f.json("labels", `{"zone":"b"}`)
	got := f.strs("types")
	slices.Sort(got)
	slices.Sort(types)
	p.assert(f.str("name") == "after" && slices.Equal(got, types) && slices.Equal(f.strs("connectors"), connectors),
		"after a re-link the agent is %s", f.raw)
}

func anotherKey(p *probe) {
	a, b := p.agent(), p.stranger()
	b.id = a.id
	b.sendLink("", nil).refused(409, "identity_conflict")
	a.poll(0).must(204)
}

func refusalsAlike(p *probe) {
	a := p.agent()
	_, server := a.challenge()
	expired := p.token(map[string]any{"ttlMs": 1})
	used := p.token(nil)
	p.stranger().linkedWith(used)
	bad := slices.Clone(a.sign("agentd-link-v1", "x", a.id, server))
	body := a.linkBody(nil)
	p.agentCall("POST", "link", "", body).must(200)
	p.pause(20 * time.Millisecond) // for the token that lives 1 ms
	unknown := p.stranger()
	unknown.id = p.unique("nobody")
	answers := map[string]reply{
		"a bad signature":   a.sendLink("", map[string]any{"signature": bad}),
		"an unknown nonce":  a.sendLink("", map[string]any{"nonce": p.unique("nonce")}),
		"a used nonce":      p.agentCall("POST", "link", "", body),
		"an unknown id":     unknown.sendLink("", nil),
		"an expired token":  p.stranger().sendLink(expired, nil),
		"a used token":      p.stranger().sendLink(used, nil),
		"an unknown token":  p.stranger().sendLink(used[:len(used)-4]+"AAAA", nil),
		"a malformed token": p.stranger().sendLink("x", nil),
	}
	want := answers["a bad signature"]
	for what, r := range answers {
		p.unauthenticated(what, r)
		p.assert(bytes.Equal(r.body, want.body), "%s answers %s, and a bad signature %s: they are to be all alike", what, r.body, want.body)
	}
}

func signatures(p *probe) {
	a := p.agent()
	for what, parts := range map[string]func(nonce, server string) []string{
		"another purpose":  func(n, s string) []string { return []string{"agentd-link-v2", n, a.id, s} },
		"no purpose":       func(n, s string) []string { return []string{n, a.id, s} },
		"another order":    func(n, s string) []string { return []string{"agentd-link-v1", a.id, n, s} },
		"no agent id":      func(n, s string) []string { return []string{"agentd-link-v1", n, "", s} },
		"another server":   func(n, s string) []string { return []string{"agentd-link-v1", n, a.id, s + "x"} },
		"one text of four": func(n, s string) []string { return []string{strings.Join([]string{"agentd-link-v1", n, a.id, s}, "")} },
	} {
		nonce, server := a.challenge()
		r := a.sendLink("", map[string]any{"nonce": nonce, "signature": a.sign(parts(nonce, server)...)})
		p.unauthenticated("a signature over "+what, r)
	}
	nonce, server := a.challenge()
	a.linked(a.sendLink("", map[string]any{"nonce": nonce, "signature": a.sign("agentd-link-v1", nonce, a.id, server)}), 200)
}

func neither(p *probe) {
	p.stranger().sendLink("", nil).refused(400, "invalid")
}

func startRequired(p *probe) {
	a := p.agent()
	named(a.sendLink("", map[string]any{"start": nil}), "start")
	named(a.sendLink("", map[string]any{"processId": nil}), "processId")
	named(a.sendLink("", map[string]any{"processId": ""}), "processId")
}

func oldKeyOverlaps(p *probe) {
	a := p.agent()
	old := *a
	a.relink(map[string]any{"start": false})
	p.assert(a.apiKey != old.apiKey, "the re-link gave the old API key")
	old.poll(0).must(204)
	a.poll(0).must(204)
}

func oldKeyEnds(p *probe) {
	a := p.agent()
	old := *a
	a.relink(map[string]any{"start": false})
	p.pause(55 * time.Second)
	old.poll(0).must(204)
	p.until(20*time.Second, "the old API key ends, 60 s after the re-link", func() bool { return old.poll(0).status == 401 })
	a.poll(0).must(204)
}

var cloneChecks = []Check{
	{"identity/clone-ends-poll", secClones, []string{"A link with `start` makes its process the agent's *current* one, and ends a poll that another one has held."}, cloneEndsPoll, 0},
	{"identity/clone-refused", secClones, []string{"Polls and query activations (header `Agentd-Process-Id`) of any other process are `409 identity_conflict`"}, cloneRefused, 0},
	{"identity/clone-served", secClones, []string{"everything else of it is served, links with `start: false` included, so that its running jobs end well and its logs arrive."}, cloneServed, 0},
	{"identity/keys-of-processes", secClones, []string{"API keys belong to a process: a link of one ends no key of another."}, keysOfProcesses, 0},
	{"identity/restart-is-current", secClones, []string{"A restart is simply the new current process."}, restartIsCurrent, 0},
}

func cloneEndsPoll(p *probe) {
	a := p.agent()
	held := p.later(func() reply { return a.poll(45) })
	b := a.twin()
	p.pause(300 * time.Millisecond) // until the poll is held
	b.relink(map[string]any{"processId": b.process})
	p.within(soon, held, "the poll that the former process has held").refused(409, "identity_conflict")
}

func cloneRefused(p *probe) {
	a := p.agent()
	b := a.twin()
	b.relink(nil)
	p.submit(nil)
	a.poll(0).refused(409, "identity_conflict")
	a.activate(p.kind, 0, p.kind).refused(409, "identity_conflict")
	b.activate(p.kind, 0, p.kind).must(200)
	leased(b.poll(5).must(200))
}

func cloneServed(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	b := a.twin()
	b.relink(nil)
	a.beat(l, 0).must(200)
	a.ship(l, batch{count: 2, body: lines(0, 2)}).must(200)
	a.relink(map[string]any{"start": false})
	a.poll(0).refused(409, "identity_conflict")
	b.poll(0).must(204)
	a.beat(l, 0).must(200)
	p.assert(a.next(l) == 2, "next is %d; want 2", a.next(l))
	a.complete(l, "succeeded", 2).must(200)
	p.isStatus(l.job, "succeeded", soon)
}

func keysOfProcesses(p *probe) {
	a := p.agent()
	b := a.twin()
	b.relink(nil)
	p.submit(nil)
	l := leased(b.poll(5).must(200))
	b.beat(l, 0).must(200)
	a.relink(map[string]any{"start": false})
	b.beat(l, 0).must(200)
	// b's re-links end no key of a's.
	for range 3 {
		b.relink(map[string]any{"start": false})
	}
	p.agentCall("POST", "jobs/unknown/heartbeat", a.apiKey, map[string]any{"attempt": 1, "leaseToken": "x"}).refused(404, "not_found")
}

func restartIsCurrent(p *probe) {
	a := p.agent()
	for range 3 {
		b := a.twin()
		b.relink(nil)
		b.poll(0).must(204)
		a = b
	}
}

var revocationChecks = []Check{
	{"identity/revoked", secRevoked, []string{"Every call of a revoked agent, link and logs included, is `403 revoked`"}, revokedCalls, 0},
	{"identity/revoked-poll-ends", secRevoked, []string{"held polls end with it"}, revokedPollEnds, 0},
	{"identity/revoked-jobs-go-on", secRevoked, []string{"running jobs go on until their lease runs out."}, revokedJobsGoOn, 0},
	{"identity/restored", secRevoked, []string{"Restoring undoes it."}, restored, 0},
}

func (p *probe) revoke(a *agent)  { p.adminCall("POST", "agents/"+a.id+"/revoke", nil).must(200) }
func (p *probe) restore(a *agent) { p.adminCall("POST", "agents/"+a.id+"/restore", nil).must(200) }

func revokedCalls(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	token := p.token(nil)
	p.revoke(a)
	for what, r := range map[string]reply{
		"a poll": a.poll(0), "a heartbeat": a.beat(l, 0), "a completion": a.complete(l, "succeeded", 0), "a release": a.release(l),
		"a log": a.ship(l, batch{count: 1, body: lines(0, 1)}), "next": p.agentCall("GET", l.logs()+"/next", a.apiKey, nil, "Agentd-Lease-Token: "+l.token),
		"an activation": a.activate(p.kind, 0, p.kind), "an answer": a.answer("x", "y", map[string]any{"page": emptyPage()}),
		"a re-link": a.sendLink("", nil), "a link with a token": a.sendLink(token, map[string]any{"agentId": ""}),
	} {
		p.assert(r.status == 403 && r.code() == "revoked", "%s: %v; want 403 revoked", what, r)
	}
}

func revokedPollEnds(p *probe) {
	a := p.agent()
	held := p.later(func() reply { return a.poll(45) })
	p.pause(300 * time.Millisecond) // until the poll is held
	p.revoke(a)
	p.within(soon, held, "the poll of an agent that was revoked").refused(403, "revoked")
}

func revokedJobsGoOn(p *probe) {
	a := p.agent()
	id := p.submit(map[string]any{"maxAttempts": 1}).str("id")
	l := a.start()
	p.revoke(a)
	got := p.attempt(id, l.attempt).str("state")
	p.assert(got == "running", "the attempt is %s at once; want running until its lease has run out", got)
	p.isState(l, "lost", 3*p.ttl()+soon)
}

func restored(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	p.revoke(a)
	a.beat(l, 0).refused(403, "revoked")
	p.restore(a)
	a.poll(0).must(204)
	a.ship(l, batch{count: 1, body: lines(0, 1)}).must(200)
	a.relink(nil)
}
