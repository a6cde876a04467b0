package query

import "time"

// post is what queries are addressed to.
type post struct{ kind, connector string }

// presence knows which workers hold which posts, and until when. Guarded by Broker.mu.
type presence struct {
	posts map[post]map[string]time.Time // agent id → until; no empty maps
	seats int                           // over all posts, faded ones included
	swept time.Time
}

// seen notes that w polls, and says whether there was room for it.
func (p *presence) seen(w Worker, now time.Time, cfg Config) bool {
	// Faded seats are cleared once a PresentFor: the cost is spread over polls.
	if now.Sub(p.swept) >= cfg.PresentFor {
		p.sweep(now)
	}
	fresh := p.missing(w)
	if fresh > 0 && p.seats+fresh > cfg.MaxPresent {
		if p.sweep(now); p.seats+fresh > cfg.MaxPresent {
			return false
		}
	}
	for _, c := range w.Connectors {
		at := post{w.Type, c}
		agents := p.posts[at]
		if agents == nil {
			agents = map[string]time.Time{}
			p.posts[at] = agents
		}
		if _, known := agents[w.AgentID]; !known {
			p.seats++
		}
		agents[w.AgentID] = now.Add(cfg.PresentFor)
	}
	return true
}

// missing counts w's posts at which it has no seat yet.
func (p *presence) missing(w Worker) (n int) {
	for _, c := range w.Connectors {
		if _, known := p.posts[post{w.Type, c}][w.AgentID]; !known {
			n++
		}
	}
	return n
}

// holds says whether a present worker holds the post. Faded seats that it comes by are cleared, so
// that the next asker is told at a glance.
func (p *presence) holds(at post, now time.Time) bool {
	for agent, until := range p.posts[at] {
		if until.After(now) {
			return true
		}
		p.clear(at, agent)
	}
	return false
}

func (p *presence) sweep(now time.Time) {
	p.swept = now
	for at, agents := range p.posts {
		for agent, until := range agents {
			if !until.After(now) {
				p.clear(at, agent)
			}
		}
	}
}

func (p *presence) clear(at post, agent string) {
	delete(p.posts[at], agent)
	p.seats--
	if len(p.posts[at]) == 0 {
		delete(p.posts, at)
	}
}
