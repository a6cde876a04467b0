package controlplane

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

const (
	defaultAttempts = 3
	maxAttempts     = 1000 // above it a broken job would be tried for days
	defaultGrace    = 10 * time.Second
	maxEnv          = 256  // variables of a job
	maxEnvChars     = 4096 // of one name or value; what is larger belongs into the payload
)

var retryable = []protocol.Outcome{protocol.Lost, protocol.Failed, protocol.TimedOut}

// submission reads and defaults a new job.
func (s *Server) submission(o *object) (store.NewJob, error) {
	l := s.cfg.Limits
	const maxLabels = 64
	n := store.NewJob{
		Type:           o.str("type", true, l.Name),
		Payload:        o.json("payload", l.Payload),
		Env:            o.strMap("env", maxEnv, maxEnvChars),
		AgentID:        o.id("agentId", false),
		Labels:         o.strMap("labels", maxLabels, l.Name),
		MaxAttempts:    int(o.int("maxAttempts", false, 1, maxAttempts, defaultAttempts)),
		Timeout:        o.millis("timeoutMs", 0),
		Grace:          o.millis("graceMs", defaultGrace),
		Exclusive:      o.bool("exclusive", false),
		IdempotencyKey: o.str("idempotencyKey", false, l.Key),
		RetryOn:        []protocol.Outcome{protocol.Lost},
	}
	if o.fault == nil && n.Type == "" {
		o.fail("type", "is empty")
	}
	for k := range n.Env {
		if strings.ContainsAny(k, "=\x00") || strings.Contains(n.Env[k], "\x00") {
			o.fail("env", "no process can have such a variable")
		}
	}
	if _, ok := o.get("retryOn", false); ok {
		n.RetryOn = []protocol.Outcome{}
		for _, r := range o.strs("retryOn", len(retryable), l.Name) {
			if !slices.Contains(retryable, protocol.Outcome(r)) {
				o.fail("retryOn", "takes lost, failed, timedOut only")
			}
			if !slices.Contains(n.RetryOn, protocol.Outcome(r)) {
				n.RetryOn = append(n.RetryOn, protocol.Outcome(r))
			}
		}
		slices.Sort(n.RetryOn)
	}
	if n.Payload == nil {
		n.Payload = json.RawMessage("{}")
	}
	if err := o.err(); err != nil {
		return n, err
	}
	var err error
	n.BodySum, err = bodySum(n)
	return n, err
}

// bodySum is the same for two submissions that mean the same: order of members, spaces and spelled-out defaults don't count.
func bodySum(n store.NewJob) (store.Sum, error) {
	dec := json.NewDecoder(bytes.NewReader(n.Payload))
	dec.UseNumber() // numbers are compared as they are written: as floats, two large ones could be one
	var payload any
	if err := dec.Decode(&payload); err != nil {
		return store.Sum{}, invalid("payload: can't be read: %v", err)
	}
	// Maps are written with sorted keys. Nothing that the server makes itself may be in here.
	canonical, err := json.Marshal([]any{
		n.Type, payload, mapOr(n.Env), n.AgentID, mapOr(n.Labels), n.MaxAttempts, n.RetryOn, n.Timeout, n.Grace, n.Exclusive,
	})
	if err != nil {
		return store.Sum{}, fmt.Errorf("controlplane: canonical submission: %w", err)
	}
	return sha256.Sum256(canonical), nil
}

// submit stores a new job.
func (s *Server) submit(c *call) error {
	o, err := c.object(false)
	if err != nil {
		return err
	}
	n, err := s.submission(o)
	if err != nil {
		return err
	}
	n.ID = newID("job_")
	job, created, err := s.store.Submit(c.ctx(), n)
	if err != nil {
		return err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return s.answerJob(c, status, job)
}
