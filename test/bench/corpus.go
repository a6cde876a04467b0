package main

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"
)

// corpus writes size bytes of 200-byte lines that look like a service's log: stamps, levels, ids and a
// few hundred words, so that they compress as real logs do (snappy to about 40 %, zstd to about 30 %).
func corpus(path string, size int64) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriterSize(f, 1<<20)
	rnd := rand.New(rand.NewPCG(1, 2)) // the same lines in every run
	words := make([]string, 300)
	for i := range words {
		b := make([]byte, 3+rnd.IntN(8))
		for j := range b {
			b[j] = byte('a' + rnd.IntN(26))
		}
		words[i] = string(b)
	}
	levels := []string{"INFO", "INFO", "INFO", "DEBUG", "WARN"}
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	line := make([]byte, 0, 256)
	for n := int64(0); n < size; n += 200 {
		at = at.Add(time.Duration(rnd.IntN(2_000_000)))
		line = at.AppendFormat(line[:0], "2006-01-02T15:04:05.000000Z")
		line = fmt.Appendf(line, " %s request=%08x user=%d status=200 took=%dms", levels[rnd.IntN(len(levels))], rnd.Uint32(), rnd.IntN(5000), rnd.IntN(900))
		for len(line) < 199 {
			line = append(append(line, ' '), words[rnd.IntN(len(words))]...)
		}
		if _, err := w.Write(append(line[:199], '\n')); err != nil {
			return err
		}
	}
	return w.Flush()
}
