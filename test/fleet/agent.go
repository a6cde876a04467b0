package fleet

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentd/agent/protocol"
)

// agent is one simulated agent. Its goroutine owns it but for what says otherwise.
type agent struct {
	f       *Fleet
	number  int
	client  *protocol.Client
	process string
	key     atomic.Pointer[string] // the API key; read by every call

	mu      sync.Mutex // held while it links, so that a refused key is replaced once
	private ed25519.PrivateKey
	id      string // guarded by mu
	pace    time.Duration
	polls   int
}

func (f *Fleet) agent(i int) (*agent, error) {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	a := &agent{f: f, number: i, private: private, process: fmt.Sprintf("%s.%d", f.name, i)}
	none := ""
	a.key.Store(&none)
	a.client, err = protocol.NewClient(protocol.ClientConfig{
		Server: f.cfg.URLs[i%len(f.cfg.URLs)], Insecure: true, ProcessID: a.process, UserAgent: "agentd-fleet",
		Credential: func() string { return *a.key.Load() },
		Relink:     a.relink,
		Base:       f.transports[i%len(f.transports)],
	})
	return a, err
}

// link is the first link. It is tried until it succeeds or ctx ends.
func (a *agent) link(ctx context.Context, token string) error {
	wait := protocol.NewBackOff(0)
	for {
		err := a.linkOnce(ctx, token, true)
		if err == nil {
			return nil
		}
		a.f.stats.fault(ctx, err)
		if err := protocol.Pause(ctx, wait, err); err != nil {
			return err
		}
	}
}

// relink gets another key than the refused one, by proof.
func (a *agent) relink(ctx context.Context, refused string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if *a.key.Load() != refused {
		return nil
	}
	return a.linkLocked(ctx, "", false)
}

func (a *agent) linkOnce(ctx context.Context, token string, start bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.linkLocked(ctx, token, start)
}

func (a *agent) linkLocked(ctx context.Context, token string, start bool) error {
	challenge, err := a.client.Challenge(ctx, protocol.ChallengeRequest{PublicKey: a.private.Public().(ed25519.PublicKey), AgentID: a.id}) //nolint:forcetypeassert // documented to be one
	if err != nil {
		return err
	}
	r := protocol.LinkRequest{
		AgentID: a.id, Name: fmt.Sprintf("fleet-%d", a.number), Types: []string{a.f.cfg.Type}, Version: "0", OS: "linux", Arch: "any", ProcessID: a.process, Start: start,
	}
	protocol.SignLink(&r, a.private, challenge)
	link, _, err := a.client.Link(ctx, token, r)
	if err != nil {
		return err
	}
	a.id, a.pace = link.AgentID, link.Heartbeat.Duration()
	a.key.Store(&link.APIKey)
	return nil
}

// work polls, and runs what it gets, one job at a time.
func (a *agent) work(ctx context.Context) {
	wait := protocol.NewBackOff(0)
	for ctx.Err() == nil {
		job, err := a.client.NextJob(ctx, protocol.PollRequest{PollID: a.pollID(), Wait: a.f.cfg.PollWait, Types: []string{a.f.cfg.Type}})
		switch {
		case err != nil:
			// The same poll id once more: its answer may have been an offer, and lost.
			a.f.stats.fault(ctx, err)
			if act := protocol.ActionFor(err); act == protocol.StopRevoked || act == protocol.StopConflict {
				return
			}
			if protocol.Pause(ctx, wait, err) != nil {
				return
			}
			continue
		case job == nil:
			a.f.stats.empty.Add(1)
		default:
			a.run(ctx, job)
		}
		a.f.stats.polls.Add(1)
		wait.Reset()
		a.polls++
	}
}

func (a *agent) pollID() string { return fmt.Sprintf("%s-%d-%d", a.f.name, a.number, a.polls) }

// run is one attempt: accept, keep the lease, ship, complete.
func (a *agent) run(ctx context.Context, job *protocol.Job) {
	s := &a.f.stats
	what := a.f.cfg.Job
	var p payload
	if json.Unmarshal(job.Payload, &p) == nil && p.Fleet == a.f.name {
		s.pickup.add(time.Since(a.f.born) - time.Duration(p.At))
		what = p.Job
		what.Duration = time.Duration(p.DurationMs) * time.Millisecond
		what = what.withDefaults()
	}
	if _, err := a.beat(ctx, job, 0); err != nil {
		s.fault(ctx, err)
		return // an offer that isn't accepted lapses
	}
	s.running.Add(1)
	defer s.running.Add(-1)
	alive, end := context.WithCancelCause(ctx)
	defer end(nil)
	done := make(chan struct{})
	var reported atomic.Bool
	var lease sync.WaitGroup
	lease.Go(func() { a.keep(alive, end, job, done, &reported) })
	began := time.Now()
	outcome, records := a.print(alive, job, what)
	if alive.Err() == nil {
		reported.Store(true)
		a.complete(alive, job, protocol.Completion{
			Attempt: job.Attempt, LeaseToken: job.LeaseToken, Outcome: outcome, LogRecords: records, StartedAt: began, FinishedAt: time.Now(),
		})
	}
	close(done)
	lease.Wait()
}

