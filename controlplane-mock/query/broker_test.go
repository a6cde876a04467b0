package query_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"agentd/controlplane-mock/query"
	"agentd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

const (
	kind      = "io.example.lookup"
	connector = "directory"
)

func newBroker(t interface{ Fatal(...any) }, cfg query.Config) *query.Broker {
	b, err := query.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func worker(agent string) query.Worker {
	return query.Worker{AgentID: agent, Type: kind, Connectors: []string{connector}, Max: 4, Wait: 30 * time.Second}
}

// appear makes a worker present without waiting.
func appear(b *query.Broker, agent string) {
	w := worker(agent)
	w.Wait = 0
	b.Lease(context.Background(), w)
}

func question(text string) query.Question {
	return query.Question{Type: kind, Connector: connector, Query: json.RawMessage(strconv.Quote(text)), Timeout: 5 * time.Second}
}

type asked struct {
	page json.RawMessage
	err  error
}

// ask asks in the background; the channel gets the one result.
func ask(ctx context.Context, b *query.Broker, q query.Question) chan asked {
	c := make(chan asked, 1)
	go func() {
		page, err := b.Ask(ctx, q)
		c <- asked{page, err}
	}()
	return c
}

func wantEmpty(t *testing.T, b *query.Broker) {
	t.Helper()
	got := b.Sizes()
	got.Present = 0
	if want := (query.Sizes{}); got != want {
		t.Errorf("sizes %+v, want %+v", got, want)
	}
}

func TestAskIsAnsweredThroughAHeldPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, query.Config{})
		var got []query.Leased
		go func() { got = b.Lease(t.Context(), worker("a")) }()
		synctest.Wait()
		began := time.Now()
		answer := ask(t.Context(), b, question("who"))
		synctest.Wait()
		if len(got) != 1 || string(got[0].Query) != `"who"` || got[0].Connector != connector {
			t.Fatalf("leased %+v, want the one query", got)
		}
		if want := began.Add(5 * time.Second); !got[0].Deadline.Equal(want) {
			t.Errorf("deadline %v, want %v", got[0].Deadline, want)
		}
		if err := b.Answer(got[0].ID, got[0].Token, "a", json.RawMessage(`{"items":[]}`), nil); err != nil {
			t.Fatal(err)
		}
		if a := <-answer; a.err != nil || string(a.page) != `{"items":[]}` {
			t.Errorf("asker got %s, %v", a.page, a.err)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("took %v, want no wait at all", took)
		}
		if err := b.Answer(got[0].ID, got[0].Token, "a", nil, nil); !errors.Is(err, query.ErrGone) {
			t.Errorf("second answer: %v, want %v", err, query.ErrGone)
		}
		wantEmpty(t, b)
	})
}

func TestUnavailableIsSaidAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, query.Config{})
		check := func(when string, want error) {
			t.Helper()
			q := question("x")
			q.Timeout = time.Millisecond
			began := time.Now()
			_, err := b.Ask(t.Context(), q)
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", when, err, want)
			}
			if errors.Is(want, query.ErrUnavailable) && time.Since(began) != 0 {
				t.Errorf("%s: took %v, want at once", when, time.Since(began))
			}
		}
		check("nobody ever polled", query.ErrUnavailable)
		appear(b, "a")
		check("a worker polled just now", query.ErrTimeout)
		time.Sleep(59 * time.Second)
		check("59 s ago", query.ErrTimeout)
		time.Sleep(2 * time.Second)
		check("61 s ago", query.ErrUnavailable)
		if got := b.Sizes().Present; got != 0 {
			t.Errorf("%d seats are still in the table, want 0", got)
		}
	})
}

func TestAPollThatBreaksOffKeepsItsWorkerPresent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, query.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		go b.Lease(ctx, worker("a"))
		time.Sleep(20 * time.Second)
		cancel()
		time.Sleep(50 * time.Second) // 70 s after it began, 50 s after it broke off
		q := question("x")
		q.Timeout = time.Millisecond
		if _, err := b.Ask(t.Context(), q); !errors.Is(err, query.ErrTimeout) {
			t.Errorf("got %v, want %v: the worker is present", err, query.ErrTimeout)
		}
	})
}

