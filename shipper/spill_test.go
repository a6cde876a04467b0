package shipper

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/protocol"
	"agentd/spool"
)

// away makes the server answer nothing until back is called.
func (v *server) away() (back func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.fault = func(protocol.AttemptRef, protocol.LogBody) *fault { return &fault{err: errCut} }
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.fault = nil
	}
}

func TestHealthyRunWritesNothingToTheSpool(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v, m := newServer(), newMemSpool()
		cfg := config(t, v)
		cfg.Spool = m
		r := start(t, v, cfg)
		l := r.open("a")
		for i := range 40 {
			r.print(l, protocol.Stdout, numbered(i, i))
			time.Sleep(time.Second / 4)
		}
		l.Close()
		r.flush()
		if m.count() != 0 {
			t.Errorf("%d appends, want 0", m.count())
		}
	})
}

func TestOldestBatchSpillsAfterTwoSeconds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v, m := newServer(), newMemSpool()
		back := v.away()
		cfg := config(t, v)
		cfg.Spool = m
		r := start(t, v, cfg)
		l := r.open("a")
		r.print(l, protocol.Stdout, numbered(1, 10))
		time.Sleep(spillAge - 10*time.Millisecond)
		if m.count() != 0 {
			t.Errorf("%d appends before two seconds, want 0", m.count())
		}
		time.Sleep(spillTick + 20*time.Millisecond)
		if st := r.Stats(); st.Spool != 10 || st.Memory != 0 || st.MemoryUsed != 0 {
			t.Errorf("after two seconds: %+v, want 10 records in the spool and none in memory", st)
		}
		// Invariant 3: what comes now queues behind it.
		r.print(l, protocol.Stdout, numbered(11, 20))
		l.Close()
		back()
		r.flush()
		r.want("a", numbered(1, 20))
	})
}

func TestMemorySpillsAtSeventyPerCent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v, m := newServer(), newMemSpool()
		back := v.away()
		cfg := config(t, v)
		cfg.Spool = m
		r := start(t, v, cfg)
		l := r.open("a")
		text := randomText(4 << 20)
		begun := time.Now()
		r.print(l, protocol.Stdout, text)
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the job was held up for %v although the spool had room", took)
		}
		l.Close()
		back()
		r.flush()
		r.want("a", text)
	})
}

func TestStrictShipsOnlyWhatTheSpoolHas(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v, m := newServer(), newMemSpool()
		m.err = spool.ErrFull
		cfg := config(t, v)
		cfg.Spool, cfg.Durability = m, DurabilityStrict
		r := start(t, v, cfg)
		l := r.open("a")
		r.print(l, protocol.Stdout, numbered(1, 100))
		time.Sleep(time.Minute)
		if v.requests != 0 {
			t.Errorf("%d requests although nothing was durable", v.requests)
		}
		m.mu.Lock()
		m.err = nil
		m.mu.Unlock()
		l.Close()
		r.flush()
		r.want("a", numbered(1, 100))
	})
}

func TestWhenFull(t *testing.T) {
	text := randomText(4 << 20)
	printed := map[string]bool{"\n": true}
	for line := range strings.Lines(text) {
		printed[line] = true
	}
	for _, c := range []struct {
		policy string
		spool  bool
	}{{WhenFullBlock, true}, {WhenFullDropOldest, true}, {WhenFullDropNewest, true}, {WhenFullDropOldest, false}, {WhenFullDropNewest, false}} {
		bubble(t, func(t *testing.T) {
			v := newServer()
			back := v.away()
			cfg := config(t, v)
			m := newMemSpool()
			m.cap = 1 << 20
			if c.spool {
				cfg.Spool = m
			}
			cfg.WhenFull = c.policy
			r := start(t, v, cfg)
			l := r.open("a")
			done := make(chan int64)
			go func() {
				l.Stream(protocol.Stdout).ReadFrom(onlyReader{strings.NewReader(text)})
				done <- l.Close()
			}()
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			var records int64
			select {
			case records = <-done:
				if c.policy == WhenFullBlock {
					t.Error("the job was not held up")
				}
			default:
				if c.policy != WhenFullBlock {
					t.Errorf("%+v: the job was held up: fill %.2f, %d in the spool, %+v", c, r.queue.Fill(), m.size, r.Stats())
				}
			}
			r.balance()
			back()
			if records == 0 {
				records = <-done
			}
			r.flush()
			covered := int64(0)
			for _, rec := range v.records(ref("a")) {
				covered += rec.Numbers()
			}
			if lines := int64(strings.Count(text, "\n")); covered != records || records < lines || records > lines+20 { // a line that is held up in its middle ships in parts
				t.Errorf("%s: %d numbers arrived, %d said at the end, %d lines printed", c.policy, covered, records, lines)
			}
			got := v.text(ref("a"), protocol.Stdout)
			head, tail := text[:1000], text[len(text)-1000:]
			switch c.policy {
			case WhenFullBlock:
				if got != text {
					t.Error("block: the log is not what was printed")
				}
			case WhenFullDropOldest:
				if !strings.HasSuffix(got, tail) || !strings.Contains(got, "<gap") {
					t.Errorf("drop_oldest: %s", brief(got))
				}
			case WhenFullDropNewest:
				if !strings.HasPrefix(got, head) || !strings.Contains(got, "<gap") {
					t.Errorf("drop_newest: %s", brief(got))
				}
			}
			afterGap := false
			for line := range strings.Lines(strings.NewReplacer("<gap", "\n<gap", "spoolFull>", "spoolFull>\n").Replace(got)) {
				// The rest of a line whose beginning had shipped as a part, and was dropped, follows its gap.
				rest := afterGap && strings.Contains(text, line)
				if !strings.HasPrefix(line, "<gap") && !printed[line] && !rest {
					t.Errorf("%s: a wrong line: %q", c.policy, line)
				}
				afterGap = strings.HasPrefix(line, "<gap")
			}
		})
	}
}

