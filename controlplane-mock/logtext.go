package controlplane

import (
	"fmt"
	"io"
	"slices"

	"agentd/agent/protocol"
)

// logWriter shows records. flush puts out what is gathered; end comes after the last record.
type logWriter interface {
	record(n int64, line []byte, r *record) error
	flush() error
	end() error
}

// gathered is how much a log writer gathers before it writes.
const gathered = 64 << 10

// ndjsonWriter shows each record as it came, with its number.
type ndjsonWriter struct {
	w   io.Writer
	out []byte
}

func (x *ndjsonWriter) record(n int64, line []byte, r *record) error {
	if r.exact {
		x.out = fmt.Appendf(x.out, `{"n":%d,`, n)
		x.out = append(x.out, line[1:]...)
	} else {
		x.out = r.appendJSON(x.out, n)
	}
	x.out = append(x.out, '\n')
	if len(x.out) < gathered {
		return nil
	}
	return x.flush()
}

func (x *ndjsonWriter) flush() error {
	_, err := x.w.Write(x.out)
	x.out = x.out[:0]
	return err
}

func (x *ndjsonWriter) end() error { return x.flush() }

// textWriter shows a log as a terminal would have shown it. A line that comes in parts is written as it comes, since it may
// be larger than any memory; the lines of other streams wait until it has ended, so that none stands within another.
type textWriter struct {
	w    io.Writer
	out  []byte
	mid  bool            // the output doesn't stand at the start of a line
	open protocol.Stream // the stream whose parts are being written, "" for none
	held []heldRecord    // of other streams meanwhile
	size int             // bytes that went into held since it was empty
}

type heldRecord struct {
	stream    protocol.Stream
	content   []byte
	part, eof bool
}

// maxHeld bounds what waits for a line to end. Beyond it that line is broken: its parts stay in order, on two lines.
const maxHeld = 1 << 20

func (x *textWriter) record(_ int64, _ []byte, r *record) error {
	if r.kind == 'g' {
		x.release()
		x.freshLine()
		x.out = fmt.Appendf(x.out, "[gap: %d records lost", r.gap)
		switch {
		case isToken(r.reason, true):
			x.out = fmt.Appendf(x.out, ": %s", r.reason)
		case r.reason != "":
			x.out = fmt.Appendf(x.out, ": %q", r.reason) // whatever it holds, it stays one line
		}
		x.out = append(x.out, "]\n"...)
		return x.maybeFlush()
	}
	if x.open != "" && x.open != r.stream {
		content, err := r.appendContent(nil)
		if err != nil {
			return err
		}
		x.held = append(x.held, heldRecord{r.stream, content, r.part, r.eof})
		if x.size += len(content) + 64; x.size > maxHeld { // 64: about what an entry itself takes
			x.release()
		}
		return x.maybeFlush()
	}
	x.begin(r.stream)
	var err error
	if x.out, err = r.appendContent(x.out); err != nil {
		return err
	}
	if x.finish(r.stream, r.part, r.eof) {
		x.drain()
	}
	return x.maybeFlush()
}

// begin: the agent's own remarks stand on lines of their own; a job's output goes on where it stopped.
func (x *textWriter) begin(s protocol.Stream) {
	if s == protocol.Remark && x.open != s {
		x.freshLine()
	}
}

func (x *textWriter) freshLine() {
	if x.mid {
		x.out = append(x.out, '\n')
		x.mid = false
	}
}

// finish ends a record's content; true if its line has ended.
func (x *textWriter) finish(s protocol.Stream, part, eof bool) bool {
	switch {
	case part:
		x.open, x.mid = s, true
		return false
	case eof:
		x.open, x.mid = "", true
	default:
		x.out = append(x.out, '\n')
		x.open, x.mid = "", false
	}
	return true
}

// drain writes what waited for a line to end, up to the next line that hasn't.
func (x *textWriter) drain() {
	for len(x.held) > 0 && x.open == "" {
		held := x.held
		x.held = nil
		for i, h := range held {
			if x.open != "" && x.open != h.stream {
				x.held = append(x.held, h)
				continue
			}
			x.begin(h.stream)
			x.out = append(x.out, h.content...)
			if x.finish(h.stream, h.part, h.eof) && len(x.held) > 0 {
				// What was set aside in this round comes first.
				x.held = slices.Concat(x.held, held[i+1:])
				break
			}
		}
	}
	if len(x.held) == 0 {
		x.size = 0
	}
}

// release breaks the open line, if there is one, and writes everything that waited.
func (x *textWriter) release() {
	for x.open != "" {
		x.open = ""
		if len(x.held) > 0 {
			x.freshLine()
		}
		x.drain()
	}
}

func (x *textWriter) maybeFlush() error {
	if len(x.out) < gathered {
		return nil
	}
	return x.flush()
}

func (x *textWriter) flush() error {
	_, err := x.w.Write(x.out)
	x.out = x.out[:0]
	return err
}

func (x *textWriter) end() error {
	x.release()
	return x.flush()
}
