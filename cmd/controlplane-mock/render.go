package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

// maxHeldLine bounds what is kept of one stream while another's line is still open: a longer line
// is broken rather than kept.
const maxHeldLine = 1 << 20

// textLog writes records as text: parts joined per stream, a gap as a line of its own. It is used by one goroutine.
type textLog struct {
	outs map[protocol.Stream]*lines
	gaps *lines
	mark string // stands before the agent's own remarks
}

// mergedLog writes all streams to one place, and byte for byte what the server's text format has.
func mergedLog(w io.Writer) *textLog {
	l := newLines(w)
	return &textLog{outs: map[protocol.Stream]*lines{protocol.Stdout: l, protocol.Stderr: l, protocol.Remark: l}, gaps: l}
}

// splitLog writes the job's standard output to out, and all else to err.
func splitLog(out, err io.Writer) *textLog {
	e := newLines(err)
	return &textLog{outs: map[protocol.Stream]*lines{protocol.Stdout: newLines(out), protocol.Stderr: e, protocol.Remark: e}, gaps: e, mark: "[agent] "}
}

func (t *textLog) write(r adminclient.LogRecord) {
	if r.Gap > 0 {
		t.gaps.line(gapLine(r.Record))
		return
	}
	l := t.outs[r.Stream]
	if l == nil {
		l = t.gaps // a stream of a later protocol: shown rather than lost
	}
	p := piece{stream: r.Stream, data: r.Bytes, part: r.Part, eof: r.EOF}
	if p.data == nil {
		p.data = []byte(r.Text)
	}
	if r.Stream == protocol.Remark {
		p.data = append([]byte(t.mark), p.data...)
	}
	l.write(p)
}

func gapLine(r protocol.Record) string {
	switch {
	case r.Reason == "":
		return fmt.Sprintf("[gap: %d records lost]", r.Gap)
	case strings.Trim(r.Reason, plain) == "":
		return fmt.Sprintf("[gap: %d records lost: %s]", r.Gap, r.Reason)
	}
	return fmt.Sprintf("[gap: %d records lost: %q]", r.Gap, r.Reason) // whatever it holds, it stays one line
}

// flush hands everything on; the error is the first that happened.
func (t *textLog) flush() error {
	var first error
	for _, l := range t.outs {
		if err := l.w.Flush(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// end writes what was kept for a line that never ended.
func (t *textLog) end() error {
	for _, l := range t.outs {
		l.release()
	}
	return t.flush()
}

// lines is one place that several streams write to, line by line.
type lines struct {
	w      *bufio.Writer // keeps the first error; asked for at flush
	open   protocol.Stream
	middle bool // the last thing written was not the end of a line
	held   []piece
	size   int
}

type piece struct {
	stream    protocol.Stream
	data      []byte
	part, eof bool
}

func newLines(w io.Writer) *lines { return &lines{w: bufio.NewWriterSize(w, 64<<10)} }

func (l *lines) write(p piece) {
	if l.open != "" && l.open != p.stream {
		l.held = append(l.held, p)
		if l.size += len(p.data); l.size > maxHeldLine {
			l.release()
		}
		return
	}
	if l.open == "" && p.stream == protocol.Remark {
		l.breakLine() // the agent's remarks stand on lines of their own; a job's output goes on where it stopped
	}
	l.w.Write(p.data) //nolint:errcheck // kept by the writer until flush
	l.middle = true
	switch {
	case p.part:
		l.open = p.stream
		return
	case !p.eof:
		l.w.WriteByte('\n') //nolint:errcheck // kept by the writer until flush
		l.middle = false
	}
	l.open = ""
	l.next()
}

// next writes what was held while the line that just ended was open.
func (l *lines) next() {
	held := l.held
	l.held, l.size = nil, 0
	for _, p := range held {
		l.write(p)
	}
}

// release gives the open line up, so that what waits behind it can be written.
func (l *lines) release() {
	for l.open != "" {
		l.open = ""
		if len(l.held) > 0 {
			l.breakLine()
		}
		l.next()
	}
}

// breakLine ends a line that had no newline before something else is written.
func (l *lines) breakLine() {
	if l.middle {
		l.w.WriteByte('\n') //nolint:errcheck // kept by the writer until flush
		l.middle = false
	}
}

// line writes a line of our own.
func (l *lines) line(s string) {
	l.release()
	l.breakLine()
	l.w.WriteString(s + "\n") //nolint:errcheck // kept by the writer until flush
}

// jsonRecord is a record as NDJSON, for programs: what the server's own format has.
type jsonRecord struct {
	N      int64           `json:"n"`
	Time   int64           `json:"ts"`
	Stream protocol.Stream `json:"s"`
	Text   *string         `json:"m,omitempty"`
	Bytes  []byte          `json:"b,omitempty"`
	Part   bool            `json:"part,omitempty"`
	EOF    bool            `json:"eof,omitempty"`
	Gap    int64           `json:"gap,omitempty"`
	Reason string          `json:"reason,omitempty"`
}

type jsonLog struct {
	w *bufio.Writer
	e *json.Encoder
}

func newJSONLog(out io.Writer) *jsonLog {
	w := bufio.NewWriterSize(out, 64<<10)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return &jsonLog{w, e}
}

func (j *jsonLog) write(r adminclient.LogRecord) {
	out := jsonRecord{N: r.N, Time: r.Time, Stream: r.Stream, Bytes: r.Bytes, Part: r.Part, EOF: r.EOF, Gap: r.Gap, Reason: r.Reason}
	if r.Gap == 0 && r.Bytes == nil {
		out.Text = &r.Text
	}
	j.e.Encode(out) //nolint:errcheck // kept by the writer until flush
}

func (j *jsonLog) flush() error { return j.w.Flush() }
func (j *jsonLog) end() error   { return j.w.Flush() }

// logSink takes records; one goroutine at a time.
type logSink interface {
	write(r adminclient.LogRecord)
	flush() error // everything written so far has been handed on
	end() error   // nothing more comes
}
