package main

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net/http"
	"sync"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
	"agentd/test/stack"
)

// linked is a bare agent of the bench's own: the wire and nothing else.
func linked(ctx context.Context, s *stack.Stack, types ...string) (*protocol.Client, error) {
	return linkedVia(ctx, s, nil, "bench.1", types...)
}

// linkedVia is one of many that share their connections.
func linkedVia(ctx context.Context, s *stack.Stack, base http.RoundTripper, process string, types ...string) (*protocol.Client, error) {
	var key string
	c, err := protocol.NewClient(protocol.ClientConfig{Server: s.URL, ProcessID: process, Credential: func() string { return key }, Base: base})
	if err != nil {
		return nil, err
	}
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	token, err := s.Admin.Token(ctx, adminclient.TokenRequest{})
	if err != nil {
		return nil, err
	}
	challenge, err := c.Challenge(ctx, protocol.ChallengeRequest{PublicKey: public})
	if err != nil {
		return nil, err
	}
	r := protocol.LinkRequest{PublicKey: public, Name: "bench", Types: types, Version: "0", OS: "linux", Arch: "any", ProcessID: process, Start: true}
	protocol.SignLink(&r, private, challenge)
	link, _, err := c.Link(ctx, token, r)
	if err != nil {
		return nil, err
	}
	key = link.APIKey
	return c, nil
}

func benchPoll(ctx context.Context, e env, r *report) (err error) {
	const rounds = 500
	const kind = "bench"
	s, err := stack.Start(ctx, stack.Config{Bin: e.bin, Dir: e.dir, NoAgent: true})
	if err != nil {
		return err
	}
	defer func() {
		if stopErr := s.Stop(); err == nil {
			err = stopErr
		}
	}()
	c, err := linked(ctx, s, kind)
	if err != nil {
		return err
	}
	defer c.Close()
	latencies := make([]time.Duration, 0, rounds)
	for i := range rounds {
		var job *protocol.Job
		var pollErr error
		var answered time.Time
		var poll sync.WaitGroup
		poll.Go(func() {
			job, pollErr = c.NextJob(ctx, protocol.PollRequest{PollID: fmt.Sprintf("p%d", i), Wait: 20 * time.Second, Types: []string{kind}})
			answered = time.Now()
		})
		// The poll must be held by then; a poll that comes later than the job is answered at once and would flatter.
		time.Sleep(10 * time.Millisecond)
		asked := time.Now()
		if _, _, err := s.Admin.Submit(ctx, adminclient.Submission{Type: kind}); err != nil {
			return err
		}
		poll.Wait()
		if pollErr != nil || job == nil {
			return fmt.Errorf("poll %d: job %v: %w", i, job, pollErr)
		}
		latencies = append(latencies, answered.Sub(asked))
		done := protocol.Completion{Attempt: job.Attempt, LeaseToken: job.LeaseToken, Outcome: protocol.Failed, StartedAt: asked, FinishedAt: answered}
		if err := c.Complete(ctx, job.ID, done); err != nil {
			return err
		}
	}
	r.percentiles("job submitted → poll answered", latencies, 20*time.Millisecond)
	return nil
}
