package identity

import (
	"fmt"
	"time"
)

// State is how the identity stands. The agent asks for work while it is Linked only.
type State string

// The states.
const (
	Unlinked State = "unlinked"          // not linked yet in this process
	Linked   State = "linked"            // there is an API key
	Away     State = "unreachable"       // no key, and linking fails for a reason that may pass
	Refused  State = "refused"           // the control plane refuses the token or the proof
	Revoked  State = "revoked"           // by a person
	Conflict State = "identity_conflict" // another machine or process uses this identity
)

// Status is how the identity stands, for `agentd status`. It holds nothing secret.
type Status struct {
	AgentID    string        `json:"agentId"`
	ServerID   string        `json:"serverId"`
	ProcessID  string        `json:"processId"`
	State      State         `json:"state"`
	Words      string        `json:"words"`    // the state, why, and what to do about it
	Since      time.Duration `json:"-"`        // how long the state has lasted
	KeyAge     time.Duration `json:"-"`        // of the API key; 0 = there is none
	KeyLeft    time.Duration `json:"-"`        // until the key ends, as far as this process knows
	NextLink   time.Duration `json:"-"`        // until the agent links again by itself; 0 = it won't
	SinceMs    int64         `json:"sinceMs"`  // the same in milliseconds, for programs
	KeyAgeMs   int64         `json:"keyAgeMs"` //
	KeyLeftMs  int64         `json:"keyLeftMs"`
	NextLinkMs int64         `json:"nextLinkMs"`
}

// Status is how the identity stands now.
func (i *Identity) Status() Status {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := time.Now()
	s := Status{
		AgentID: i.agentID, ServerID: i.serverID, ProcessID: i.cfg.ProcessID,
		State: i.state, Since: now.Sub(i.since),
	}
	if !i.linkedAt.IsZero() {
		s.KeyAge = now.Sub(i.linkedAt)
		s.KeyLeft = max(i.link.KeyExpiresIn.Duration()-s.KeyAge, 0)
	}
	if !i.next.IsZero() {
		s.NextLink = max(i.next.Sub(now), 0)
	}
	if s.State == Linked && s.KeyLeft == 0 && i.cause != nil {
		s.State = Away
	}
	s.Words = words(s, i.cause)
	s.SinceMs, s.KeyAgeMs = s.Since.Milliseconds(), s.KeyAge.Milliseconds()
	s.KeyLeftMs, s.NextLinkMs = s.KeyLeft.Milliseconds(), s.NextLink.Milliseconds()
	return s
}

func words(s Status, cause error) string {
	text := string(s.State)
	switch s.State {
	case Linked:
		text = fmt.Sprintf("linked as %s; API key %v old, renewed in %v", s.AgentID, s.KeyAge.Round(time.Second), s.NextLink.Round(time.Second))
		if cause != nil {
			text = fmt.Sprintf("linked as %s; the API key ends in %v and could not be renewed yet", s.AgentID, s.KeyLeft.Round(time.Second))
		}
	case Unlinked:
		text = "not linked yet"
	case Away:
		text = "no API key: linking does not work yet"
	case Refused, Revoked, Conflict:
		text = advice(s.State)
	}
	if cause != nil {
		text += " (" + cause.Error() + ")"
	}
	return text
}

// advice says what a state means and what a person can do about it.
func advice(s State) string {
	switch s {
	case Refused:
		return "the control plane refuses this agent: give it a new enrolment token, or, if the control plane doesn't know it any more, link anew with agentd link --force; asking again every 5 minutes"
	case Revoked:
		return "revoked by the control plane's operator: no work is asked for, everything held is kept; asking again every 5 minutes, so a restore there is enough"
	case Conflict:
		return "another machine or process uses this identity (a copied state directory?): no work is asked for, running jobs and their logs go on. If this machine is the copy, stop the agent, move its state directory's identity.json away, and link it with a token of its own; if it is the original, stop the other one and restart this agent"
	case Unlinked, Linked, Away:
	}
	return ""
}
