package identity

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"go.uber.org/zap"

	"agentd/agent/protocol"
)

// Enrolment is what `agentd link` asks for.
type Enrolment struct {
	AgentID string // the id that the token is bound to: takes over a lost state directory. "" = whatever the server gives
	Force   bool   // give up the identity that is there for a new one
}

// ErrNoToken says that an identity can't be given up for another one: there is no token to link with.
var ErrNoToken = errors.New("identity: another identity takes an enrolment token (--token-file TOKEN); the present one stays")

// OtherIDError says that the agent is, or was made, another one than asked for.
type OtherIDError struct{ Have, Want, Fix string }

func (e *OtherIDError) Error() string {
	return fmt.Sprintf("identity: this is agent %s, not %s: %s", e.Have, e.Want, e.Fix)
}

// Enrol links for the first time, with the token. Where there is an agent id already it does
// nothing (already is true), unless forced: then a new key pair is made, the server is asked,
// and only when it has agreed is the old key pair replaced. It may be repeated after any
// failure: the same token is good for the same key pair. It must not be called beside Run.
func (i *Identity) Enrol(ctx context.Context, e Enrolment) (already bool, err error) {
	have := i.rec.AgentID
	if have != "" && !e.Force {
		if e.AgentID != "" && e.AgentID != have {
			return false, &OtherIDError{Have: have, Want: e.AgentID, Fix: "give the present identity up with --force, or use another state directory"}
		}
		return true, nil
	}
	token, err := i.cfg.Token()
	if err != nil {
		return false, err
	}
	switch {
	case token == "" && have == "":
		return false, ErrNotLinked
	case token == "":
		return false, ErrNoToken
	}
	rec, err := i.pending(have != "")
	if err != nil {
		return false, err
	}
	link, err := i.ask(ctx, rec, token)
	if err != nil {
		return false, err
	}
	if e.AgentID != "" && link.AgentID != e.AgentID {
		// The key pair belongs to another agent now, so it is no good for the one that is wanted.
		return false, errors.Join(
			&OtherIDError{Have: link.AgentID, Want: e.AgentID, Fix: "the token isn't bound to the wanted id; get one that is"},
			i.forget())
	}
	if err := i.keep(rec, link); err != nil {
		return false, err
	}
	if err := os.Remove(filepath.Join(i.cfg.Dir, pendingName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("identity: %w", err)
	}
	i.adopt(link)
	return false, nil
}

// pending is the key pair to link with, on disk before the server hears of it: the one of an
// enrolment whose answer was lost, or a new one. Beside a present identity it has a file of its own.
func (i *Identity) pending(beside bool) (record, error) {
	name := fileName
	if beside {
		name = pendingName
	}
	rec, err := load(i.cfg.Dir, name)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return rec, err
	}
	if rec, err = newRecord(); err != nil {
		return rec, fmt.Errorf("identity: %w", err)
	}
	return rec, rec.save(i.cfg.Dir, name)
}

// forget moves a key pair that belongs to nobody's wish out of the way.
func (i *Identity) forget() error {
	name := fileName
	if i.rec.AgentID != "" {
		name = pendingName
	}
	path := filepath.Join(i.cfg.Dir, name)
	if err := os.Rename(path, path+".unused"); err != nil {
		return fmt.Errorf("identity: %w", err)
	}
	return nil
}

// keep stores what the server said, if it isn't stored already.
func (i *Identity) keep(rec record, link protocol.Link) error {
	rec.AgentID, rec.ServerID = link.AgentID, link.ServerID
	if rec.AgentID == i.rec.AgentID && rec.ServerID == i.rec.ServerID && string(rec.Seed) == string(i.rec.Seed) {
		return nil
	}
	i.rec = rec // in memory whatever the disk says: the server has decided
	return rec.save(i.cfg.Dir, fileName)
}

// ask proves possession of rec's key pair: with a token for a first link, without one for a
// re-link under rec's id.
func (i *Identity) ask(ctx context.Context, rec record, token string) (protocol.Link, error) {
	id := rec.AgentID
	if token != "" {
		id = "" // a first link, whatever we were before
	}
	key := rec.key()
	challenge, err := i.cfg.Linker.Challenge(ctx, protocol.ChallengeRequest{PublicKey: publicKey(key), AgentID: id})
	if err != nil {
		return protocol.Link{}, fmt.Errorf("identity: %w", err)
	}
	i.mu.Lock()
	info := i.info
	i.mu.Unlock()
	r := protocol.LinkRequest{
		AgentID: id, Name: info.Name, Labels: info.Labels, Types: info.Types, Connectors: info.Connectors,
		Version: info.Version, OS: runtime.GOOS, Arch: runtime.GOARCH, ProcessID: i.cfg.ProcessID, Start: !i.first,
	}
	protocol.SignLink(&r, key, challenge)
	link, first, err := i.cfg.Linker.Link(ctx, token, r)
	if err != nil {
		return protocol.Link{}, fmt.Errorf("identity: %w", err)
	}
	if !first && id != "" && link.AgentID != id {
		return protocol.Link{}, fmt.Errorf("identity: the server answered the re-link of %s with agent id %q", id, link.AgentID)
	}
	i.first = true
	return link, nil
}

// adopt makes link the current one.
func (i *Identity) adopt(link protocol.Link) {
	i.mu.Lock()
	now := time.Now()
	i.agentID, i.serverID, i.link, i.linkedAt = link.AgentID, link.ServerID, link, now
	// 75 % of the key's life: a quarter of it is left for an outage in which nothing else fails.
	i.next = now.Add(max(link.KeyExpiresIn.Duration()/4*3, shortestRenewal))
	i.failing = false
	if i.state == Conflict {
		i.enter(Conflict, i.cause) // the key is new, the conflict isn't over
	} else {
		i.enter(Linked, nil)
	}
	i.mu.Unlock()
	i.log.Debug("linked", zap.String("agent", link.AgentID), zap.String("server", link.ServerID),
		zap.Duration("key_expires_in", link.KeyExpiresIn.Duration()))
	i.cfg.Linked(link)
}
