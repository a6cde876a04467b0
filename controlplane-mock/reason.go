package controlplane

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"agentd/controlplane-mock/store"
)

// onlineFor is how long after its last call an agent counts as online: its longest silence is one poll (50 s), and
// some seconds on the way. It is for people to read; nothing is decided by it.
const onlineFor = 70 * time.Second

func online(a store.Agent) bool { return !a.Revoked && time.Since(a.LastSeen) < onlineFor }

// fleet is who is online, for the reasons why jobs wait. Every submission is answered with one, so to ask the store each time would
// cost each of them as much as the fleet is large; and they are for people to read.
type fleet struct {
	store store.Store

	mu     sync.Mutex // held while the store is asked: whoever comes meanwhile wants the same
	online []store.Agent
	more   bool      // there are more than we looked at
	until  time.Time // what we know is good enough until then
}

const (
	// maxFleet bounds the agents that a reason is worked out from.
	maxFleet = 5000
	// fleetShare: what took a second to ask is good for this many, so that asking takes a twentieth of the time at the most,
	// and an answer that costs nothing is always fresh.
	fleetShare = 20
)

// ask answers who is online. The list is shared: it must not be changed.
func (f *fleet) ask(ctx context.Context) (known []store.Agent, more bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	began := time.Now()
	if began.Before(f.until) {
		return f.online, f.more, nil
	}
	after := ""
	for seen := 0; ; {
		const page = 1000
		items, next, err := f.store.Agents(ctx, after, page)
		if err != nil {
			return nil, false, err
		}
		for _, a := range items {
			if online(a) {
				known = append(known, a)
			}
		}
		if after, seen = next, seen+len(items); next == "" {
			break
		}
		if seen >= maxFleet {
			more = true
			break
		}
	}
	now := time.Now()
	f.online, f.more, f.until = known, more, now.Add(fleetShare*now.Sub(began))
	return known, more, nil
}

// reason says how a job ended, or why it waits: which of its wishes no agent fulfils.
func (f *fleet) reason(ctx context.Context, j store.Job) (string, error) {
	if j.Status != store.Pending {
		return j.Reason, nil
	}
	known, more, err := f.ask(ctx)
	if err != nil {
		return "", err
	}
	return presentFleet{known, more}.pendingReason(j), nil
}

// presentFleet is a look at the fleet.
type presentFleet struct {
	online []store.Agent
	more   bool
}

func (f presentFleet) pendingReason(j store.Job) string {
	n := f.count(len(f.online))
	if j.AgentID != "" {
		i := slices.IndexFunc(f.online, func(a store.Agent) bool { return a.ID == j.AgentID })
		switch {
		case i < 0:
			return fmt.Sprintf("agent %s is not online (%s)", j.AgentID, n)
		case !slices.Contains(f.online[i].Types, j.Type):
			return fmt.Sprintf("agent %s is online, but doesn't take type %s", j.AgentID, j.Type)
		case !hasLabels(f.online[i].Labels, j.Labels):
			return fmt.Sprintf("agent %s is online, without label %s", j.AgentID, missing(f.online[i:i+1], j.Labels))
		}
		return fmt.Sprintf("agent %s is online and busy", j.AgentID)
	}
	if len(f.online) == 0 {
		return "no agent online"
	}
	var typed, fit []store.Agent
	for _, a := range f.online {
		if slices.Contains(a.Types, j.Type) {
			typed = append(typed, a)
			if hasLabels(a.Labels, j.Labels) {
				fit = append(fit, a)
			}
		}
	}
	labelled := slices.ContainsFunc(f.online, func(a store.Agent) bool { return hasLabels(a.Labels, j.Labels) })
	switch {
	case len(fit) > 0:
		return fmt.Sprintf("%s, %d match, all busy", n, len(fit))
	case !labelled:
		return fmt.Sprintf("%s, none with label %s", n, missing(f.online, j.Labels))
	case len(typed) == 0:
		return fmt.Sprintf("%s, none with type %s", n, j.Type)
	}
	return fmt.Sprintf("%s, %d with type %s, none of them with label %s", n, len(typed), j.Type, missing(typed, j.Labels))
}

func (f presentFleet) count(n int) string {
	plus, s := "", "s"
	if f.more {
		plus = "+"
	}
	if n == 1 {
		s = ""
	}
	return fmt.Sprintf("%d%s agent%s online", n, plus, s)
}

// missing names the labels that nobody has; if each is somewhere, all of them, since nobody has them together.
func missing(agents []store.Agent, want map[string]string) string {
	var none, all []string
	for _, k := range slices.Sorted(maps.Keys(want)) {
		one := map[string]string{k: want[k]}
		all = append(all, k+"="+want[k])
		if !slices.ContainsFunc(agents, func(a store.Agent) bool { return hasLabels(a.Labels, one) }) {
			none = append(none, k+"="+want[k])
		}
	}
	if len(none) == 0 {
		return strings.Join(all, " and ")
	}
	return strings.Join(none, " and ")
}
