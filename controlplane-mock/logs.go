package controlplane

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/store"
)

// logClaim reads which attempt's log is meant and by what right. Everything that can't be a known attempt is unknown.
func (c *call) logClaim() (store.Ref, error) {
	id, err := c.pathID()
	if err != nil {
		return store.Ref{}, err
	}
	n, err := strconv.ParseInt(c.PathValue("n"), 10, 64)
	if err != nil || n < 0 {
		return store.Ref{}, notFound("no such attempt")
	}
	token := c.Header.Get("Agentd-Lease-Token")
	if token == "" {
		return store.Ref{}, notFound("Agentd-Lease-Token: is required")
	}
	return c.proven(store.Ref{JobID: id, Attempt: n, AgentID: c.auth.Agent.ID}, token)
}

// logNext answers what is stored.
func (s *Server) logNext(c *call) error {
	ref, err := c.logClaim()
	if err != nil {
		return err
	}
	next, err := s.store.LogNext(c.ctx(), ref)
	if err != nil {
		return err
	}
	return c.answer(http.StatusOK, protocol.Next{Next: next})
}

// appendLog checks a batch and stores it as it came. Its answer is what lets the agent forget.
func (s *Server) appendLog(c *call) error {
	ref, err := c.logClaim()
	if err != nil {
		return err
	}
	batch, err := c.batchQuery()
	if err != nil {
		return err
	}
	if err := c.wantType("application/x-ndjson"); err != nil {
		return err
	}
	if batch.Encoding, err = c.logEncoding(); err != nil {
		return err
	}
	digest, err := contentDigest(c.Header.Values("Content-Digest"))
	if err != nil {
		return err
	}
	body, free, err := c.logBody()
	defer free()
	if err != nil {
		return err
	}
	if sha256.Sum256(body) != digest {
		return corrupt("Content-Digest: the body is not what was sent")
	}
	lim := decodeLimits{decoded: s.cfg.Limits.LogDecoded, record: s.cfg.Limits.Record, codecs: s.codecs}
	if batch.Decoded, err = checkBody(batch.Encoding, body, batch.Count, lim); err != nil {
		return err
	}
	batch.Body = body
	if batch.Count == 0 {
		batch.Body, batch.Decoded = nil, 0 // an empty frame is nothing to keep
	}
	batch.Trim = func(next int64) (store.LogBatch, error) {
		s.metrics.logCuts.Inc()
		return trimBatch(batch, next, lim)
	}
	next, err := s.store.AppendLog(c.ctx(), ref, batch)
	if err != nil {
		return err
	}
	s.metrics.logRecords.Add(float64(batch.Count))
	s.metrics.logBytes.Add(float64(len(body)))
	s.metrics.logDecoded.Add(float64(batch.Decoded))
	return c.answer(http.StatusOK, protocol.Next{Next: next})
}

func (c *call) batchQuery() (store.LogBatch, error) {
	q, err := c.query()
	if err != nil {
		return store.LogBatch{}, err
	}
	for _, name := range []string{"first", "count"} {
		if !q.Has(name) {
			return store.LogBatch{}, invalid("%s: is required", name)
		}
	}
	var b store.LogBatch
	if b.First, err = queryRange(q, "first", 0, maxWireInt-1, 0); err != nil {
		return b, err
	}
	if b.Count, err = queryRange(q, "count", 0, maxWireInt-1-b.First, 0); err != nil {
		return b, err
	}
	b.Final, err = queryBool(q, "final")
	return b, err
}

func (c *call) logEncoding() (string, error) {
	enc := strings.ToLower(strings.TrimSpace(c.Header.Get("Content-Encoding")))
	if enc == "" {
		enc = encIdentity
	}
	if enc != encIdentity && !slices.Contains(c.s.cfg.Encodings, enc) || len(c.Header.Values("Content-Encoding")) > 1 {
		p := newProblem(http.StatusUnsupportedMediaType, "invalid", "Content-Encoding: take one of %s, identity", strings.Join(c.s.cfg.Encodings, ", "))
		p.header = map[string]string{"Accept-Encoding": strings.Join(c.s.cfg.Encodings, ", ")}
		return "", p
	}
	return enc, nil
}

// contentDigest reads the sha-256 member of an RFC 9530 Content-Digest, a dictionary of byte sequences (RFC 8941).
func contentDigest(values []string) (sum [32]byte, err error) {
	found := false
	for member := range strings.SplitSeq(strings.Join(values, ","), ",") {
		name, value, _ := strings.Cut(strings.Trim(member, " \t"), "=")
		if name != "sha-256" {
			continue
		}
		value, _, _ = strings.Cut(value, ";") // parameters mean nothing to us
		value = strings.TrimRight(value, " \t")
		text, opened := strings.CutPrefix(value, ":")
		text, closed := strings.CutSuffix(text, ":")
		raw, err := base64.StdEncoding.DecodeString(text)
		if !opened || !closed || err != nil || len(raw) != len(sum) {
			return sum, invalid("Content-Digest: can't be read")
		}
		copy(sum[:], raw) // of two the last one counts, as in every dictionary
		found = true
	}
	if !found {
		return sum, invalid("Content-Digest: sha-256 is required")
	}
	return sum, nil
}

const (
	// firstBody is how much room a body gets before any of it has arrived. A client that only claims to send much gets no more than this.
	firstBody = 512 << 10
	// moreBody is how many times that it gets when it has sent as much: the usual bodies of up to 4 MiB then grow once. Doubling had
	// them copied, and their memory cleared, twice over.
	moreBody = 8
)

// logBody reads the body as sent. free gives its memory back to the count; it is never nil.
func (c *call) logBody() (body []byte, free func(), err error) {
	limit, rate := c.s.cfg.Limits.LogBody, c.s.cfg.Limits.BodyRate
	held := int64(0)
	free = func() { c.s.bodies.give(held) }
	if c.ContentLength > limit {
		return nil, free, tooLarge("the body is larger than %d bytes", limit)
	}
	size := limit
	if c.ContentLength >= 0 {
		size = c.ContentLength
	}
	lift := c.readDeadline(c.s.cfg.Limits.BodyTime + time.Duration(size)*time.Second/time.Duration(rate))
	src := http.MaxBytesReader(c.w, c.Body, limit)
	room := min(size, firstBody) + 1 // one more, so that the end is found without growing
	for {
		if !c.s.bodies.take(room - held) {
			return nil, free, unavailable(time.Second, "too many log bodies are on their way")
		}
		held = room
		body = append(make([]byte, 0, room), body...)
		for len(body) < cap(body) {
			n, err := src.Read(body[len(body):cap(body)])
			body = body[:len(body)+n]
			if errors.Is(err, io.EOF) {
				lift()
				return body, free, nil
			}
			if err != nil {
				return nil, free, bodyProblem(err, limit)
			}
		}
		room = min(moreBody*room, size+1)
	}
}