func TestC10EndBringsTheRestToTheSpool(t *testing.T) {
	for _, full := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			v, m := newServer(), newMemSpool()
			back := v.away()
			cfg := config(t, v)
			cfg.Spool = m
			r := start(t, v, cfg)
			l := r.open("a")
			r.print(l, protocol.Stdout, numbered(1, 3000)+"half a line")
			if full {
				m.err = spool.ErrFull
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				if full { // then Run says so
					r.stopExpecting(spool.ErrFull)
				} else {
					r.stop()
				}
			}()
			<-ended
			if !full {
				if n := m.log("a/1").next; n < 3000 {
					t.Errorf("the spool has %d records, want 3000", n)
				}
			}
			m.err = nil
			back()
			again := start(t, v, cfg)
			if rec := again.Recovered(); len(rec) != 1 || rec[0].LogRecords != 3001 || rec[0].Ref != ref("a") {
				t.Errorf("recovered %+v, want a with 3001 records", rec)
			}
			again.flush()
			again.want("a", numbered(1, 3000)+"half a line")
			if f := v.log(ref("a")).final; f != 3001 {
				t.Errorf("final at %d, want 3001", f)
			}
		})
	}
}

func TestSpoolHolesShipAsGaps(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v, m := newServer(), newMemSpool()
		back := v.away()
		cfg := config(t, v)
		cfg.Spool = m
		r := start(t, v, cfg)
		l := r.open("a")
		for i := range 5 {
			r.print(l, protocol.Stdout, numbered(10*i+1, 10*i+10))
			time.Sleep(3 * time.Second)
		}
		m.mu.Lock()
		m.log("a/1").holes = append(m.log("a/1").holes, spool.HoleError{First: 10, Next: 30, Reason: spool.ReasonCorrupt})
		m.mu.Unlock()
		back()
		l.Close()
		r.flush()
		r.want("a", numbered(1, 10)+"<gap 20 damaged>"+numbered(31, 50))
	})
}

func TestOrphanIsKeptForTheOperator(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v, m := newServer(), newMemSpool()
		v.fault = func(protocol.AttemptRef, protocol.LogBody) *fault {
			return &fault{err: answer(404, protocol.CodeNotFound)}
		}
		cfg := config(t, v)
		cfg.Spool = m
		r := start(t, v, cfg)
		l := r.open("a")
		r.print(l, protocol.Stdout, numbered(1, 10))
		l.Close()
		time.Sleep(10 * time.Second)
		r.flush()
		if o := m.log("a/1"); o.state != spool.Orphan || o.next != 10 || v.requests != 1 {
			t.Errorf("state %v, %d records, %d requests; want an orphan of 10, asked once", o.state, o.next, v.requests)
		}
		if used := r.Stats().MemoryUsed; used != 0 {
			t.Errorf("%d bytes of memory are in use, want 0", used)
		}
	})
}

func TestFinalSaysWhereTheLogEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v := newServer()
		r := start(t, v, config(t, v))
		l := r.open("a")
		r.print(l, protocol.Stdout, numbered(1, 10))
		time.Sleep(time.Second)
		l.Close()
		r.flush()
		if f := v.log(ref("a")).final; f != -1 {
			t.Errorf("final at %d although a completion says so, too", f)
		}
		r.Final(ref("a"))
		r.flush()
		if f := v.log(ref("a")).final; f != 10 {
			t.Errorf("final at %d, want 10", f)
		}
	})
}

// halfSpool takes the first batch that it is given, and then it is full.
type halfSpool struct{ *memSpool }

func (h halfSpool) Append(ctx context.Context, batches ...spool.Batch) error {
	if h.count() == 0 {
		if err := h.memSpool.Append(ctx, batches[:1]...); err != nil {
			return err
		}
	}
	return spool.ErrFull
}

// What the spool has stored of a group that it refused is acknowledged, too, or it would hold that for ever.
func TestWhatARefusedGroupLeftInTheSpoolIsAcknowledged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		v, m := newServer(), newMemSpool()
		back := v.away()
		cfg := config(t, v)
		cfg.Spool = halfSpool{m}
		r := start(t, v, cfg)
		l := r.open("a")
		r.print(l, protocol.Stdout, numbered(1, 10))
		time.Sleep(spillAge + 2*spillTick)
		if m.count() != 1 {
			t.Fatalf("%d appends, want one", m.count())
		}
		l.Close()
		back()
		r.flush()
		r.want("a", numbered(1, 10))
		if held := m.Attempts(); len(held) != 0 {
			t.Errorf("the spool still holds %+v", held)
		}
	})
}
