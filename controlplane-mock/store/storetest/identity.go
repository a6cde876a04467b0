package storetest

import (
	"fmt"
	"strconv"
	"time"

	"agentd/controlplane-mock/store"
)

const overlap = time.Minute

// token mints an enrolment token.
func (e *env) token(name string, uses int, agentID string) store.Sum {
	e.Helper()
	e.ok(e.PutToken(e.ctx, store.Token{Sum: sum(name), TTL: time.Hour, MaxUses: uses, AgentID: agentID}))
	return sum(name)
}

// link is a link of a process with a key pair. Its API key is "key <n>", n counting up.
type link struct {
	token         string
	agentID       string
	pair, process string
	notStart      bool
	wantErr       error
	wantID        string
	wantFirst     bool
}

func (e *env) link(l link) string {
	e.Helper()
	e.jobs++
	key := "key " + strconv.Itoa(e.jobs)
	p := store.LinkParams{
		AgentID: l.agentID, NewAgentID: "agent_" + strconv.Itoa(e.jobs), PublicKey: []byte(l.pair), ProcessID: l.process, Start: !l.notStart,
		Info: store.AgentInfo{Name: "name " + strconv.Itoa(e.jobs), Labels: map[string]string{"l": l.process}, Types: []string{"x"}},
		Key:  sum(key), KeyTTL: 24 * time.Hour, KeyOverlap: overlap,
	}
	if l.token != "" {
		p.Token = new(sum(l.token))
	}
	got, err := e.Link(e.ctx, p)
	if l.wantErr != nil {
		e.wantErr(err, l.wantErr)
		return key
	}
	e.ok(err)
	equal(e, "first", got.First, l.wantFirst)
	if l.wantID == "new" {
		equal(e, "id", got.Agent.ID, p.NewAgentID)
	} else {
		equal(e, "id", got.Agent.ID, l.wantID)
	}
	equal(e, "name", got.Agent.Name, p.Info.Name)
	e.holds(key, got.Agent.ID)
	return key
}

// holds checks that the key is that agent's.
func (e *env) holds(key, agentID string) {
	e.Helper()
	a, err := e.Authenticate(e.ctx, sum(key))
	e.ok(err)
	equal(e, "agent of "+key, a.Agent.ID, agentID)
}

func (e *env) holdsNot(key string) {
	e.Helper()
	_, err := e.Authenticate(e.ctx, sum(key))
	e.wantErr(err, store.ErrNotFound)
}

// first links the key pair as a new agent and answers its id and API key.
func (e *env) first(pair, process string) (id, key string) {
	e.Helper()
	name := "token of " + pair
	e.token(name, 1, "")
	key = e.link(link{token: name, pair: pair, process: process, wantID: "new", wantFirst: true})
	return "agent_" + strconv.Itoa(e.jobs), key
}

