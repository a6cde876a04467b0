package query

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.uber.org/zap"

	"agentd/agent/protocol"
)

// Pool keeps long-lived connectors: each a process that reads one query a line from stdin and
// writes one answer a line to stdout, one at a time, so that a lookup costs milliseconds and not a process start.
//
//	→ {"id":"qry_…","type":"…","connector":"…","remainingMs":4900,"query":{…}}
//	← {"id":"qry_…","page":{"items":[…],"next":""}}      or {"id":"qry_…","code":"not_found","retryAfter":10}
//
// A process that dies, answers what it wasn't asked, or overruns a query's deadline is ended, and another one takes
// its place at the next query; one that keeps failing is started at a back-off.
type Pool struct {
	cmd  *Command
	log  *zap.Logger
	idle chan *worker // of Config.Concurrency places, which hold nil until a process is needed

	mu      sync.Mutex
	pace    backoff.BackOff // guarded by mu
	failing int             // guarded by mu: starts in a row that led to no answer
	notTill time.Time       // guarded by mu: the next start
	closed  bool            // guarded by mu
}

// NewPool returns a pool of up to size processes and starts none.
func NewPool(cmd *Command, size int, log *zap.Logger) *Pool {
	if log == nil {
		log = zap.NewNop()
	}
	p := &Pool{cmd: cmd, log: log, idle: make(chan *worker, size), pace: protocol.NewBackOff(0)}
	for range size {
		p.idle <- nil
	}
	return p
}

// worker is one process. It belongs to whoever took it from Pool.idle.
type worker struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	end    context.CancelFunc
}

// Answer asks one of the processes. It is a Handler.
func (p *Pool) Answer(ctx context.Context, q protocol.Query) (protocol.Page, error) {
	var w *worker
	select {
	case w = <-p.idle:
	case <-ctx.Done():
		return protocol.Page{}, &Failure{Code: CodeTimeout}
	}
	// Whatever happens below, the place goes back: with the process if it can be trusted, else empty.
	defer func() { p.idle <- w }()
	if w == nil {
		var err error
		if w, err = p.start(ctx); err != nil {
			return protocol.Page{}, err
		}
	}
	r, err := w.exchange(ctx, q)
	if err != nil {
		w.stop()
		w = nil
		p.failed(err)
		return protocol.Page{}, fmt.Errorf("%w: %w", &Failure{Code: CodeFailed}, err)
	}
	p.worked()
	return r.result()
}

// start makes a process, at a back-off if the last ones led to nothing.
func (p *Pool) start(ctx context.Context) (*worker, error) {
	p.mu.Lock()
	closed, pause := p.closed, time.Until(p.notTill)
	p.mu.Unlock()
	if closed {
		return nil, &Failure{Code: CodeStopped}
	}
	if deadline, ok := ctx.Deadline(); ok && time.Now().Add(pause).After(deadline) {
		return nil, &Failure{Code: CodeFailed, RetryAfter: pause}
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, &Failure{Code: CodeTimeout}
	}
	// The process outlives this query; its own context ends it.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	w := &worker{cmd: p.cmd.command(life), end: end}
	var err error
	if w.stdin, err = w.cmd.StdinPipe(); err == nil {
		var out io.ReadCloser
		if out, err = w.cmd.StdoutPipe(); err == nil {
			w.stdout = bufio.NewReaderSize(out, 64<<10)
			err = w.cmd.Start()
		}
	}
	if err != nil {
		end()
		p.failed(err)
		return nil, &Failure{Code: CodeFailed}
	}
	return w, nil
}

// exchange writes the query and reads its answer; when ctx ends the process is ended, which frees both.
func (w *worker) exchange(ctx context.Context, q protocol.Query) (r reply, err error) {
	stop := context.AfterFunc(ctx, w.end)
	defer stop()
	line, err := json.Marshal(struct {
		ID        string          `json:"id"`
		Type      string          `json:"type"`
		Connector string          `json:"connector"`
		Remaining int64           `json:"remainingMs"`
		Query     json.RawMessage `json:"query"`
	}{q.ID, q.Type, q.Connector, remaining(ctx), q.Query})
	if err != nil {
		return r, errors.New("the query can't be encoded") // the error could quote it
	}
	defer clear(line)
	if _, err := w.stdin.Write(append(line, '\n')); err != nil {
		return r, fmt.Errorf("write to connector: %w", err)
	}
	answer, err := w.readLine()
	if err != nil {
		return r, err
	}
	defer clear(answer)
	if json.Unmarshal(answer, &r) != nil || r.ID != q.ID {
		return r, errors.New("connector answered what it was not asked")
	}
	if !stop() { // the process is being ended: it must not go back among those that can be trusted
		return r, context.Cause(ctx)
	}
	return r, nil
}

// readLine reads a line of at most MaxPage and some bytes.
func (w *worker) readLine() ([]byte, error) {
	const most = MaxPage + 4096
	var line bytes.Buffer
	for {
		piece, err := w.stdout.ReadSlice('\n')
		line.Write(piece)
		clear(piece)
		switch {
		case err == nil:
			return line.Bytes(), nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, fmt.Errorf("read from connector: %w", err)
		case line.Len() > most:
			return nil, errors.New("connector answered with more than a page may hold")
		}
	}
}

// stop ends the process and everything in its group.
func (w *worker) stop() {
	w.end()
	_ = w.cmd.Wait() // it was killed: that is what Wait will say
	_ = killGroup(w.cmd.Process)
}

func (p *Pool) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failing++
	// The first failure is free: a connector that crashes once a day should not make anybody wait.
	if p.failing > 1 {
		p.notTill = time.Now().Add(p.pace.NextBackOff())
	}
	if p.failing == 1 {
		p.log.Warn("connector failed", zap.String("command", p.cmd.Argv[0]), zap.Error(err))
	}
}

func (p *Pool) worked() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failing > 0 {
		p.log.Info("connector worked again", zap.String("command", p.cmd.Argv[0]), zap.Int("failures", p.failing))
		p.failing = 0
		p.pace.Reset()
	}
}

// Close ends all processes. It waits for answers under way, so end their contexts first.
func (p *Pool) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	for range cap(p.idle) {
		if w := <-p.idle; w != nil {
			_ = w.stdin.Close() // a connector that ends at EOF does so cleanly …
			time.AfterFunc(time.Second, w.end)
			_ = w.cmd.Wait() // … and one that doesn't is killed
			w.end()
			_ = killGroup(w.cmd.Process)
		}
	}
	for range cap(p.idle) {
		p.idle <- nil
	}
}
