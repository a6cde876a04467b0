package shipper

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"agentd/agent/protocol"
)

var errCut = errors.New("connection reset")

// three runs three jobs against a faulty server and checks the oracle.
func three(t *testing.T, f func(n int) *fault) {
	t.Helper()
	bubble(t, func(t *testing.T) {
		v := newServer()
		v.fault = func(protocol.AttemptRef, protocol.LogBody) *fault { return f(v.requests) }
		r := start(t, v, config(t, v))
		text := numbered(1, 20000)
		for _, job := range []string{"a", "b", "c"} {
			l := r.open(job)
			go func() {
				l.Stream(protocol.Stdout).ReadFrom(strings.NewReader(text))
				l.Close()
			}()
		}
		for _, job := range []string{"a", "b", "c"} {
			for {
				if st, held := r.AttemptStats(job, 1); !held || st.Closed && st.Shipped == st.Records {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
		}
		r.flush()
		for _, job := range []string{"a", "b", "c"} {
			r.want(job, text)
		}
	})
}

func TestL1OneWriteInTwentyFails(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	three(t, func(int) *fault {
		if random.IntN(20) == 0 {
			return &fault{err: errCut, commit: random.IntN(2) == 0}
		}
		return nil
	})
}

func TestL2ReplyIsLost(t *testing.T) {
	three(t, func(n int) *fault {
		if n%3 == 0 {
			return &fault{err: errCut, commit: true}
		}
		return nil
	})
}

func TestL3ReplyComesTooLate(t *testing.T) {
	three(t, func(n int) *fault {
		if n%5 == 0 {
			return &fault{hang: true, commit: true}
		}
		return nil
	})
}

// Every status for a while, then health: nothing is lost, nothing is doubled, and only what the
// table says is dead-lettered.
func TestL5EveryStatusThenHealth(t *testing.T) {
	for _, c := range []struct {
		err  error
		dead bool
	}{
		{answer(400, protocol.CodeInvalid), true}, {answer(422, protocol.CodeInvalid), true},
		{answer(400, ""), false}, {answer(401, protocol.CodeUnauthenticated), false}, {answer(403, protocol.CodeRevoked), false},
		{answer(403, ""), false}, {answer(404, ""), false}, {answer(408, ""), false}, {answer(409, ""), false},
		{answer(409, protocol.CodeLeaseLost), false}, {answer(413, ""), false}, {answer(415, protocol.CodeInvalid), false},
		{answer(425, ""), false}, {answer(429, protocol.CodeThrottled), false}, {answer(500, protocol.CodeInternal), false},
		{answer(501, ""), false}, {answer(502, ""), false}, {answer(503, protocol.CodeUnavailable), false}, {answer(504, ""), false},
		{answer(200, ""), false}, // L17: a page instead of an answer
	} {
		bubble(t, func(t *testing.T) {
			v := newServer()
			healthy := time.Now().Add(20 * time.Second)
			v.fault = func(protocol.AttemptRef, protocol.LogBody) *fault {
				if v.requests <= 3 && time.Now().Before(healthy) {
					return &fault{err: c.err}
				}
				return nil
			}
			r := start(t, v, config(t, v))
			l := r.open("a")
			text := numbered(1, 2000)
			r.print(l, protocol.Stdout, text)
			l.Close()
			r.flush()
			r.want("a", text)
			if dead := r.Stats().Dead; dead != 0 {
				t.Errorf("%v: %d records were dead-lettered in three answers; bisecting isn't that fast", c.err, dead)
			}
			if c.dead && v.requests < 4 {
				t.Errorf("%v: %d requests", c.err, v.requests)
			}
		})
	}
}

func TestL5ThrottlingPausesTheEndpoint(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newServer()
		start0 := time.Now()
		var early int
		v.fault = func(protocol.AttemptRef, protocol.LogBody) *fault {
			if v.requests == 1 {
				return &fault{err: &protocol.Error{Status: 429, Code: protocol.CodeThrottled, RetryAfter: 7 * time.Second}}
			}
			if time.Since(start0) < 7*time.Second {
				early++
			}
			return nil
		}
		r := start(t, v, config(t, v))
		for _, job := range []string{"a", "b", "c"} {
			l := r.open(job)
			time.Sleep(time.Second / 2)
			r.print(l, protocol.Stdout, numbered(1, 5))
			l.Close()
		}
		r.flush()
		if early != 0 {
			t.Errorf("%d requests within the pause, want 0", early)
		}
		for _, job := range []string{"a", "b", "c"} {
			r.want(job, numbered(1, 5))
		}
	})
}

func TestL6BodiesShrinkUntilTheyPass(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newServer()
		v.fault = func(_ protocol.AttemptRef, b protocol.LogBody) *fault {
			if n := len(strings.Join(framesOf(b), "")); n > 6<<10 {
				return &fault{err: answer(413, "")}
			}
			return nil
		}
		cfg := config(t, v)
		cfg.Compression = "none"
		r := start(t, v, cfg)
		l := r.open("a")
		text := numbered(1, 20000)
		r.print(l, protocol.Stdout, text)
		l.Close()
		r.flush()
		r.want("a", text)
		refused := 0
		for i := range v.bodies {
			_ = i
		}
		if v.requests > 1000 {
			t.Errorf("%d requests (%d refused): the limit isn't remembered", v.requests, refused)
		}
	})
}

