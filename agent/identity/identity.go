package identity

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"sync"
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

func (i Info) clone() Info {
	i.Labels = maps.Clone(i.Labels)
	i.Types, i.Connectors = slices.Clone(i.Types), slices.Clone(i.Connectors)
	return i
}

// Linker is the part of protocol.Client that an Identity uses. It must not be a client whose
// Relink is this identity's: give it one of its own, without credential.
type Linker interface {
	Challenge(ctx context.Context, r protocol.ChallengeRequest) (protocol.Challenge, error)
	Link(ctx context.Context, token string, r protocol.LinkRequest) (link protocol.Link, first bool, err error)
}

// Config says where the identity is kept and how it links.
type Config struct {
	Dir       string // the state directory
	ProcessID string // NewProcessID
	Info      Info
	Linker    Linker
	Token     TokenSource         // nil = none: only an agent with an id can link
	Linked    func(protocol.Link) // called after each link, by Run or Enrol; must not call back; may be nil
	Logger    *zap.Logger
}

// Identity is who the agent is. Its methods may be called concurrently, but for Enrol and Run.
type Identity struct {
	cfg  Config
	log  *zap.Logger
	wake chan struct{} // one element: Run looks at next again

	rec   record // owned by whoever links: Run or Enrol
	token string // likewise: the last one that the server refused
	first bool   // likewise: the process has linked once, so that start is over

	mu       sync.Mutex
	agentID  string        // guarded by mu, as all below
	serverID string        // of the last link, or as stored
	info     Info          // announced next
	link     protocol.Link // the last one
	linkedAt time.Time     // of link; zero = none in this process. Monotonic
	state    State
	cause    error         // why the last link failed, or the server refused another call; nil when all is well
	since    time.Time     // of state
	lastErr  error         // of the last link that failed: Relink's answer while failing
	tried    time.Time     // when the last link failed
	next     time.Time     // when Run links next; zero = never by itself
	failing  bool          // Relink answers lastErr until next
	stopped  bool          // Run has returned
	changed  chan struct{} // closed and replaced at every change of the above
}

// ErrNotLinked says that there is neither an agent id nor a token, so that only a person can help.
var ErrNotLinked = errors.New("identity: not linked: get an enrolment token from the control plane's operator, then: agentd link --config FILE --token-file TOKEN")

// ErrStopped answers Relink once Run has returned.
var ErrStopped = errors.New("identity: stopped")

// Open reads the identity from cfg.Dir, if there is one, and refuses a directory that can't be
// written: nothing may come to depend on an identity that can't be kept.
func Open(cfg Config) (*Identity, error) {
	var faults []error
	if cfg.Dir == "" {
		faults = append(faults, errors.New("identity: Dir is empty"))
	}
	if !protocol.ValidProcessID(cfg.ProcessID) {
		faults = append(faults, fmt.Errorf("identity: ProcessID %q is none", cfg.ProcessID))
	}
	if cfg.Linker == nil {
		faults = append(faults, errors.New("identity: Linker is nil"))
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	if cfg.Token == nil {
		cfg.Token = noToken
	}
	if cfg.Linked == nil {
		cfg.Linked = func(protocol.Link) {}
	}
	i := &Identity{
		cfg: cfg, log: cfg.Logger, info: cfg.Info.clone(), wake: make(chan struct{}, 1),
		state: Unlinked, since: time.Now(), changed: make(chan struct{}),
	}
	if i.log == nil {
		i.log = zap.NewNop()
	}
	if err := prepare(cfg.Dir); err != nil {
		return nil, err
	}
	rec, err := load(cfg.Dir, fileName)
	if errors.Is(err, fs.ErrNotExist) {
		return i, nil
	}
	if err != nil {
		return nil, err
	}
	narrowed, err := narrow(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if narrowed {
		i.log.Warn("identity file could be read by others; took their rights away", zap.String("dir", cfg.Dir))
	}
	i.rec, i.agentID, i.serverID = rec, rec.AgentID, rec.ServerID
	return i, nil
}

// AgentID is the agent's id; "" before the first link.
func (i *Identity) AgentID() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.agentID
}

// Linkable tells whether Run has anything to link with: an id, or a token. If not, ErrNotLinked.
func (i *Identity) Linkable() error {
	if i.AgentID() != "" {
		return nil
	}
	token, err := i.cfg.Token()
	if err == nil && token == "" {
		return ErrNotLinked
	}
	return err
}

// Credential is the current API key; "" = none yet. It goes on being given out after its end:
// the server decides, not our clock.
func (i *Identity) Credential() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.link.APIKey
}

