package identity

import (
	"context"
	"time"

	"go.uber.org/zap"

	"agentd/agent/protocol"
)

// Info is what the agent announces with every link.
type Info struct {
	Name       string
	Labels     map[string]string
	Types      []string // job and query types together
	Connectors []string
	Version    string
}

// Linker is the part of protocol.Client that an Identity uses.
type Linker interface {
	Challenge(ctx context.Context, r protocol.ChallengeRequest) (protocol.Challenge, error)
	Link(ctx context.Context, token string, r protocol.LinkRequest) (link protocol.Link, first bool, err error)
}

// TokenSource reads the enrolment token; "" = there is none. It is asked again for every first
// link, so that a token that was put in place later is found.
type TokenSource func() (string, error)

// Config says where the identity is kept and how it links.
type Config struct {
	Dir       string // the state directory
	ProcessID string
	Info      Info
	Token     TokenSource // nil = none: only an agent with an id can link
	Linked    func(protocol.Link)
	Logger    *zap.Logger
}

// Status is how the identity stands, for `agentd status`.
type Status struct {
	AgentID    string
	ServerID   string
	State      State
	Words      string // the state, and what to do about it
	KeyAge     time.Duration
	KeyExpires time.Duration // from now; 0 = no key
}

// State is one of a few words.
type State string

// The states.
const (
	Unlinked State = "unlinked"
	Linked   State = "linked"
	Refused  State = "refused"
	Revoked  State = "revoked"
	Conflict State = "identity_conflict"
	Away     State = "unreachable"
)
