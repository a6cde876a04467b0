package controlplane

import (
	"crypto/ed25519"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
)

func TestFirstLinkAndItsRepeat(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.newAgent()
		ch := a.challenge()
		if ch.Nonce == "" || ch.ServerID != "srv_1" || ch.ExpiresIn != 300_000 {
			t.Errorf("challenge: %+v", ch)
		}
		token := e.token(map[string]any{"maxUses": 1})
		a.linked(a.sendLink(token, nil).want(t, 201, ""))
		l := a.link
		if !validID(l.AgentID) || l.APIKey == "" || l.KeyExpiresIn != 86_400_000 || l.LeaseTTL != 10_000 || l.Heartbeat != 3000 || l.PollWait != 30_000 ||
			l.MaxLogBody != 8<<20 || strings.Join(l.LogEncodings, " ") != "zstd gzip snappy" || l.ServerID != "srv_1" {
			t.Errorf("link: %+v", l)
		}
		// The answer was lost: the same token and key pair give the same id and a new key.
		again := into[protocol.Link](t, a.sendLink(token, map[string]any{"agentId": ""}).want(t, 201, ""))
		if again.AgentID != l.AgentID || again.APIKey == l.APIKey {
			t.Errorf("repeat: %+v; want id %s and a new key", again, l.AgentID)
		}
		// Another key pair: the token is used up.
		e.newAgent().sendLink(token, nil).want(t, 401, protocol.CodeUnauthenticated)
		// A known key pair with another valid token: the same agent.
		more := into[protocol.Link](t, a.sendLink(e.token(nil), map[string]any{"agentId": ""}).want(t, 201, ""))
		if more.AgentID != l.AgentID {
			t.Errorf("another token: id %s; want %s", more.AgentID, l.AgentID)
		}
	})
}

func TestRelinkByProof(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		old := a.key
		r := a.sendLink("", map[string]any{"start": false, "name": "renamed", "types": []string{"load"}, "labels": map[string]string{"a": "b"}, "connectors": []string{"c"}})
		a.linked(r.want(t, 200, ""))
		v := into[AgentView](t, e.admin("GET", "agents/"+a.id, nil).want(t, 200, ""))
		if v.ID != a.id || v.Name != "renamed" || v.Types[0] != "load" || v.Labels["a"] != "b" || len(v.Labels) != 1 || v.Connectors[0] != "c" || v.Version != "1.0.0" || !v.Online {
			t.Errorf("agent: %+v", v)
		}
		// The old key is good for 60 s more.
		path, headers := "/agent/v1/jobs/next?wait=0&type=x", []string{"Agentd-Poll-Id: p", "Agentd-Process-Id: " + a.process}
		pass(59 * time.Second)
		e.call("GET", path, old, nil, headers...).want(t, 204, "")
		pass(2 * time.Second)
		e.call("GET", path, old, nil, headers...).want(t, 401, protocol.CodeUnauthenticated)
		e.call("GET", path, a.key, nil, headers...).want(t, 204, "")
		// Keys end; the id stays.
		pass(25 * time.Hour)
		e.call("GET", path, a.key, nil, headers...).want(t, 401, protocol.CodeUnauthenticated)
		id := a.id
		if a.linked(a.sendLink("", map[string]any{"start": false}).want(t, 200, "")); a.id != id {
			t.Errorf("id %s after expiry; want %s", a.id, id)
		}
	})
}

func TestTakeOverOfALostState(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		old := e.agent(nil)
		token := e.token(map[string]any{"agentId": old.id})
		held := later(func() reply { return old.poll("wait=30&type=extract") })
		synctest.Wait()
		heir := e.newAgent()
		heir.process = "boot2.p1"
		heir.linked(heir.sendLink(token, nil).want(t, 201, ""))
		if heir.id != old.id {
			t.Errorf("id %s; want %s", heir.id, old.id)
		}
		(<-held).want(t, 401, protocol.CodeUnauthenticated)
		old.poll("wait=0&type=extract").want(t, 401, protocol.CodeUnauthenticated)
		old.sendLink("", nil).want(t, 409, protocol.CodeIdentityConflict)
		heir.poll("wait=0&type=extract").want(t, 204, "")
		// A token that is bound to someone else.
		e.agent(nil).sendLink(e.token(map[string]any{"agentId": old.id}), map[string]any{"agentId": ""}).want(t, 401, protocol.CodeUnauthenticated)
	})
}

