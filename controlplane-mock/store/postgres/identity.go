package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"agentd/controlplane-mock/store"
	"agentd/controlplane-mock/store/rules"
)

// PutNonce stores a nonce, and drops some that ended.
func (s *Store) PutNonce(ctx context.Context, nonce store.Sum, publicKey []byte, ttl time.Duration) error {
	return s.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue("delete from nonces where sum in (select sum from nonces where expires < clock_timestamp() limit 2 for update skip locked)")
		b.Queue("insert into nonces values ($1, $2, clock_timestamp() + $3::bigint * interval '1 microsecond')", nonce[:], publicKey, ttl.Microseconds())
		return tx.SendBatch(ctx, b).Close()
	})
}

// TakeNonce uses a nonce up.
func (s *Store) TakeNonce(ctx context.Context, nonce store.Sum, publicKey []byte) (bool, error) {
	ctx, ended, err := s.change(ctx)
	if err != nil {
		return false, err
	}
	defer ended()
	tag, err := s.pool.Exec(ctx, "delete from nonces where sum = $1 and public_key = $2 and expires > clock_timestamp()", nonce[:], publicKey)
	return err == nil && tag.RowsAffected() == 1, wrap(err)
}

// PutToken stores an enrolment token, and drops those that ended.
func (s *Store) PutToken(ctx context.Context, t store.Token) error {
	doc, err := json.Marshal(rules.Enrolment{MaxUses: t.MaxUses, AgentID: t.AgentID})
	if err != nil {
		return wrap(err)
	}
	return s.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if t.AgentID != "" {
			if _, err := readAgent(ctx, tx, "id = $1", t.AgentID); err != nil {
				return err
			}
		}
		b := &pgx.Batch{}
		b.Queue("delete from enrolments where expires < clock_timestamp()")
		b.Queue("insert into enrolments values ($1, $2, clock_timestamp() + $3::bigint * interval '1 microsecond')", t.Sum[:], doc, t.TTL.Microseconds())
		return tx.SendBatch(ctx, b).Close()
	})
}

// agent is an agent as it is stored.
type agent struct {
	store.Agent
	seq       int64
	publicKey []byte
}

func (a *agent) party() *rules.Party {
	if a == nil {
		return nil
	}
	return &rules.Party{ID: a.ID, PublicKey: a.publicKey, Revoked: a.Revoked}
}

const agentColumns = "a.seq, a.doc, a.public_key, a.last_seen"

func (a *agent) scan(r pgx.Row, more ...any) error {
	var doc []byte
	if err := r.Scan(append([]any{&a.seq, &doc, &a.publicKey, &a.LastSeen}, more...)...); err != nil {
		return err
	}
	seen := a.LastSeen.UTC()
	if err := json.Unmarshal(doc, &a.Agent); err != nil {
		return err
	}
	a.LastSeen = seen
	return nil
}

func readAgent(ctx context.Context, tx pgx.Tx, where string, args ...any) (*agent, error) {
	var a agent
	return &a, a.scan(tx.QueryRow(ctx, "select "+agentColumns+" from agents a where "+where, args...))
}

// maybeAgent is nil where there is none.
func maybeAgent(ctx context.Context, tx pgx.Tx, where string, args ...any) (*agent, error) {
	a, err := readAgent(ctx, tx, where, args...)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil //nolint:nilnil // none is an answer
	}
	return a, err
}

// linkLock is the advisory lock of links: they are few, and whether a key pair is new depends on all of them.
const linkLock = 0x6c696e6b

