package spool

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
)

// The files cursors, holes and those in dead/ begin with a line
//
//	agentd-spool <kind> 1 <CRC-32C of all that follows, 8 hex digits>
//
// and go on with JSON. cursors is a cache: {"<attempt>":{"next","end","state","meta"}}. holes is
// what was given up knowingly and can't be told from the batches: {"<attempt>":{"meta","holes":[…]}}.
const (
	kindCursors = "cursors"
	kindHoles   = "holes"
	kindDead    = "dead"

	// maxStateFile bounds what a file that isn't ours may make us read.
	maxStateFile = 256 << 20
)

func frame(kind string, body []byte) []byte {
	return append(fmt.Appendf(nil, "agentd-spool %s 1 %08x\n", kind, crc32.Checksum(body, castagnoli)), body...)
}

func unframe(kind string, b []byte) ([]byte, error) {
	line, body, ok := bytes.Cut(b, []byte("\n"))
	if want := fmt.Sprintf("agentd-spool %s 1 %08x", kind, crc32.Checksum(body, castagnoli)); !ok || string(line) != want {
		return nil, fmt.Errorf("%s file is damaged", kind)
	}
	return body, nil
}

func readFramed(path, kind string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxStateFile {
		return nil, fmt.Errorf("%s file of %d bytes", kind, info.Size())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return unframe(kind, b)
}

type cursor struct {
	Next  int64  `json:"next"` // -1 = not known
	End   int64  `json:"end"`
	State State  `json:"state,omitzero"`
	Meta  []byte `json:"meta,omitempty"`
}

type holesOf struct {
	Meta  []byte `json:"meta,omitempty"`
	Holes []hole `json:"holes"`
}

// writeCursors is called by the writer, at most once a second, and at the end.
func (s *Spool) writeCursors(durable bool) error {
	s.mu.Lock()
	cs := map[string]cursor{}
	for _, e := range s.epochs {
		for id := range e.spans {
			cs[id] = cursor{}
		}
	}
	for id, a := range s.attempts {
		if _, held := cs[id]; held || len(a.holes) > 0 || a.end > max(a.acked, 0) {
			cs[id] = cursor{Next: a.acked, End: a.end, State: a.state, Meta: a.meta}
		}
	}
	s.mu.Unlock()
	body, err := json.Marshal(cs)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(s.cfg.Dir, cursorsName), frame(kindCursors, body), durable)
}

// writeHoles is durable before what it stands for goes. What can't be written now is tried again with the next tick.
func (s *Spool) writeHoles() (err error) {
	defer func() {
		if err != nil {
			s.mu.Lock()
			s.holesDirty = true
			s.mu.Unlock()
		}
	}()
	s.mu.Lock()
	hs := map[string]holesOf{}
	for id, a := range s.attempts {
		if len(a.holes) > 0 {
			hs[id] = holesOf{Meta: a.meta, Holes: slices.Clone(a.holes)}
		}
	}
	s.holesDirty = false
	s.mu.Unlock()
	body, err := json.Marshal(hs)
	if err != nil {
		return err
	}
	return replaceFile(filepath.Join(s.cfg.Dir, holesName), frame(kindHoles, body), true)
}

// stateFiles reads both. One that is damaged is named, and counts as empty.
func stateFiles(dir string) (cs map[string]cursor, hs map[string]holesOf, damaged map[string]error) {
	damaged = map[string]error{}
	read := func(name, kind string, into any) {
		body, err := readFramed(filepath.Join(dir, name), kind)
		if err == nil {
			err = json.Unmarshal(body, into)
		}
		if err != nil && !os.IsNotExist(err) {
			damaged[name] = err
		}
	}
	read(cursorsName, kindCursors, &cs)
	read(holesName, kindHoles, &hs)
	return cs, hs, damaged
}

// addHole keeps the list sorted and joins what touches. Needs mu.
func (a *attempt) addHole(h hole) {
	if h.First = max(h.First, a.acked); h.First >= h.Next {
		return
	}
	a.holes = append(a.holes, h)
	slices.SortFunc(a.holes, func(x, y hole) int { return int(min(max(x.First-y.First, -1), 1)) })
	joined := a.holes[:1]
	for _, h := range a.holes[1:] {
		last := &joined[len(joined)-1]
		if h.First <= last.Next && h.Reason == last.Reason {
			last.Next = max(last.Next, h.Next)
			continue
		}
		joined = append(joined, h)
	}
	a.holes = joined
	a.end = max(a.end, h.Next)
}
