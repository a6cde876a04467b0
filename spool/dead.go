package spool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// A dead letter is a file dead/<number>: framed as the state files are, a line of JSON, then the key
// (its length first, one byte) and the value as an epoch would hold them.
type deadHeader struct {
	Attempt string    `json:"attempt"`
	First   int64     `json:"first"`
	Count   int64     `json:"count"`
	Reason  string    `json:"reason"`
	Time    time.Time `json:"time"`
	Meta    []byte    `json:"meta,omitempty"`
}

func deadName(n uint64) string { return fmt.Sprintf("%08d", n) }

// DeadLetter puts a batch that will never be taken where the operator finds it, durably. It counts
// towards the cap.
func (s *Spool) DeadLetter(b Batch, reason string) error {
	if err := validBatch(b); err != nil {
		return err
	}
	k := appendKey(nil, key{kind: kindBatch, attempt: b.Attempt, first: b.First, next: b.Next()})
	v := appendValue(nil, k, header{encoding: b.Encoding, count: b.Count, decoded: b.Decoded, stored: time.Now().UnixMicro()}, b.Data)
	return s.inRun(context.Background(), func() error {
		s.mu.Lock()
		err := s.takeDir()
		s.nextDead++
		n := s.nextDead
		var meta []byte
		if a := s.attempts[b.Attempt]; a != nil {
			meta = a.meta
		}
		s.mu.Unlock()
		if err == nil && !s.roomFor(int64(len(v))) {
			err = ErrFull
		}
		if err != nil {
			return s.deadError(err)
		}
		line, err := json.Marshal(deadHeader{b.Attempt, b.First, b.Count, reason, time.Now(), meta})
		if err != nil {
			return s.deadError(err)
		}
		body := append(line, '\n', byte(len(k)))
		body = append(append(body, k...), v...)
		path := filepath.Join(s.cfg.Dir, deadDir, deadName(n))
		if err := replaceFile(path, frame(kindDead, body), true); err != nil {
			return s.deadError(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dead++
		s.deadBytes += int64(len(body))
		return nil
	})
}

func (s *Spool) deadError(err error) error {
	if isFull(err) && !errors.Is(err, ErrFull) {
		err = fmt.Errorf("%w: %w", ErrFull, err)
	}
	return fmt.Errorf("spool: dead letter: %w", err)
}

// RemoveDead deletes one dead letter, as an operator asks for it.
func (s *Spool) RemoveDead(ctx context.Context, id string) error {
	return s.inRun(ctx, func() error {
		if filepath.Base(id) != id {
			return fmt.Errorf("spool: dead letter %q: %w", id, os.ErrNotExist)
		}
		if err := os.Remove(filepath.Join(s.cfg.Dir, deadDir, id)); err != nil { //nolint:gosec // a plain file name, as was checked
			return fmt.Errorf("spool: %w", err)
		}
		used := diskUsage(filepath.Join(s.cfg.Dir, deadDir))
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dead--
		s.deadBytes = used
		s.notify()
		return nil
	})
}

func readDead(dir, name string) (DeadLetter, error) {
	body, err := readFramed(filepath.Join(dir, deadDir, name), kindDead)
	if err != nil {
		return DeadLetter{}, err
	}
	line, rest, ok := bytes.Cut(body, []byte("\n"))
	var h deadHeader
	if err := json.Unmarshal(line, &h); err != nil || !ok || len(rest) < 1 || len(rest) < 1+int(rest[0]) {
		return DeadLetter{}, fmt.Errorf("dead letter %s doesn't parse", name)
	}
	b, err := parseBatch(rest[1:1+int(rest[0])], rest[1+int(rest[0]):])
	if err != nil {
		return DeadLetter{}, err
	}
	return DeadLetter{ID: name, Reason: h.Reason, Time: h.Time, Meta: h.Meta, Batch: b}, nil
}