func (a *agent) beat(ctx context.Context, job *protocol.Job, hold time.Duration) (protocol.Heartbeat, error) {
	sent := time.Now()
	hb, err := a.client.Heartbeat(ctx, job.ID, hold, protocol.HeartbeatRequest{Attempt: job.Attempt, LeaseToken: job.LeaseToken})
	if err == nil {
		a.f.stats.beats.Add(1)
		a.f.stats.late.add(max(0, time.Since(sent)-hold))
	}
	return hb, err
}

// keep holds heartbeats until done is closed, as the completion has been acknowledged by then. A lost lease, or a cancel, ends the job;
// once it was reported, a lost lease means that the report has arrived.
func (a *agent) keep(ctx context.Context, end context.CancelCauseFunc, job *protocol.Job, done <-chan struct{}, reported *atomic.Bool) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var watch sync.WaitGroup
	defer watch.Wait()
	watch.Go(func() {
		select {
		case <-done:
			stop() // a heartbeat under way is of no more use
		case <-ctx.Done():
		}
	})
	wait := protocol.NewBackOff(protocol.LongestHeartbeatBackOff)
	for ctx.Err() == nil {
		hold := a.f.cfg.Beat
		if hold == 0 {
			hold = a.pace
		}
		hb, err := a.beat(ctx, job, hold)
		switch {
		case err == nil && hb.Cancel == nil:
			wait.Reset()
		case err == nil:
			if !reported.Load() {
				end(errCancelled)
			}
			return
		case protocol.ActionFor(err) == protocol.LeaseOver && reported.Load():
			return
		case protocol.ActionFor(err) == protocol.LeaseOver:
			a.f.stats.lost.Add(1)
			end(errLost)
			return
		default:
			a.f.stats.fault(ctx, err)
			if protocol.Pause(ctx, wait, err) != nil {
				return
			}
		}
	}
}

// print lets the job's time pass, and ships what it prints meanwhile.
func (a *agent) print(ctx context.Context, job *protocol.Job, what Job) (protocol.Outcome, int64) {
	ref := protocol.AttemptRef{JobID: job.ID, Attempt: job.Attempt, LeaseToken: job.LeaseToken}
	line := strings.Repeat("x", what.LineBytes)
	batches := max(1, int(what.Duration/what.BatchEvery))
	timer := time.NewTimer(0)
	<-timer.C
	next := int64(0)
	for i := range batches {
		timer.Reset(what.Duration / time.Duration(batches))
		select {
		case <-ctx.Done():
			return protocol.Lost, next
		case <-timer.C:
		}
		n := what.Lines*(i+1)/batches - what.Lines*i/batches
		if n == 0 {
			continue
		}
		var body []byte
		now := time.Now().UnixMicro()
		for range n {
			body = protocol.AppendRecord(body, protocol.Record{Time: now, Stream: protocol.Stdout, Text: line})
		}
		next += int64(n)
		if !a.ship(ctx, ref, protocol.LogBody{First: next - int64(n), Count: int64(n), Frames: [][]byte{body}}) {
			return protocol.Lost, next
		}
		a.f.stats.logBytes.Add(int64(len(body)))
	}
	return protocol.Succeeded, next
}

// ship repeats a batch until it is acknowledged.
func (a *agent) ship(ctx context.Context, ref protocol.AttemptRef, body protocol.LogBody) bool {
	wait := protocol.NewBackOff(0)
	for {
		sent := time.Now()
		next, err := a.client.ShipLog(ctx, ref, body)
		if err == nil && next.Next >= body.First+body.Count {
			a.f.stats.acks.Add(1)
			a.f.stats.ship.add(time.Since(sent))
			return true
		}
		a.f.stats.fault(ctx, err)
		if protocol.Pause(ctx, wait, err) != nil {
			return false
		}
	}
}

// complete reports until it is acknowledged, or the matter is settled.
func (a *agent) complete(ctx context.Context, job *protocol.Job, c protocol.Completion) {
	wait := protocol.NewBackOff(0)
	for {
		err := a.client.Complete(ctx, job.ID, c)
		if err == nil {
			a.f.stats.completed.Add(1)
			return
		}
		a.f.stats.fault(ctx, err)
		if act := protocol.ActionFor(err); act == protocol.LeaseOver || act == protocol.Orphan {
			a.f.stats.lost.Add(1)
			return
		}
		if protocol.Pause(ctx, wait, err) != nil {
			return
		}
	}
}
