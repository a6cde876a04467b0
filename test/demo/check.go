package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

// verdict is what the check of one job found.
type verdict struct {
	records int64
	bytes   int64
}

// check reads the job's log as the control plane holds it and compares it with the truth: numbers
// dense from 0, no gap, each stream byte for byte what the job printed, nothing after it.
func check(ctx context.Context, admin *adminclient.Client, job adminclient.Job, dir string) (v verdict, err error) {
	last := job.Last()
	if last == nil {
		return v, errors.New("no attempt was made")
	}
	if len(job.Attempts) != 1 {
		return v, fmt.Errorf("%d attempts were made, want 1", len(job.Attempts))
	}
	truth := map[protocol.Stream]*bufio.Reader{}
	for _, stream := range []protocol.Stream{protocol.Stdout, protocol.Stderr} {
		f, err := os.Open(filepath.Join(dir, string(stream)))
		if err != nil {
			return v, err
		}
		defer f.Close()
		truth[stream] = bufio.NewReaderSize(f, 1<<20)
	}
	for r, err := range admin.Logs(ctx, job.ID, adminclient.LogOptions{Attempt: last.Number}) {
		if err != nil {
			return v, err
		}
		if r.N != v.records {
			return v, fmt.Errorf("record %d comes where %d is due", r.N, v.records)
		}
		v.records = r.Next()
		if r.Gap > 0 {
			return v, fmt.Errorf("record %d: a gap of %d: %s", r.N, r.Gap, r.Reason)
		}
		want, printed := truth[r.Stream]
		if !printed {
			continue // the agent's own remark
		}
		got := append([]byte(r.Text), r.Bytes...)
		if !r.Part && !r.EOF {
			got = append(got, '\n')
		}
		was := make([]byte, len(got))
		if _, err := io.ReadFull(want, was); err != nil {
			return v, fmt.Errorf("record %d (%s) goes beyond what the job printed: %q", r.N, r.Stream, clip(got))
		}
		if !bytes.Equal(got, was) {
			return v, fmt.Errorf("record %d (%s) is %q, and the job printed %q", r.N, r.Stream, clip(got), clip(was))
		}
		v.bytes += int64(len(got))
	}
	for stream, rest := range truth {
		if n, err := io.Copy(io.Discard, rest); err != nil || n > 0 {
			return v, fmt.Errorf("the last %d bytes of stream %s are missing (%w)", n, stream, errors.Join(err, io.ErrUnexpectedEOF))
		}
	}
	if last.LogRecords == nil || *last.LogRecords != v.records {
		return v, fmt.Errorf("the log has %d records, and the agent reported %v", v.records, last.LogRecords)
	}
	return v, nil
}

func clip(b []byte) []byte { return b[:min(len(b), 120)] }
