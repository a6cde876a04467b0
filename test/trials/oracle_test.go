package trials

import (
	"bytes"
	"fmt"
	"testing"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

// printed makes a stream of a job once more, to be compared with what arrived.
type printed struct {
	w      work
	stream protocol.Stream
	n      int64
	rest   []byte
}

// take is the stream's next size bytes, fewer where it ends.
func (p *printed) take(size int) []byte {
	for len(p.rest) < size && (p.w.Lines == 0 || p.n < p.w.Lines) {
		p.n++
		third := p.w.Both && p.n%3 == 0
		if third == (p.stream == protocol.Stderr) {
			p.rest = appendLine(p.rest, p.n, p.w.Size)
		}
	}
	out := p.rest[:min(size, len(p.rest))]
	p.rest = p.rest[len(out):]
	return out
}

// held reads the log of one attempt as the control plane holds it and compares it with what the job prints:
// numbers dense from 0, no gap, each stream byte for byte from its beginning. It returns how many bytes of each
// stream there are.
func (w *world) held(t *testing.T, j adminclient.Job, attempt int64, does work) map[protocol.Stream]int64 {
	t.Helper()
	got := map[protocol.Stream]int64{}
	want := map[protocol.Stream]*printed{
		protocol.Stdout: {w: does, stream: protocol.Stdout}, protocol.Stderr: {w: does, stream: protocol.Stderr},
	}
	var next int64
	for r, err := range w.Admin.Logs(t.Context(), j.ID, adminclient.LogOptions{Attempt: attempt}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.N != next {
			t.Fatalf("job %s: record %d comes where %d is due", j.ID, r.N, next)
		}
		next = r.Next()
		if r.Gap > 0 {
			t.Fatalf("job %s: record %d is a gap of %d: %s", j.ID, r.N, r.Gap, r.Reason)
		}
		if r.Stream == protocol.Remark {
			continue
		}
		text := append([]byte(r.Text), r.Bytes...)
		if !r.Part && !r.EOF {
			text = append(text, '\n')
		}
		if was := want[r.Stream].take(len(text)); !bytes.Equal(was, text) {
			t.Fatalf("job %s: record %d (%s) is %.100q, and the job printed %.100q", j.ID, r.N, r.Stream, text, was)
		}
		got[r.Stream] += int64(len(text))
	}
	at := j.Attempt(attempt)
	if at.LogRecords == nil || *at.LogRecords != next {
		t.Errorf("job %s: the log has %d records, and its length is said to be %v", j.ID, next, at.LogRecords)
	}
	return got
}

// whole checks that the control plane holds exactly what the job printed, after one attempt.
func (w *world) whole(t *testing.T, j adminclient.Job, does work) {
	t.Helper()
	if len(j.Attempts) != 1 {
		t.Fatalf("job %s: %d attempts, want 1: %+v", j.ID, len(j.Attempts), j.Attempts)
	}
	got := w.held(t, j, 1, does)
	size := int64(does.Size)
	want := map[protocol.Stream]int64{protocol.Stdout: does.Lines * size}
	if does.Both {
		want[protocol.Stderr] = does.Lines / 3 * size
		want[protocol.Stdout] -= want[protocol.Stderr]
	}
	for s, n := range want {
		if got[s] != n {
			t.Errorf("job %s: %d bytes of stream %s arrived, want %d", j.ID, got[s], s, n)
		}
	}
}

// cut checks the log of a job that died with the agent: what the agent had read of it is there, and nothing else.
func (w *world) cut(t *testing.T, j adminclient.Job, attempt int64, does work) {
	t.Helper()
	got, said := w.held(t, j, attempt, does)[protocol.Stdout], does.truth(t)
	if got < said.Read || said.Read == 0 || said.Broken && got != said.Read {
		t.Errorf("job %s: %d bytes arrived, and the agent had read %d (for good: %v)", j.ID, got, said.Read, said.Broken)
	}
	t.Logf("job %s: %d bytes arrived; %d had been read (for good: %v), the pipe had taken %d", j.ID, got, said.Read, said.Broken, said.Written)
}

// numberOf reads a line's number.
func numberOf(line string) (n int64, ok bool) {
	_, err := fmt.Sscanf(line, "n=%d ", &n)
	return n, err == nil
}