// Whatever is wrong with a proof or a token, the answer is the same to the last byte.
func TestRefusedLinksAreAlike(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a, b := e.agent(nil), e.agent(nil)
		fresh := e.newAgent()
		expired := e.token(map[string]any{"ttlMs": 1000})
		pass(2 * time.Second)
		used := e.linkBodyUsed(a)
		foreign := b.challenge()
		replies := map[string]reply{
			"bad signature":       a.sendLink("", map[string]any{"signature": make([]byte, 64)}),
			"short signature":     a.sendLink("", map[string]any{"signature": []byte{1}}),
			"signed other id":     a.sendLink("", map[string]any{"signature": a.sign("n", b.id, "srv_1")}),
			"unknown nonce":       a.sendLink("", map[string]any{"nonce": "nonsense"}),
			"nonce of another":    a.sendLink("", map[string]any{"nonce": foreign.Nonce}),
			"used nonce":          e.call("POST", "/agent/v1/link", "", used),
			"unknown id":          a.sendLink("", map[string]any{"agentId": "ag_nobody"}),
			"unknown token":       fresh.sendLink(enrolPrefix+"nonsense", nil),
			"expired token":       fresh.sendLink(expired, nil),
			"API key for a token": a.sendLink(a.key, nil),
			"admin token":         fresh.sendLink(adminToken, nil),
		}
		var want string
		for name, r := range replies {
			r.want(t, 401, protocol.CodeUnauthenticated)
			if want == "" {
				want = string(r.body)
			}
			if string(r.body) != want || r.header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s: %s; want %s, with WWW-Authenticate", name, r.body, want)
			}
		}
		// A known id with another key pair is told so: its owner has to act.
		fresh.sendLink("", map[string]any{"agentId": a.id}).want(t, 409, protocol.CodeIdentityConflict)
		// Neither token nor id.
		fresh.sendLink("", nil).want(t, 400, protocol.CodeInvalid)
	})
}

// linkBodyUsed is a link's body that has been sent once.
func (e *env) linkBodyUsed(a *agent) map[string]any {
	body := a.linkBody(map[string]any{"start": false})
	e.call("POST", "/agent/v1/link", "", body).want(e.t, 200, "")
	return body
}

func TestLinkFields(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		long := strings.Repeat("x", 129)
		for field, values := range map[string][]any{
			"publicKey":  {nil, 5, "!!", []byte("short")},
			"processId":  {nil, "", "a b", strings.Repeat("p", 129), 7},
			"start":      {nil, "true", 1},
			"nonce":      {nil, 5},
			"signature":  {nil, "?"},
			"agentId":    {"no spaces", strings.Repeat("x", 65)},
			"name":       {long, 5},
			"labels":     {[]string{"a"}, map[string]any{"k": 5}, map[string]string{long: "v"}, map[string]string{"k": long}, map[string]string{"": "v"}},
			"types":      {"x", []any{5}, []string{long}, []string{""}, map[string]string{}},
			"connectors": {[]any{nil}},
			"version":    {long},
		} {
			for _, v := range values {
				body := a.linkBody(nil)
				body[field] = v
				r := e.call("POST", "/agent/v1/link", "", body).want(t, 400, protocol.CodeInvalid)
				if !strings.HasPrefix(r.problem().Detail, field) {
					t.Errorf("%s = %v: detail %q doesn't name it", field, v, r.problem().Detail)
				}
			}
		}
		// What is optional may be null, as some encoders write nothing.
		a.sendLink("", map[string]any{"labels": nil, "types": nil, "connectors": nil}).want(t, 200, "")
		for _, body := range []string{`{}`, `{"publicKey":"AAAA"}`, `{"publicKey":null}`, `nope`} {
			e.call("POST", "/agent/v1/link/challenge", "", body).want(t, 400, protocol.CodeInvalid)
		}
	})
}

// A copied state directory: the last process that linked with start gets the work, everything else goes on for both.
func TestOneIdentityInTwoProcesses(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		first := e.agent(nil)
		e.submit(nil)
		j := first.start()
		held := later(func() reply { return first.poll("wait=30&type=extract") })
		pass(2 * time.Second)
		clone := *first
		clone.process = "boot2.p1"
		clone.linked(clone.sendLink("", nil).want(t, 200, ""))
		if r := (<-held).want(t, 409, protocol.CodeIdentityConflict); r.took != 2*time.Second {
			t.Errorf("ended after %v; want at once, 2s", r.took)
		}
		first.poll("wait=30&type=extract").want(t, 409, protocol.CodeIdentityConflict)
		clone.poll("wait=0&type=extract").want(t, 204, "")
		// Its jobs end well, its logs arrive, its key stays, and it may renew it.
		first.on(j, "heartbeat", nil).want(t, 200, "")
		first.ship(j, 0, 1, outLine("x")).want(t, 200, "")
		first.linked(first.sendLink("", map[string]any{"start": false}).want(t, 200, ""))
		first.poll("wait=0&type=extract").want(t, 409, protocol.CodeIdentityConflict)
		first.complete(j, protocol.Succeeded, 1).want(t, 200, "")
		pass(61 * time.Second) // the overlap of its own old key; the clone's lives on
		clone.poll("wait=0&type=extract").want(t, 204, "")
		// A restart is simply the new current process.
		first.process = "boot.p2"
		first.linked(first.sendLink("", nil).want(t, 200, ""))
		first.poll("wait=0&type=extract").want(t, 204, "")
		clone.poll("wait=0&type=extract").want(t, 409, protocol.CodeIdentityConflict)
	})
}