// Last is the last link of this process; false = there was none.
func (i *Identity) Last() (protocol.Link, bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.link, !i.linkedAt.IsZero()
}

// Relink returns when there is another API key than the refused one: at once, if there is
// already. However many callers ask, Run links once for them all; when that fails, or the
// last failure is so recent that the server isn't to be asked again yet, they all get its error.
func (i *Identity) Relink(ctx context.Context, refused string) error {
	asked := false
	for {
		i.mu.Lock()
		changed := i.changed
		switch key := i.link.APIKey; {
		case key != "" && key != refused:
			i.mu.Unlock()
			return nil
		case i.stopped:
			i.mu.Unlock()
			return ErrStopped
		case i.failing && !asked && i.outageOver():
			// Else heartbeats would be refused until the back-off has passed, and a lease that lasted through the outage be lost.
			asked = true
			i.next = time.Now()
			i.nudge()
		case i.failing:
			err := i.lastErr
			i.mu.Unlock()
			return err
		case !asked:
			asked = true
			i.hasten()
		}
		i.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// outageOver guesses, when a call was refused, that linking works again: the last try got no answer, and the server has just
// given one. The caller holds mu.
func (i *Identity) outageOver() bool {
	return protocol.CodeOf(i.lastErr) == "" && !errors.Is(i.lastErr, ErrNotWritable) && time.Since(i.tried) >= shortestRetry
}

// Announce tells the server who the agent is now: it links again soon, with info.
func (i *Identity) Announce(info Info) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.info = info.clone()
	i.hasten()
}

// hasten makes Run link now, unless it waits after a failure: then the next try does for both.
// The caller holds mu.
func (i *Identity) hasten() {
	if !i.failing {
		i.next = time.Now()
	}
	i.nudge()
}

func (i *Identity) nudge() {
	select {
	case i.wake <- struct{}{}:
	default: // Run is to look already
	}
}

// Report passes on what the server said to another call. Revoked and identity conflict concern
// the identity and change its state; everything else is ignored.
func (i *Identity) Report(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch protocol.CodeOf(err) { //nolint:exhaustive // see above
	case protocol.CodeRevoked:
		if i.state != Revoked {
			i.next, i.failing, i.lastErr = time.Now().Add(askAgain), true, err
			i.nudge()
			i.enter(Revoked, err)
		}
	case protocol.CodeIdentityConflict:
		i.enter(Conflict, err) // renewals go on: jobs and logs need keys
	}
}

// WaitLinked returns when the agent may ask for work: nil, or ctx's cause.
func (i *Identity) WaitLinked(ctx context.Context) error {
	for {
		i.mu.Lock()
		state, changed := i.state, i.changed
		i.mu.Unlock()
		if state == Linked {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// enter changes the state, logs the change, and wakes who waits for one. The caller holds mu.
func (i *Identity) enter(state State, cause error) {
	i.cause = cause
	if i.state != state {
		i.state, i.since = state, time.Now()
		if cause == nil {
			i.log.Info("identity changed state", zap.String("state", string(state)), zap.String("agent", i.agentID))
		} else {
			i.log.Warn("identity changed state", zap.String("state", string(state)), zap.String("agent", i.agentID),
				zap.String("advice", advice(state)), zap.Error(cause))
		}
	}
	close(i.changed)
	i.changed = make(chan struct{})
}