var linkRules = []rule{
	{"a nonce is good once, in its time, for its public key, also after a restart", func(e *env) {
		take := func(name, pair string, want bool) {
			e.Helper()
			got, err := e.TakeNonce(e.ctx, sum(name), []byte(pair))
			e.ok(err)
			equal(e, name+" for "+pair, got, want)
		}
		for _, name := range []string{"n1", "n2", "n3"} {
			e.ok(e.PutNonce(e.ctx, sum(name), []byte("pair"), e.ttl))
		}
		take("unknown", "pair", false)
		take("n1", "other", false)
		take("n1", "pair", true)
		take("n1", "pair", false)
		e.restart()
		take("n1", "pair", false)
		take("n2", "pair", true)
		e.pass(1)
		take("n3", "pair", false)
	}},
	{"a first link makes an agent, and the token is used", func(e *env) {
		e.token("t", 2, "")
		e.link(link{token: "t", pair: "one", process: "p", wantID: "new", wantFirst: true})
		e.link(link{token: "t", pair: "two", process: "p", wantID: "new", wantFirst: true})
		e.restart()
		e.link(link{token: "t", pair: "three", process: "p", wantErr: store.ErrDenied})
	}},
	{"the same token and key pair again is the same agent, the token not used again", func(e *env) {
		e.token("t", 2, "")
		e.link(link{token: "t", pair: "one", process: "p", wantID: "new", wantFirst: true})
		id := "agent_" + strconv.Itoa(e.jobs)
		e.restart()
		for range 3 {
			e.link(link{token: "t", pair: "one", process: "p", wantID: id, wantFirst: true})
		}
		e.link(link{token: "t", pair: "two", process: "p", wantID: "new", wantFirst: true})
		e.link(link{token: "t", pair: "one", process: "p", wantID: id, wantFirst: true}) // used up, still its own
	}},
	{"a known key pair with another valid token is the same agent, the token used", func(e *env) {
		id, _ := e.first("one", "p")
		e.token("other", 1, "")
		e.link(link{token: "other", pair: "one", process: "p", wantID: id, wantFirst: true})
		e.link(link{token: "other", pair: "two", process: "p", wantErr: store.ErrDenied})
	}},
	{"an unknown, used or expired token and an unknown id are denied, all alike", func(e *env) {
		e.link(link{token: "unknown", pair: "one", process: "p", wantErr: store.ErrDenied})
		e.ok(e.PutToken(e.ctx, store.Token{Sum: sum("t"), TTL: e.ttl, MaxUses: 5}))
		e.pass(1)
		e.link(link{token: "t", pair: "one", process: "p", wantErr: store.ErrDenied})
		e.link(link{agentID: "agent_x", pair: "one", process: "p", wantErr: store.ErrDenied})
		e.token("good", 1, "")
		e.link(link{token: "good", agentID: "agent_x", pair: "one", process: "p", wantErr: store.ErrDenied})
		e.link(link{token: "good", pair: "one", process: "p", wantID: "new", wantFirst: true}) // the refused used nothing
	}},
	{"a re-link by proof is the same agent and replaces what it tells of itself", func(e *env) {
		id, _ := e.first("one", "p")
		e.restart()
		e.link(link{agentID: id, pair: "one", process: "q", wantID: id})
		a, err := e.Agent(e.ctx, id)
		e.ok(err)
		equal(e, "labels", fmt.Sprint(a.Labels), "map[l:q]")
		equal(e, "process", a.ProcessID, "q")
		e.link(link{agentID: id, pair: "one", process: "r", notStart: true, wantID: id})
		a, err = e.Agent(e.ctx, id)
		e.ok(err)
		equal(e, "labels", fmt.Sprint(a.Labels), "map[l:r]")
		equal(e, "process", a.ProcessID, "q") // only a start makes a process the current one
	}},
	{"a known id with another key pair is an identity conflict", func(e *env) {
		id, _ := e.first("one", "p")
		e.first("two", "p")
		e.link(link{agentID: id, pair: "three", process: "p", wantErr: store.ErrIdentity})
		e.link(link{agentID: id, pair: "two", process: "p", wantErr: store.ErrIdentity})
		e.token("t", 1, "")
		e.link(link{token: "t", agentID: id, pair: "three", process: "p", wantErr: store.ErrIdentity})
		e.link(link{token: "t", pair: "three", process: "p", wantID: "new", wantFirst: true})
	}},
	{"a token bound to an id gives it to another key pair; the old one and its API keys end at once", func(e *env) {
		id, old := e.first("one", "p")
		e.token("bound", 1, id)
		fresh := e.link(link{token: "bound", pair: "two", process: "p", wantID: id, wantFirst: true})
		e.holdsNot(old)
		e.restart()
		e.holdsNot(old)
		e.holds(fresh, id)
		e.link(link{agentID: id, pair: "one", process: "p", wantErr: store.ErrIdentity})
		e.link(link{token: "token of one", pair: "one", process: "p", wantErr: store.ErrDenied})
		e.link(link{agentID: id, pair: "two", process: "p", wantID: id})
		e.link(link{token: "bound", pair: "two", process: "p", wantID: id, wantFirst: true}) // repeated
		e.link(link{token: "bound", pair: "three", process: "p", wantErr: store.ErrDenied})
	}},
	{"a token bound to another agent's id is denied, and one bound to an unknown id isn't made", func(e *env) {
		one, _ := e.first("one", "p")
		e.first("two", "p")
		e.token("bound", 1, one)
		e.link(link{token: "bound", pair: "two", process: "p", wantErr: store.ErrDenied})
		e.wantErr(e.PutToken(e.ctx, store.Token{Sum: sum("t"), TTL: time.Hour, MaxUses: 1, AgentID: "agent_x"}), store.ErrNotFound)
	}},
	{"a revoked agent can't link by any means, until it is restored", func(e *env) {
		id, key := e.first("one", "p")
		e.token("bound", 1, id)
		e.token("free", 1, "")
		a, err := e.SetRevoked(e.ctx, id, true)
		e.ok(err)
		equal(e, "revoked", a.Revoked, true)
		e.restart()
		e.link(link{agentID: id, pair: "one", process: "p", wantErr: store.ErrRevoked})
		e.link(link{token: "free", pair: "one", process: "p", wantErr: store.ErrRevoked})
		e.link(link{token: "bound", pair: "two", process: "p", wantErr: store.ErrRevoked})
		auth, err := e.Authenticate(e.ctx, sum(key))
		e.ok(err)
		equal(e, "revoked", auth.Agent.Revoked, true)
		_, err = e.SetRevoked(e.ctx, id, false)
		e.ok(err)
		e.link(link{agentID: id, pair: "one", process: "p", wantID: id})
		_, err = e.SetRevoked(e.ctx, "agent_x", true)
		e.wantErr(err, store.ErrNotFound)
	}},
}

