package agent

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// pulse holds the liveness stamps: each loop says how long it may take until it stamps again. One that is
// late is deaf: the watchdog and the status read it here.
type pulse struct {
	mu    sync.Mutex
	loops map[string]stamp // guarded by mu
}

type stamp struct {
	at     time.Time
	within time.Duration
}

// slack is added to every deadline: a machine under load, or one that pages, is late without being deaf.
const slack = 20 * time.Second

func (p *pulse) beat(loop string, within time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.loops == nil {
		p.loops = map[string]stamp{}
	}
	p.loops[loop] = stamp{time.Now(), within + slack}
}

func (p *pulse) end(loop string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.loops, loop)
}

// deaf names the loops that are late.
func (p *pulse) deaf() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var late []string
	for _, loop := range slices.Sorted(maps.Keys(p.loops)) {
		s := p.loops[loop]
		if since := time.Since(s.at); since > s.within {
			late = append(late, fmt.Sprintf("%s has made no progress for %v", loop, since.Round(time.Second)))
		}
	}
	return late
}

// Alive answers nil while every loop makes progress, else which one doesn't. The watchdog asks it.
func (a *Agent) Alive() error {
	if late := a.pulse.deaf(); len(late) > 0 {
		return fmt.Errorf("agent: %s", late[0])
	}
	if logs, ok := a.logs.(interface{ Alive() error }); ok { // fakes have no loops
		return logs.Alive()
	}
	return nil
}