func TestOnlyTheConnectorsOfAPollAreHandedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, query.Config{})
		other := query.Worker{AgentID: "b", Type: kind, Connectors: []string{"other"}, Max: 4}
		appear(b, "a")
		b.Lease(t.Context(), other)
		answer := ask(t.Context(), b, question("x"))
		synctest.Wait()
		if got := b.Lease(t.Context(), other); len(got) != 0 {
			t.Errorf("a worker for another connector got %+v", got)
		}
		if a := <-answer; !errors.Is(a.err, query.ErrTimeout) {
			t.Errorf("got %v, want %v", a.err, query.ErrTimeout)
		}
		wantEmpty(t, b)
	})
}

func TestBusyWhenTheQueueIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, query.Config{MaxWaiting: 3})
		appear(b, "a")
		for range 3 {
			ask(t.Context(), b, question("x"))
		}
		synctest.Wait()
		if _, err := b.Ask(t.Context(), question("one too many")); !errors.Is(err, query.ErrBusy) {
			t.Fatalf("fourth: %v, want %v", err, query.ErrBusy)
		}
		w := worker("a")
		w.Max = 1
		if got := b.Lease(t.Context(), w); len(got) != 1 {
			t.Fatalf("leased %d, want 1", len(got))
		}
		// What was handed out doesn't count against the queue.
		answer := ask(t.Context(), b, question("fits now"))
		synctest.Wait()
		if got := b.Sizes(); got.Waiting != 3 || got.Queries != 4 {
			t.Errorf("sizes %+v, want 3 waiting of 4", got)
		}
		<-answer
		synctest.Wait()
		wantEmpty(t, b)
	})
}

func TestTooManyAskersAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, query.Config{MaxAskers: 2})
		appear(b, "a")
		for range 2 {
			ask(t.Context(), b, question("x"))
			synctest.Wait()
			b.Lease(t.Context(), worker("a"))
		}
		if _, err := b.Ask(t.Context(), question("x")); !errors.Is(err, query.ErrBusy) {
			t.Errorf("got %v, want %v", err, query.ErrBusy)
		}
	})
}

func TestAVanishedWorkersQueryEndsByItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, query.Config{})
		appear(b, "a")
		began := time.Now()
		answer := ask(t.Context(), b, question("x"))
		synctest.Wait()
		got := b.Lease(t.Context(), worker("a"))
		if a := <-answer; !errors.Is(a.err, query.ErrTimeout) || time.Since(began) != 5*time.Second {
			t.Errorf("got %v after %v, want %v after 5s", a.err, time.Since(began), query.ErrTimeout)
		}
		if err := b.Answer(got[0].ID, got[0].Token, "a", nil, nil); !errors.Is(err, query.ErrGone) {
			t.Errorf("late answer: %v, want %v", err, query.ErrGone)
		}
		wantEmpty(t, b)
	})
}

func TestLifeIsCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, query.Config{})
		appear(b, "a")
		q := question("x")
		q.Timeout = time.Hour
		began := time.Now()
		if _, err := b.Ask(t.Context(), q); !errors.Is(err, query.ErrTimeout) || time.Since(began) != time.Minute {
			t.Errorf("got %v after %v, want %v after 1m0s", err, time.Since(began), query.ErrTimeout)
		}
	})
}

func TestAnAskerThatGoesAwayWithdraws(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, query.Config{})
		appear(b, "a")
		for _, leasedFirst := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			answer := ask(ctx, b, question("x"))
			synctest.Wait()
			var got []query.Leased
			w := worker("a")
			w.Wait = 0
			if leasedFirst {
				got = b.Lease(t.Context(), w)
			}
			cancel()
			if a := <-answer; !errors.Is(a.err, context.Canceled) {
				t.Errorf("asker got %v", a.err)
			}
			wantEmpty(t, b)
			if leasedFirst {
				if err := b.Answer(got[0].ID, got[0].Token, "a", nil, nil); !errors.Is(err, query.ErrGone) {
					t.Errorf("answer to a withdrawn query: %v, want %v", err, query.ErrGone)
				}
			} else if got := b.Lease(t.Context(), w); len(got) != 0 {
				t.Errorf("a withdrawn query was handed out: %+v", got)
			}
		}
	})
}