// Link settles who an agent is.
func (s *Store) Link(ctx context.Context, p store.LinkParams) (store.Linked, error) {
	var out store.Linked
	ctx, ended, err := s.change(ctx)
	if err != nil {
		return out, err
	}
	defer ended()
	err = s.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock(hashtextextended($1, $2))", s.channel, linkLock); err != nil {
			return err
		}
		old, err := s.identify(ctx, tx, &p)
		if err != nil {
			return err
		}
		a, err := s.admit(ctx, tx, old, &p)
		if err != nil {
			return err
		}
		out = store.Linked{Agent: *a, First: p.Token != nil}
		return nil
	})
	if err == nil {
		s.tell(store.Event{Kind: store.EventAgentChanged, AgentID: out.Agent.ID})
	}
	return out, err
}

func (s *Store) identify(ctx context.Context, tx pgx.Tx, p *store.LinkParams) (*agent, error) {
	owner, err := maybeAgent(ctx, tx, "public_key = $1", p.PublicKey)
	if err != nil {
		return nil, err
	}
	named, err := maybeAgent(ctx, tx, "id = $1", p.AgentID)
	if err != nil {
		return nil, err
	}
	facts := rules.LinkFacts{Owner: owner.party(), Named: named.party()}
	if p.Token != nil {
		if facts.Token, err = readEnrolment(ctx, tx, *p.Token); err != nil {
			return nil, err
		}
	}
	if facts.Token != nil {
		bound, err := maybeAgent(ctx, tx, "id = $1", facts.Token.AgentID)
		if err != nil {
			return nil, err
		}
		facts.Bound = bound.party()
	}
	id, use, err := rules.Identify(p, facts)
	if err != nil {
		return nil, err
	}
	if use {
		doc, err := json.Marshal(facts.Token.Use(p, cmp.Or(id, p.NewAgentID)))
		if err != nil {
			return nil, err
		}
		if _, err := tx.Exec(ctx, "update enrolments set doc = $2 where sum = $1", p.Token[:], doc); err != nil {
			return nil, err
		}
	}
	return maybeAgent(ctx, tx, "id = $1", id)
}

func readEnrolment(ctx context.Context, tx pgx.Tx, sum store.Sum) (*rules.Enrolment, error) {
	var doc []byte
	err := tx.QueryRow(ctx, "select doc from enrolments where sum = $1 and expires > clock_timestamp()", sum[:]).Scan(&doc)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil //nolint:nilnil // none is an answer
	}
	if err != nil {
		return nil, err
	}
	var e rules.Enrolment
	return &e, json.Unmarshal(doc, &e)
}

// maxKeys bounds the API keys of one agent that is restarted over and over. Over it the oldest goes.
const maxKeys = 64

func (s *Store) admit(ctx context.Context, tx pgx.Tx, old *agent, p *store.LinkParams) (*store.Agent, error) {
	var a store.Agent
	if old != nil {
		a = old.Agent
	} else {
		a.ID = p.NewAgentID
		if err := tx.QueryRow(ctx, "select clock_timestamp()").Scan(&a.CreatedAt); err != nil {
			return nil, err
		}
	}
	a.AgentInfo = p.Info
	if p.Start {
		a.ProcessID = p.ProcessID
	}
	doc, err := json.Marshal(&a)
	if err != nil {
		return nil, err
	}
	b := &pgx.Batch{}
	if old != nil && string(old.publicKey) != string(p.PublicKey) {
		b.Queue("delete from api_keys where agent_id = $1", a.ID) // taken over: the old key pair and its API keys end at once
	}
	b.Queue(`insert into agents (id, doc, public_key) values ($1, $2, $3) on conflict (id) do update
		set doc = excluded.doc, public_key = excluded.public_key, changed_at = excluded.changed_at, last_seen = excluded.last_seen`, a.ID, doc, p.PublicKey)
	b.Queue("delete from api_keys where agent_id = $1 and expires <= clock_timestamp()", a.ID)
	// Calls in flight still succeed; another process's keys are none of this one's business.
	b.Queue(`update api_keys set expires = least(expires, clock_timestamp() + $3::bigint * interval '1 microsecond')
		where agent_id = $1 and process_id = $2`, a.ID, p.ProcessID, p.KeyOverlap.Microseconds())
	b.Queue("insert into api_keys values ($1, $2, $3, clock_timestamp() + $4::bigint * interval '1 microsecond')", p.Key[:], a.ID, p.ProcessID, p.KeyTTL.Microseconds())
	b.Queue("delete from api_keys where sum in (select sum from api_keys where agent_id = $1 order by expires desc offset $2)", a.ID, maxKeys)
	return &a, tx.SendBatch(ctx, b).Close()
}

