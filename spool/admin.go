package spool

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
)

// AdminPath is where AdminHandler wants to be mounted.
const AdminPath = "/v1/spool/"

// AdminHandler shows a spool in use to whoever may reach the admin socket:
//
//	GET    /v1/spool/attempts                    JSON list of AttemptInfo, kept ones included
//	GET    /v1/spool/batches?attempt=…&from=N    stream of batches and holes, see appendFrame
//	GET    /v1/spool/dead                        stream of dead letters
//	GET    /v1/spool/stats                       JSON Stats
//	DELETE /v1/spool/attempts?attempt=…          gives an attempt's batches up
//	DELETE /v1/spool/dead?id=…                   deletes a dead letter
//
// Who may do which is the caller's business.
func AdminHandler(s *Spool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+AdminPath+"attempts", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		list := s.list(true)
		s.mu.Unlock()
		writeJSON(w, list)
	})
	mux.HandleFunc("GET "+AdminPath+"stats", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, s.Stats()) })
	mux.HandleFunc("GET "+AdminPath+"batches", func(w http.ResponseWriter, r *http.Request) {
		from, err := strconv.ParseInt(r.URL.Query().Get("from"), 10, 64)
		if err != nil {
			http.Error(w, `{"error":"from is no number"}`, http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		for b, err := range s.Batches(r.URL.Query().Get("attempt"), from) {
			if _, err := w.Write(appendFrame(nil, b, err)); err != nil || r.Context().Err() != nil {
				return // the client is gone
			}
		}
		_, _ = w.Write([]byte{frameEnd})
	})
	mux.HandleFunc("GET "+AdminPath+"dead", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		for d, err := range s.DeadLetters() {
			if err != nil {
				_, _ = w.Write(appendFrame(nil, Batch{}, err))
				continue
			}
			head, _ := json.Marshal(deadHeader{d.Batch.Attempt, d.Batch.First, d.Batch.Count, d.Reason, d.Time, d.Meta}) // strings and numbers
			_, _ = w.Write(appendBlob([]byte{frameDead}, []byte(d.ID), head))
			_, _ = w.Write(appendFrame(nil, d.Batch, nil))
		}
		_, _ = w.Write([]byte{frameEnd})
	})
	mux.HandleFunc("DELETE "+AdminPath+"attempts", func(w http.ResponseWriter, r *http.Request) {
		adminAnswer(w, s.Remove(r.Context(), r.URL.Query().Get("attempt")))
	})
	mux.HandleFunc("DELETE "+AdminPath+"dead", func(w http.ResponseWriter, r *http.Request) {
		adminAnswer(w, s.RemoveDead(r.Context(), r.URL.Query().Get("id")))
	})
	return mux
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

func adminAnswer(w http.ResponseWriter, err error) {
	if err == nil {
		writeJSON(w, struct{}{})
		return
	}
	status := http.StatusInternalServerError
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, ErrUnknown) {
		status = http.StatusNotFound
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	writeJSON(w, map[string]string{"error": err.Error()})
}

// A stream of batches is frames: a kind and blobs, each a length (u32, big-endian) and bytes.
const (
	frameBatch = 'b' // key, value
	frameHole  = 'h' // JSON HoleError
	frameError = 'x' // text: what follows can't be read for now
	frameDead  = 'd' // id, JSON header; the batch follows
	frameEnd   = 'e'
)

func appendBlob(dst []byte, blobs ...[]byte) []byte {
	for _, b := range blobs {
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(b)))
		dst = append(dst, b...)
	}
	return dst
}

func appendFrame(dst []byte, b Batch, err error) []byte {
	if h, ok := errors.AsType[*HoleError](err); ok {
		text, _ := json.Marshal(h) // strings and numbers
		return appendBlob(append(dst, frameHole), text)
	}
	if err != nil {
		return appendBlob(append(dst, frameError), []byte(err.Error()))
	}
	k := appendKey(nil, key{kind: kindBatch, attempt: b.Attempt, first: b.First, next: b.Next()})
	h := header{encoding: b.Encoding, count: b.Count, decoded: b.Decoded, stored: b.Stored.UnixMicro()}
	return appendBlob(append(dst, frameBatch), k, appendValue(nil, k, h, b.Data))
}

func readBlob(r io.Reader) ([]byte, error) {
	var n [4]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(n[:])
	if size > maxData+valueHeader {
		return nil, fmt.Errorf("blob of %d bytes", size)
	}
	b := make([]byte, size)
	_, err := io.ReadFull(r, b)
	return b, err
}

// streamFrame is one frame as it was read.
type streamFrame struct {
	batch Batch
	dead  *DeadLetter // without its batch, which is the next frame
	err   error       // *HoleError, or what the other side couldn't read
}

// readFrame returns io.EOF at the end of the stream; any other error means that it was cut.
func readFrame(r io.Reader) (streamFrame, error) {
	var kind [1]byte
	if _, err := io.ReadFull(r, kind[:]); err != nil {
		return streamFrame{}, fmt.Errorf("spool: stream was cut: %w", io.ErrUnexpectedEOF)
	}
	if kind[0] == frameEnd {
		return streamFrame{}, io.EOF
	}
	first, err := readBlob(r)
	if err != nil {
		return streamFrame{}, fmt.Errorf("spool: stream: %w", err)
	}
	switch kind[0] {
	case frameHole:
		h := new(HoleError)
		if err := json.Unmarshal(first, h); err != nil || h.First >= h.Next {
			return streamFrame{}, fmt.Errorf("spool: stream: hole %q", first)
		}
		return streamFrame{err: h}, nil
	case frameError:
		return streamFrame{err: errors.New(string(first))}, nil
	}
	second, err := readBlob(r)
	if err != nil {
		return streamFrame{}, fmt.Errorf("spool: stream: %w", err)
	}
	switch kind[0] {
	case frameBatch:
		b, err := parseBatch(first, second)
		if err != nil {
			return streamFrame{}, fmt.Errorf("spool: stream: %w", err)
		}
		return streamFrame{batch: b}, nil
	case frameDead:
		var h deadHeader
		if err := json.Unmarshal(second, &h); err != nil {
			return streamFrame{}, fmt.Errorf("spool: stream: %w", err)
		}
		return streamFrame{dead: &DeadLetter{ID: string(first), Reason: h.Reason, Time: h.Time, Meta: h.Meta}}, nil
	}
	return streamFrame{}, fmt.Errorf("spool: stream: frame of kind %q", kind[0])
}