var keyRules = []rule{
	{"a process's older keys stay valid for the overlap, another process's to their end", func(e *env) {
		id, first := e.first("one", "p")
		other := e.link(link{agentID: id, pair: "one", process: "q", wantID: id})
		second := e.link(link{agentID: id, pair: "one", process: "p", notStart: true, wantID: id})
		for _, k := range []string{first, other, second} {
			e.holds(k, id)
		}
		e.wait(overlap / 2)
		e.holds(first, id)
		e.restart()
		e.holds(first, id)
		e.wait(overlap/2 + time.Second)
		e.holdsNot(first)
		e.wait(23 * time.Hour)
		e.holds(other, id)
		e.holds(second, id)
		e.wait(time.Hour)
		e.holdsNot(other)
		e.holdsNot(second)
	}},
	{"a key knows its process", func(e *env) {
		_, key := e.first("one", "boot.process")
		a, err := e.Authenticate(e.ctx, sum(key))
		e.ok(err)
		equal(e, "process", a.ProcessID, "boot.process")
	}},
	{"an expired key isn't one", func(e *env) {
		e.token("t", 1, "")
		_, err := e.Link(e.ctx, store.LinkParams{Token: new(sum("t")), NewAgentID: "a", PublicKey: []byte("one"), ProcessID: "p", Key: sum("k"), KeyTTL: e.ttl})
		e.ok(err)
		e.holds("k", "a")
		e.pass(1)
		e.holdsNot("k")
		e.restart()
		e.holdsNot("k")
	}},
	{"ExpireKeys ends all keys of an agent and no other's", func(e *env) {
		id, key := e.first("one", "p")
		other, otherKey := e.first("two", "p")
		_, err := e.ExpireKeys(e.ctx, id)
		e.ok(err)
		e.holdsNot(key)
		e.holds(otherKey, other)
		e.link(link{agentID: id, pair: "one", process: "p", wantID: id})
		_, err = e.ExpireKeys(e.ctx, "agent_x")
		e.wantErr(err, store.ErrNotFound)
	}},
	{"agents are listed in pages, with when they were seen", func(e *env) {
		var want []string
		for i := range 5 {
			id, _ := e.first(fmt.Sprint("pair ", i), "p")
			want = append(want, id)
		}
		before, err := e.Agent(e.ctx, want[1])
		e.ok(err)
		e.pass(1)
		e.ok(e.Touch(e.ctx, want[1]))
		var got []string
		for after := ""; ; {
			items, next, err := e.Agents(e.ctx, after, 2)
			e.ok(err)
			for _, a := range items {
				got = append(got, a.ID)
				if a.ID == want[1] && !a.LastSeen.After(before.LastSeen) {
					e.Fatalf("last seen %v, want later than %v", a.LastSeen, before.LastSeen)
				}
			}
			if after = next; next == "" {
				break
			}
		}
		equal(e, "agents", fmt.Sprint(got), fmt.Sprint(want))
		_, err = e.Agent(e.ctx, "agent_x")
		e.wantErr(err, store.ErrNotFound)
	}},
}