// Agent finds an agent by id.
func (s *Store) Agent(ctx context.Context, id string) (store.Agent, error) {
	ctx, ended, err := s.begin(ctx)
	if err != nil {
		return store.Agent{}, err
	}
	defer ended()
	var a agent
	if err = s.writeStamps(ctx); err == nil { // people see what they just did
		err = a.scan(s.pool.QueryRow(ctx, "select "+agentColumns+" from agents a where id = $1", id))
	}
	return a.Agent, wrap(err)
}

// Agents lists agents, oldest first. The cursor is the last one's number.
func (s *Store) Agents(ctx context.Context, after string, limit int) ([]store.Agent, string, error) {
	ctx, ended, err := s.begin(ctx)
	if err != nil {
		return nil, "", err
	}
	defer ended()
	from := int64(0)
	if after != "" {
		if from, err = strconv.ParseInt(after, 10, 64); err != nil {
			return nil, "", store.ErrNotFound
		}
	}
	if limit <= 0 {
		limit = 1 << 30
	}
	if err := s.writeStamps(ctx); err != nil {
		return nil, "", wrap(err)
	}
	rows, err := s.pool.Query(ctx, "select "+agentColumns+" from agents a where seq > $1 order by seq limit $2", from, limit+1)
	if err != nil {
		return nil, "", wrap(err)
	}
	defer rows.Close()
	var items []store.Agent
	next, last := "", int64(0)
	for rows.Next() {
		var a agent
		if err := a.scan(rows); err != nil {
			return nil, "", wrap(err)
		}
		if len(items) == limit {
			next = strconv.FormatInt(last, 10)
			continue
		}
		items, last = append(items, a.Agent), a.seq
	}
	return items, next, wrap(rows.Err())
}

// SetRevoked shuts an agent out, or lets it in again.
func (s *Store) SetRevoked(ctx context.Context, id string, revoked bool) (store.Agent, error) {
	return s.changeAgent(ctx, id, func(a *store.Agent, b *pgx.Batch) error {
		a.Revoked = revoked
		doc, err := json.Marshal(a)
		b.Queue("update agents set doc = $2 where id = $1", id, doc)
		return err
	})
}

// ExpireKeys ends all API keys of an agent.
func (s *Store) ExpireKeys(ctx context.Context, id string) (store.Agent, error) {
	return s.changeAgent(ctx, id, func(_ *store.Agent, b *pgx.Batch) error {
		b.Queue("delete from api_keys where agent_id = $1", id)
		return nil
	})
}

func (s *Store) changeAgent(ctx context.Context, id string, f func(a *store.Agent, b *pgx.Batch) error) (store.Agent, error) {
	events := []store.Event{{Kind: store.EventAgentChanged, AgentID: id}}
	var out store.Agent
	err := s.tx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		a, err := readAgent(ctx, tx, "id = $1 for update", id)
		if err != nil {
			return err
		}
		b := &pgx.Batch{}
		if err := f(&a.Agent, b); err != nil {
			return err
		}
		b.Queue("update agents set changed_at = clock_timestamp() where id = $1", id)
		// In the transaction, at the price that tell explains: who shuts an agent out wants it out everywhere, and these are few.
		b.Queue("select pg_notify($1, n) from unnest($2::text[]) as n", s.channel, s.notes(events))
		out = a.Agent
		return tx.SendBatch(ctx, b).Close()
	})
	if err == nil {
		s.hear(events)
	}
	return out, err
}