func framesOf(b protocol.LogBody) (out []string) {
	for _, f := range b.Frames {
		out = append(out, string(f))
	}
	return out
}

func TestL6SingleRecordOverTheLimitIsDeadLettered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newServer()
		v.fault = func(_ protocol.AttemptRef, b protocol.LogBody) *fault {
			if n := len(strings.Join(framesOf(b), "")); n > 2<<10 {
				return &fault{err: answer(413, protocol.CodeTooLarge)}
			}
			return nil
		}
		cfg := config(t, v)
		cfg.Compression = "none"
		r := start(t, v, cfg)
		l := r.open("a")
		r.print(l, protocol.Stdout, "before\n"+strings.Repeat("x", 3<<10)+"\nafter\n")
		l.Close()
		r.flush()
		r.want("a", "before\n<gap 1 deadLetter>after\n")
		if dead := r.Stats().Dead; dead != 1 {
			t.Errorf("%d dead, want 1", dead)
		}
	})
}

func TestL7PoisonRecord(t *testing.T) {
	for _, encoding := range []string{"auto", "zstd", "gzip"} {
		bubble(t, func(t *testing.T) {
			v := newServer()
			v.fault = func(rf protocol.AttemptRef, b protocol.LogBody) *fault {
				id, _ := encodingOf(b.Encoding)
				text, _ := decode([]byte(strings.Join(framesOf(b), "")), id)
				if rf.JobID == "a" && strings.Contains(string(text), "n=437 ") {
					return &fault{err: answer(422, protocol.CodeInvalid)}
				}
				return nil
			}
			cfg := config(t, v)
			cfg.Compression = encoding
			r := start(t, v, cfg)
			a, b := r.open("a"), r.open("b")
			r.print(a, protocol.Stdout, numbered(1, 1000))
			r.print(b, protocol.Stdout, numbered(1, 1000))
			a.Close()
			b.Close()
			r.flush()
			r.want("a", numbered(1, 436)+"<gap 1 deadLetter>"+numbered(438, 1000))
			r.want("b", numbered(1, 1000))
			if v.requests > 60 {
				t.Errorf("%d requests to find one record of a thousand", v.requests)
			}
		})
	}
}

func TestL8OneAttemptsTroubleIsItsOwn(t *testing.T) {
	for _, f := range []*fault{{err: answer(500, protocol.CodeInternal)}, {hang: true}, {err: answer(422, protocol.CodeInvalid)}, {err: errCut}, {err: answer(413, "")}, {err: answer(404, protocol.CodeNotFound)}} {
		bubble(t, func(t *testing.T) {
			v := newServer()
			v.fault = func(rf protocol.AttemptRef, _ protocol.LogBody) *fault {
				if strings.HasPrefix(rf.JobID, "bad") {
					return f
				}
				return nil
			}
			cfg := config(t, v)
			cfg.Memory = 4 << 20
			r := start(t, v, cfg)
			for i := range 10 {
				bad := r.open(fmt.Sprintf("bad%d", i))
				r.print(bad, protocol.Stdout, numbered(1, 100))
			}
			time.Sleep(31 * time.Second) // hanging requests have been seen to hang by now
			begun := time.Now()
			l := r.open("good")
			text := numbered(1, 3000)
			for part := range strings.SplitSeq(text, "n=1000 ") {
				_ = part
			}
			r.print(l, protocol.Stdout, text)
			l.Close()
			for {
				if _, held := r.AttemptStats("good", 1); !held {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			if took := time.Since(begun); took > time.Second {
				t.Errorf("%+v: the good attempt took %v", f, took)
			}
			r.want("good", text)
			r.balance()
		})
	}
}

func TestL14OutageLongerThanMemoryBlocksTheJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newServer()
		down := true
		v.fault = func(protocol.AttemptRef, protocol.LogBody) *fault {
			if down {
				return &fault{err: errCut}
			}
			return nil
		}
		r := start(t, v, config(t, v))
		l := r.open("a")
		text := strings.Repeat("0123456789abcdef", 1<<8) + "\n"
		text = strings.Repeat(text, 4) + randomText(6<<20)
		done := make(chan struct{})
		go func() {
			l.Stream(protocol.Stdout).ReadFrom(onlyReader{strings.NewReader(text)})
			l.Close()
			close(done)
		}()
		time.Sleep(5 * time.Minute)
		select {
		case <-done:
			t.Fatal("the job was not held up")
		default:
		}
		if used, size := r.Stats().MemoryUsed, r.Stats().MemorySize; used > size {
			t.Errorf("memory: %d of %d", used, size)
		}
		v.mu.Lock()
		down = false
		v.mu.Unlock()
		<-done
		r.flush()
		r.want("a", text)
	})
}

type onlyReader struct{ io.Reader }

// randomText are lines that don't compress.
func randomText(size int) string {
	random := rand.New(rand.NewPCG(5, 6))
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	b := make([]byte, size)
	for i := range b {
		b[i] = letters[random.IntN(64)]
		if i%100 == 99 {
			b[i] = '\n'
		}
	}
	b[size-1] = '\n'
	return string(b)
}
