package adminclient

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"agentd/agent/protocol"
)

const (
	// maxLogLine bounds one line of NDJSON: a record is at most 1 MiB, and JSON escapes make six
	// bytes of one at worst.
	maxLogLine = 8 << 20
	// logRead is how much is read at a time: a few hundred usual lines.
	logRead = 64 << 10
)

// LogOptions selects what to read of a job's log.
type LogOptions struct {
	Attempt int64 // 0: the latest
	From    int64 // record number
	Follow  bool  // wait for more until the log has ended
	// Idle ends a followed stream that has been silent for so long, with ErrIdle, so that a
	// connection that died without a word is noticed. 0: never.
	Idle time.Duration
}

// ErrIdle ends a followed stream that was silent for LogOptions.Idle. Nothing is lost: ask again.
var ErrIdle = errors.New("adminclient: the log was silent")

func (c *Client) openLog(ctx context.Context, id, format string, o LogOptions) (*http.Response, error) {
	q := url.Values{"format": {format}}
	if o.Attempt > 0 {
		q.Set("attempt", strconv.FormatInt(o.Attempt, 10))
	}
	if o.From > 0 {
		q.Set("from", strconv.FormatInt(o.From, 10))
	}
	if o.Follow {
		q.Set("follow", "true")
	}
	return c.send(ctx, "read the log of job "+id, http.MethodGet, "/api/v1/jobs/"+url.PathEscape(id)+"/logs", q, nil)
}

// Logs reads records in one request. It ends when the server's stream does, which with Follow
// may also be because the server is going away: Follow is the one that comes back.
// A record given out doesn't change afterwards.
func (c *Client) Logs(ctx context.Context, id string, o LogOptions) iter.Seq2[LogRecord, error] {
	return func(yield func(LogRecord, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		alive := func() {}
		if o.Idle > 0 {
			t := time.AfterFunc(o.Idle, func() { cancel(ErrIdle) })
			defer t.Stop()
			alive = func() { t.Reset(o.Idle) }
		}
		resp, err := c.openLog(ctx, id, "ndjson", o)
		if err != nil {
			yield(LogRecord{}, err)
			return
		}
		defer resp.Body.Close() // read to its end, or given up
		lines := bufio.NewReaderSize(resp.Body, logRead)
		for {
			line, err := readLine(lines)
			if errors.Is(err, io.EOF) {
				return
			}
			var rec LogRecord
			if err == nil {
				rec, err = parseLogLine(line)
			}
			if err != nil {
				yield(LogRecord{}, &Error{Op: "read the log of job " + id, Err: cause(ctx, err)})
				return
			}
			alive()
			if !yield(rec, nil) {
				return
			}
		}
	}
}

// readLine returns a line without its end. It is good until the next call.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err == nil {
		return line[:len(line)-1], nil
	}
	long := append([]byte(nil), line...)
	for errors.Is(err, bufio.ErrBufferFull) {
		if len(long) > maxLogLine {
			return nil, fmt.Errorf("a line of more than %d bytes", maxLogLine)
		}
		line, err = r.ReadSlice('\n')
		long = append(long, line...)
	}
	switch {
	case err == nil:
		return long[:len(long)-1], nil
	case errors.Is(err, io.EOF) && len(long) > 0:
		// Every line has its end, so this one was cut.
		return nil, io.ErrUnexpectedEOF
	}
	return nil, err
}

// wireRecord is a record as NDJSON tells it: the agent's, and its number.
type wireRecord struct {
	N      *int64          `json:"n"`
	Time   int64           `json:"ts"`
	Stream protocol.Stream `json:"s"`
	Text   string          `json:"m"`
	Bytes  []byte          `json:"b"`
	Part   bool            `json:"part"`
	EOF    bool            `json:"eof"`
	Gap    int64           `json:"gap"`
	Reason string          `json:"reason"`
}

func parseLogLine(line []byte) (LogRecord, error) {
	var w wireRecord
	if err := json.Unmarshal(line, &w); err != nil {
		return LogRecord{}, fmt.Errorf("a log record doesn't decode: %w", err)
	}
	if w.N == nil || *w.N < 0 || w.Gap < 0 {
		return LogRecord{}, errors.New("a log record without a number")
	}
	return LogRecord{N: *w.N, Record: protocol.Record{
		Time: w.Time, Stream: w.Stream, Text: w.Text, Bytes: w.Bytes,
		Part: w.Part, EOF: w.EOF, Gap: w.Gap, Reason: w.Reason,
	}}, nil
}