func TestFencing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, query.Config{})
		appear(b, "a")
		answer := ask(t.Context(), b, question("x"))
		synctest.Wait()
		first := b.Lease(t.Context(), worker("a"))
		b.Return(first) // it could not be delivered
		if err := b.Answer(first[0].ID, first[0].Token, "a", nil, nil); !errors.Is(err, query.ErrFenced) {
			t.Errorf("answer while it waits again: %v, want %v", err, query.ErrFenced)
		}
		second := b.Lease(t.Context(), worker("b"))
		if len(second) != 1 || second[0].ID != first[0].ID {
			t.Fatalf("leased %+v, want the returned query", second)
		}
		for name, claim := range map[string][2]string{
			"the first lease's token":        {first[0].Token, "a"},
			"the right token, another agent": {second[0].Token, "a"},
			"no token":                       {"", "b"},
		} {
			if err := b.Answer(first[0].ID, claim[0], claim[1], nil, nil); !errors.Is(err, query.ErrFenced) {
				t.Errorf("%s: %v, want %v", name, err, query.ErrFenced)
			}
		}
		want := &query.WorkerError{Code: "provider_throttled", RetryAfter: 10 * time.Second}
		if err := b.Answer(first[0].ID, second[0].Token, "b", nil, want); err != nil {
			t.Fatal(err)
		}
		if a := <-answer; !errors.Is(a.err, want) {
			t.Errorf("asker got %v, want %v", a.err, want)
		}
		wantEmpty(t, b)
	})
}

func TestReturnedQueriesKeepTheirOrderInFront(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, query.Config{})
		appear(b, "a")
		for _, text := range []string{"1", "2", "3", "4", "5", "6"} {
			ask(t.Context(), b, question(text))
			synctest.Wait()
		}
		b.Return(b.Lease(t.Context(), worker("a"))) // 1 to 4
		var order []string
		for range 2 {
			for _, l := range b.Lease(t.Context(), worker("a")) {
				order = append(order, string(l.Query))
			}
		}
		if want := []string{`"1"`, `"2"`, `"3"`, `"4"`, `"5"`, `"6"`}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
	})
}

// TestAWokenPollThatLeavesPassesItOn: the poll that was told of the query goes away before it
// looks; another one that waits must get it.
func TestAWokenPollThatLeavesPassesItOn(t *testing.T) {
	for range 200 { // the race has two outcomes; either way the query is handed out
		synctest.Test(t, func(t *testing.T) {
			b := newBroker(t, query.Config{})
			ctx, cancel := context.WithCancel(t.Context())
			var mu sync.Mutex
			got := 0
			take := func(ctx context.Context, agent string) {
				n := len(b.Lease(ctx, worker(agent)))
				mu.Lock()
				defer mu.Unlock()
				got += n
			}
			go take(ctx, "a")
			synctest.Wait()
			go take(t.Context(), "b")
			synctest.Wait()
			ask(t.Context(), b, question("x"))
			cancel()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if got != 1 {
				t.Fatalf("handed out %d times, want 1", got)
			}
		})
	}
}

func TestARestartLosesWhatWasAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, query.Config{})
		appear(b, "a")
		ask(t.Context(), b, question("x"))
		synctest.Wait()
		got := b.Lease(t.Context(), worker("a"))
		restarted := newBroker(t, query.Config{})
		if err := restarted.Answer(got[0].ID, got[0].Token, "a", nil, nil); !errors.Is(err, query.ErrGone) {
			t.Errorf("got %v, want %v", err, query.ErrGone)
		}
	})
}

func TestPresenceIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, query.Config{MaxPresent: 3})
		for i := range 10 {
			appear(b, strconv.Itoa(i))
		}
		if got := b.Sizes().Present; got != 3 {
			t.Fatalf("%d seats, want 3", got)
		}
		appear(b, "0") // one that has a seat keeps it
		time.Sleep(61 * time.Second)
		appear(b, "new") // and the faded make room
		if got := b.Sizes().Present; got != 1 {
			t.Errorf("%d seats, want 1", got)
		}
	})
}

