package controlplane

import (
	"context"
	"errors"
	"net/http"
	"time"

	"go.uber.org/zap"

	"agentd/controlplane-mock/store"
)

func (s *Server) listAgents(c *call) error {
	q, err := c.query()
	if err != nil {
		return err
	}
	after, limit, err := s.page(q)
	if err != nil {
		return err
	}
	agents, next, err := s.store.Agents(c.ctx(), after, limit)
	if err != nil {
		return err
	}
	page := Page[AgentView]{Items: make([]AgentView, 0, len(agents)), Next: next}
	for _, a := range agents {
		page.Items = append(page.Items, viewAgent(a))
	}
	return c.answer(http.StatusOK, page)
}

func (s *Server) getAgent(c *call) error { return s.onAgent(c, "", s.store.Agent) }

func (s *Server) revokeAgent(c *call) error {
	return s.onAgent(c, "revoke", func(ctx context.Context, id string) (store.Agent, error) { return s.store.SetRevoked(ctx, id, true) })
}

func (s *Server) restoreAgent(c *call) error {
	return s.onAgent(c, "restore", func(ctx context.Context, id string) (store.Agent, error) { return s.store.SetRevoked(ctx, id, false) })
}

func (s *Server) expireKey(c *call) error { return s.onAgent(c, "expire-key", s.store.ExpireKeys) }

// onAgent does something to one agent and answers with it. What changes something is audited.
func (s *Server) onAgent(c *call, audit string, do func(ctx context.Context, id string) (store.Agent, error)) error {
	id, err := c.pathID()
	if err != nil {
		return err
	}
	a, err := do(c.ctx(), id)
	if err != nil {
		return err
	}
	if audit != "" {
		s.log.Info("agent changed", zap.String("audit", audit), zap.String("agent", a.ID), zap.String("name", a.Name),
			zap.Stringer("address", address(c.Request)))
	}
	return c.answer(http.StatusOK, viewAgent(a))
}

const (
	defaultTokenTTL = time.Hour // from minting to linking, by hand
	maxTokenTTL     = 366 * 24 * time.Hour
	maxTokenUses    = 1_000_000
)

// mintToken makes an enrolment token. It is shown once; the store has its sum.
func (s *Server) mintToken(c *call) error {
	o, err := c.object(true)
	if err != nil {
		return err
	}
	ttl := time.Duration(o.int("ttlMs", false, 1, maxTokenTTL.Milliseconds(), defaultTokenTTL.Milliseconds())) * time.Millisecond
	uses := int(o.int("maxUses", false, 1, maxTokenUses, 1))
	agentID := o.id("agentId", false)
	if err := o.err(); err != nil {
		return err
	}
	token := newSecret(enrolPrefix)
	switch err := s.store.PutToken(c.ctx(), store.Token{Sum: SumOf(token), TTL: ttl, MaxUses: uses, AgentID: agentID}); {
	case errors.Is(err, store.ErrNotFound):
		return invalid("agentId: no such agent")
	case err != nil:
		return err
	}
	s.log.Info("enrolment token minted", zap.String("audit", "mint"), zap.Int("uses", uses), zap.Duration("ttl", ttl),
		zap.String("agent", agentID), zap.Stringer("address", address(c.Request)))
	return c.answer(http.StatusCreated, map[string]string{"token": token})
}