func TestRevokeAndRestore(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		e.submit(nil)
		j := a.start()
		held := later(func() reply { return a.poll("wait=30&type=extract") })
		pass(time.Second)
		if v := into[AgentView](t, e.admin("POST", "agents/"+a.id+"/revoke", nil).want(t, 200, "")); !v.Revoked || v.ID != a.id {
			t.Errorf("revoke answered %+v", v)
		}
		if r := (<-held).want(t, 403, protocol.CodeRevoked); r.took != time.Second {
			t.Errorf("poll ended after %v; want 1s", r.took)
		}
		for name, r := range map[string]reply{
			"poll": a.poll("wait=0&type=extract"), "heartbeat": a.on(j, "heartbeat", nil), "complete": a.complete(j, protocol.Succeeded, 0),
			"release": a.on(j, "release", nil), "log": a.ship(j, 0, 1, outLine("x")), "re-link": a.sendLink("", nil),
			"next": e.call("GET", logPath(j, "/next"), a.key, nil, "Agentd-Lease-Token: "+j.LeaseToken), "link with a token": a.sendLink(e.token(nil), map[string]any{"agentId": ""}),
		} {
			t.Log(name)
			r.want(t, 403, protocol.CodeRevoked)
		}
		if v := into[AgentView](t, e.admin("POST", "agents/"+a.id+"/restore", nil).want(t, 200, "")); v.Revoked {
			t.Errorf("restore answered %+v", v)
		}
		a.on(j, "heartbeat", nil).want(t, 200, "") // its lease hasn't run out meanwhile
		a.ship(j, 0, 1, outLine("x")).want(t, 200, "")
		a.complete(j, protocol.Succeeded, 1).want(t, 200, "")
	})
}

func TestExpireKey(t *testing.T) {
	bubble(t, func(t *testing.T, e *env) {
		a := e.agent(nil)
		held := later(func() reply { return a.poll("wait=30&type=extract") })
		pass(time.Second)
		e.admin("POST", "agents/"+a.id+"/expire-key", nil).want(t, 200, "")
		(<-held).want(t, 401, protocol.CodeUnauthenticated)
		a.poll("wait=0&type=extract").want(t, 401, protocol.CodeUnauthenticated)
		a.linked(a.sendLink("", map[string]any{"start": false}).want(t, 200, ""))
		a.poll("wait=0&type=extract").want(t, 204, "")
	})
}

// The message that is signed, byte by byte, as the protocol spells it.
func TestLinkMessage(t *testing.T) {
	want := "\x00\x00\x00\x0eagentd-link-v1" + "\x00\x00\x00\x02nn" + "\x00\x00\x00\x00" + "\x00\x00\x00\x05srv_1"
	if got := string(linkMessage("nn", "", "srv_1")); got != want {
		t.Errorf("%q; want %q", got, want)
	}
	if len(apiKeyPrefix+"")+43 != len(newSecret(apiKeyPrefix)) || ed25519.PublicKeySize != 32 {
		t.Error("secrets must carry 256 bits")
	}
}

func TestLinksAndFailuresAreLimitedByAddress(t *testing.T) {
	slow := func(c *Config) {
		c.Rates.Link, c.Rates.LinkBurst, c.Rates.Failure, c.Rates.FailureBurst = 1, 5, 1, 3
		c.Rates.Credential, c.Rates.CredentialBurst = 10, 20
	}
	bubbleWith(t, slow, func(t *testing.T, e *env) {
		a := e.agent(nil)
		poll := func(key string) reply {
			return e.call("GET", "/agent/v1/jobs/next?wait=0&type=x", key, nil, "Agentd-Poll-Id: p", "Agentd-Process-Id: "+a.process)
		}
		for range 3 {
			poll(apiKeyPrefix+"wrong").want(t, 401, protocol.CodeUnauthenticated)
		}
		r := poll(apiKeyPrefix+"wrong").want(t, 429, protocol.CodeThrottled)
		if r.header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After %q; want 1", r.header.Get("Retry-After"))
		}
		// Who has a right key at that address notices nothing.
		poll(a.key).want(t, 204, "")
		pass(1100 * time.Millisecond)
		poll(apiKeyPrefix+"wrong").want(t, 401, protocol.CodeUnauthenticated)
		limited := 0
		for range 10 {
			if e.call("POST", "/agent/v1/link/challenge", "", map[string]any{"publicKey": a.pub}).status == http.StatusTooManyRequests {
				limited++
			}
		}
		if limited != 6 { // 5, less the agent's challenge and link, plus the second that has passed
			t.Errorf("%d of 10 challenges were limited; want 6", limited)
		}
		limited = 0
		for range 40 {
			if poll(a.key).status == http.StatusTooManyRequests {
				limited++
			}
		}
		if limited != 20 {
			t.Errorf("%d of 40 calls of one key were limited; want 20", limited)
		}
	})
}