func TestBoundsThatMakeNoSenseAreNamed(t *testing.T) {
	_, err := query.New(query.Config{PresentFor: 30 * time.Second, MaxBatch: -1})
	if err == nil {
		t.Fatal("accepted presentFor below maxWait")
	}
	for _, want := range []string{"query: maxBatch must be positive", "query: presentFor must exceed maxWait"} {
		if !slices.Contains(lines(err), want) {
			t.Errorf("%q doesn't say %q", err, want)
		}
	}
}

func lines(err error) (out []string) {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range many.Unwrap() {
			out = append(out, e.Error())
		}
	}
	return out
}

// TestEachAskerGetsExactlyOneResult drives any interleaving of ask, lease, return, answer (also wrong
// and repeated), withdraw and passing time, and holds the broker to a model.
func TestEachAskerGetsExactlyOneResult(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBroker(rt, query.Config{MaxWaiting: 4, MaxAskers: 8})
			ctx, stop := context.WithCancel(t.Context())
			type asker struct {
				answer   chan asked
				cancel   context.CancelFunc
				text     string
				deadline time.Time
			}
			var askers []*asker
			var leased []query.Leased
			holder := map[string]string{} // lease token → agent
			answered := map[string]int{}  // query text → accepted answers
			appear(b, "a")
			text := 0
			rt.Repeat(map[string]func(*rapid.T){
				"ask": func(rt *rapid.T) {
					text++
					ctx, cancel := context.WithCancel(ctx)
					q := question(strconv.Itoa(text))
					q.Timeout = time.Duration(rapid.IntRange(1, 10).Draw(rt, "timeout")) * time.Second
					askers = append(askers, &asker{ask(ctx, b, q), cancel, string(q.Query), time.Now().Add(q.Timeout)})
					synctest.Wait()
				},
				"lease": func(rt *rapid.T) {
					w := worker(rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "agent"))
					w.Wait, w.Max = 0, rapid.IntRange(1, 3).Draw(rt, "max")
					for _, l := range b.Lease(ctx, w) {
						leased = append(leased, l)
						holder[l.Token] = w.AgentID
					}
				},
				"return": func(rt *rapid.T) {
					if len(leased) > 0 {
						b.Return([]query.Leased{rapid.SampledFrom(leased).Draw(rt, "which")})
					}
				},
				"answer": func(rt *rapid.T) {
					if len(leased) == 0 {
						return
					}
					l := rapid.SampledFrom(leased).Draw(rt, "which")
					agent := rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "agent")
					err := b.Answer(l.ID, l.Token, agent, l.Query, nil)
					switch {
					case err == nil:
						if holder[l.Token] != agent {
							rt.Fatalf("agent %s answered what %s holds", agent, holder[l.Token])
						}
						answered[string(l.Query)]++
					case !errors.Is(err, query.ErrGone) && !errors.Is(err, query.ErrFenced):
						rt.Fatalf("answer: %v", err)
					}
					synctest.Wait()
				},
				"withdraw": func(rt *rapid.T) {
					if len(askers) > 0 {
						rapid.SampledFrom(askers).Draw(rt, "which").cancel()
						synctest.Wait()
					}
				},
				"time": func(rt *rapid.T) {
					time.Sleep(time.Duration(rapid.IntRange(1, 4000).Draw(rt, "ms")) * time.Millisecond)
					synctest.Wait()
				},
			})
			for _, a := range askers {
				a.cancel()
			}
			synctest.Wait()
			for _, a := range askers {
				select {
				case got := <-a.answer:
					if got.err == nil && string(got.page) != a.text {
						rt.Fatalf("the asker of %s got %s", a.text, got.page)
					}
					want := 0
					if got.err == nil {
						want = 1
					}
					if answered[a.text] != want {
						rt.Fatalf("%s: %d answers were accepted, and the asker got %v", a.text, answered[a.text], got.err)
					}
				default:
					rt.Fatalf("the asker of %s got no result", a.text)
				}
			}
			if got := b.Sizes(); got.Queries != 0 || got.Waiting != 0 || got.Polls != 0 {
				rt.Fatalf("left behind: %+v", got)
			}
			stop()
		})
	})
}
