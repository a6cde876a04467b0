package adminclient_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
	"agentd/internal/testmain"
)

func TestMain(m *testing.M) { testmain.Run(m) }

// logServer serves the log of one attempt; each request for it takes the next of its behaviours.
type logServer struct {
	mu       sync.Mutex
	records  int64 // stored
	length   int64 // -1 while unknown
	state    string
	behave   []func(w http.ResponseWriter, r *http.Request, lines []string)
	from     []int64 // asked for
	jobCalls int
}

func (s *logServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !strings.HasSuffix(r.URL.Path, "/logs") {
		s.jobCalls++
		length := "null"
		if s.length >= 0 {
			length = strconv.FormatInt(s.length, 10)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"j","status":"x","attempts":[{"attempt":1,"state":%q,"logNext":%d,"logRecords":%s,"logsComplete":%v}]}`,
			s.state, s.records, length, s.length >= 0 && s.records >= s.length)
		return
	}
	from, _ := strconv.ParseInt(r.URL.Query().Get("from"), 10, 64)
	s.from = append(s.from, from)
	var lines []string
	for n := from; n < s.records; n++ {
		lines = append(lines, fmt.Sprintf(`{"n":%d,"ts":1,"s":"out","m":"line %d"}`+"\n", n, n))
	}
	behave := whole
	if len(s.behave) > 0 {
		behave, s.behave = s.behave[0], s.behave[1:]
	}
	behave(w, r, lines)
}

func whole(w http.ResponseWriter, _ *http.Request, lines []string) {
	w.Header().Set("Content-Type", "application/x-ndjson")
	io.WriteString(w, strings.Join(lines, ""))
}

// cut sends n lines and a half, then the connection ends.
func cut(n int) func(http.ResponseWriter, *http.Request, []string) {
	return func(w http.ResponseWriter, _ *http.Request, lines []string) {
		io.WriteString(w, strings.Join(lines[:n], "")+lines[n][:len(lines[n])/2])
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func refusal(status int, code string) func(http.ResponseWriter, *http.Request, []string) {
	return func(w http.ResponseWriter, _ *http.Request, _ []string) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"status":%d,"code":%q}`, status, code)
	}
}

func client(t *testing.T, url string) *adminclient.Client {
	t.Helper()
	tr := &http.Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	c, err := adminclient.New(adminclient.Config{URL: url, Token: "t", HTTP: &http.Client{Transport: tr}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// follow gathers the numbers that Follow gives out.
func follow(t *testing.T, c *adminclient.Client, o adminclient.FollowOptions) (got []int64, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	o.Attempt = 1
	for r, err := range c.Follow(ctx, "j", o) {
		if err != nil {
			return got, err
		}
		if want := fmt.Sprintf("line %d", r.N); r.Text != want {
			t.Errorf("record %d: got %q, want %q", r.N, r.Text, want)
		}
		got = append(got, r.N)
	}
	return got, nil
}

func upTo(n int64) (all []int64) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// TestEachRecordOnce: however the stream ends, what follows begins after the last record that came whole.
func TestEachRecordOnce(t *testing.T) {
	silent := func(w http.ResponseWriter, r *http.Request, lines []string) {
		io.WriteString(w, lines[0])
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	early := func(w http.ResponseWriter, r *http.Request, lines []string) { whole(w, r, lines[:3]) }
	again := func(w http.ResponseWriter, r *http.Request, lines []string) {
		// A server that begins too early.
		whole(w, r, append([]string{`{"n":0,"ts":1,"s":"out","m":"line 0"}` + "\n"}, lines...))
	}
	page := func(w http.ResponseWriter, _ *http.Request, _ []string) {
		io.WriteString(w, "<html>\nsign in\n</html>\n")
	}
	s := &logServer{records: 20, length: 20, state: "succeeded"}
	s.behave = []func(http.ResponseWriter, *http.Request, []string){
		cut(4), cut(0), early, silent, refusal(503, "unavailable"), page, again,
	}
	srv := httptest.NewServer(s)
	defer srv.Close()
	lost, back := 0, 0
	got, err := follow(t, client(t, srv.URL), adminclient.FollowOptions{
		Idle: 200 * time.Millisecond, Lost: func(error) { lost++ }, Back: func() { back++ },
	})
	if err != nil || !slices.Equal(got, upTo(20)) {
		t.Errorf("got %v, %v, want 0 to 19 once each", got, err)
	}
	if want := []int64{0, 4, 4, 7, 8, 8, 8}; !slices.Equal(s.from, want) {
		t.Errorf("asked from %v, want %v", s.from, want)
	}
	if lost != back || lost < 2 {
		t.Errorf("told %d times lost and %d times back, want the same, at least 2", lost, back)
	}
}

// The job's word ends it, not the stream's end.
func TestFollowEnds(t *testing.T) {
	for name, tc := range map[string]struct {
		s    *logServer
		want int64
	}{
		"complete":             {&logServer{records: 5, length: 5, state: "succeeded"}, 5},
		"no records":           {&logServer{records: 0, length: 0, state: "succeeded"}, 0},
		"length never known":   {&logServer{records: 5, length: -1, state: "lost"}, 5},
		"complete before over": {&logServer{records: 5, length: 5, state: "running"}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			srv := httptest.NewServer(tc.s)
			defer srv.Close()
			got, err := follow(t, client(t, srv.URL), adminclient.FollowOptions{})
			if err != nil || !slices.Equal(got, upTo(tc.want)) {
				t.Errorf("got %v, %v, want %d records", got, err, tc.want)
			}
			if tc.s.jobCalls != 1 {
				t.Errorf("asked for the job %d times, want 1", tc.s.jobCalls)
			}
		})
	}
}

func TestFollowGivesUp(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	begun := time.Now()
	_, err = follow(t, client(t, "http://"+addr), adminclient.FollowOptions{GiveUp: 300 * time.Millisecond})
	if !adminclient.IsUnreachable(err) {
		t.Errorf("got %v, want that the server can't be reached", err)
	}
	if d := time.Since(begun); d < 300*time.Millisecond || d > 5*time.Second {
		t.Errorf("gave up after %v, want a little over 300 ms", d)
	}
}

func TestFollowEndsWithTheServersRefusal(t *testing.T) {
	s := &logServer{behave: []func(http.ResponseWriter, *http.Request, []string){refusal(404, "not_found")}}
	srv := httptest.NewServer(s)
	defer srv.Close()
	_, err := follow(t, client(t, srv.URL), adminclient.FollowOptions{})
	if got := adminclient.CodeOf(err); got != protocol.CodeNotFound || adminclient.IsUnreachable(err) {
		t.Errorf("got %v, want not_found", err)
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	waiting := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		close(waiting)
		<-r.Context().Done()
	}))
	defer srv.Close()
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-waiting
		cancel(enough)
	}()
	for _, err := range client(t, srv.URL).Follow(ctx, "j", adminclient.FollowOptions{Attempt: 1}) {
		if !errors.Is(err, enough) {
			t.Errorf("got %v, want %v", err, enough)
		}
	}
}
