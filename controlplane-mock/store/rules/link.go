package rules

import (
	"crypto/subtle"
	"encoding/hex"
	"maps"

	"agentd/controlplane-mock/store"
)

// Enrolment is what decides about an enrolment token that exists and hasn't expired.
type Enrolment struct {
	MaxUses int               `json:"maxUses"`
	AgentID string            `json:"agentId,omitempty"` // whose lost state it may take over
	UsedBy  map[string]string `json:"usedBy,omitempty"`  // agent id by public key in hexadecimal: the same key again isn't another use
}

// Party is an agent as a link sees it.
type Party struct {
	ID        string
	PublicKey []byte
	Revoked   bool
}

// LinkFacts is what a store knows when an agent links; nil is what there is none of.
type LinkFacts struct {
	Token *Enrolment // behind LinkParams.Token, if that is valid
	Owner *Party     // whose public key it is now
	Named *Party     // behind LinkParams.AgentID
	Bound *Party     // behind Token.AgentID
}

// Identify decides which agent links: "" is a new one. use says that the token is used by it, to
// be noted with Use; whoever is refused has used nothing.
func Identify(p *store.LinkParams, f LinkFacts) (id string, use bool, err error) {
	if p.Token == nil {
		id, err = byProof(p, f.Named)
		return id, false, err
	}
	if f.Token == nil {
		return "", false, store.ErrDenied
	}
	who, err := byToken(p, f)
	if err != nil {
		return "", false, err
	}
	if who != nil {
		if who.Revoked {
			return "", false, store.ErrRevoked
		}
		id = who.ID
		if f.Token.UsedBy[keyOf(p)] == id {
			return id, false, nil // the answer was lost
		}
	}
	if len(f.Token.UsedBy) >= f.Token.MaxUses {
		return "", false, store.ErrDenied
	}
	return id, true, nil
}

// Use is e after the link of an agent with that id.
func (e *Enrolment) Use(p *store.LinkParams, id string) Enrolment {
	used := *e
	used.UsedBy = map[string]string{keyOf(p): id}
	maps.Copy(used.UsedBy, e.UsedBy)
	return used
}

func keyOf(p *store.LinkParams) string { return hex.EncodeToString(p.PublicKey) }

// byProof is a re-link: a known id with its known key.
func byProof(p *store.LinkParams, named *Party) (string, error) {
	switch {
	case named == nil:
		return "", store.ErrDenied
	case subtle.ConstantTimeCompare(named.PublicKey, p.PublicKey) != 1:
		return "", store.ErrIdentity
	case named.Revoked:
		return "", store.ErrRevoked
	}
	return named.ID, nil
}

// byToken is a first link, a repeated one, or a take-over.
func byToken(p *store.LinkParams, f LinkFacts) (*Party, error) {
	bound := f.Token.AgentID
	switch {
	case bound != "" && (f.Owner != nil && f.Owner.ID != bound || p.AgentID != "" && p.AgentID != bound):
		return nil, store.ErrDenied
	case f.Owner == nil && f.Token.UsedBy[keyOf(p)] != "":
		return nil, store.ErrDenied // this token let the key pair in once, and it was since put out
	case bound != "" && f.Bound == nil:
		return nil, store.ErrDenied
	case bound != "":
		return f.Bound, nil
	case p.AgentID != "" && (f.Owner == nil || f.Owner.ID != p.AgentID):
		if f.Named != nil {
			return nil, store.ErrIdentity
		}
		return nil, store.ErrDenied
	}
	return f.Owner, nil
}
