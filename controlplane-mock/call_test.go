package controlplane

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"time"
)

// TestFaultsOfAnEndpoint: whatever an endpoint does, wherever it runs and however late, its client gets a whole answer or sees that it was cut.
func TestFaultsOfAnEndpoint(t *testing.T) {
	begin := func(c *call) {
		c.wrote = true
		c.w.Header().Set("Content-Length", "10")
		_, _ = io.WriteString(c.w, "half")
	}
	endpoints := map[string]struct {
		run    endpoint
		status int // 0: the connection is cut
	}{
		"panics":             {func(*call) error { panic("a fault") }, 500},
		"panics half-way":    {func(c *call) error { begin(c); panic("a fault") }, 0},
		"aborts":             {func(*call) error { panic(http.ErrAbortHandler) }, 0},
		"fails":              {func(*call) error { return leaseLost() }, 409},
		"fails half-way":     {func(c *call) error { begin(c); return errors.New("a fault") }, 0},
		"has nothing to say": {func(c *call) error { return c.answer(http.StatusNoContent, nil) }, 204},
	}
	late := func(e endpoint) endpoint {
		return func(c *call) error {
			h, ok := c.enter(time.Millisecond)
			if !ok {
				return errors.New("no place")
			}
			return c.wait(h, func(c *call) error {
				defer c.leave(h)
				return e(c)
			})
		}
	}
	for name, f := range endpoints {
		for how, wrap := range map[string]func(endpoint) endpoint{"at once": func(e endpoint) endpoint { return e }, "after a wait": late} {
			for _, inPlace := range []bool{false, true} {
				t.Run(name+" "+how, func(t *testing.T) {
					var e *env
					e = newWrappedEnv(t, nil, func(http.Handler) http.Handler {
						return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.srv.serve(w, r, "test", wrap(f.run), inPlace) })
					})
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server/", http.NoBody)
					if err != nil {
						t.Fatal(err)
					}
					resp, err := e.web.Do(req)
					var body []byte
					if err == nil {
						body, err = io.ReadAll(resp.Body)
						resp.Body.Close()
					}
					switch {
					case f.status == 0 && err == nil:
						t.Errorf("got a whole answer, %d %q; want a cut connection", resp.StatusCode, body)
					case f.status != 0 && (err != nil || resp.StatusCode != f.status):
						t.Errorf("got %v, %v; want status %d", resp, err, f.status)
					}
					if n := e.srv.holds.count(); n != 0 {
						t.Errorf("%d holds are left; want 0", n)
					}
				})
			}
		}
	}
}

// mined panics when it is written to.
type mined struct{ http.ResponseWriter }

func (mined) Write([]byte) (int, error) { panic("a fault") }
func (mined) FlushError() error         { panic("a fault") }

// TestFaultsOfAWriter: a writer that somebody has put around the server's may panic, and costs no more than its connection.
func TestFaultsOfAWriter(t *testing.T) {
	for name, run := range map[string]endpoint{
		"answers": func(c *call) error { return c.answer(http.StatusOK, struct{}{}) },
		"says no": func(*call) error { return leaseLost() },
		"panics":  func(*call) error { panic("a fault") },
		"flushes": func(*call) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			var e *env
			e = newWrappedEnv(t, nil, func(http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.srv.serve(mined{w}, r, "test", run, false) })
			})
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server/", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := e.web.Do(req)
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			if err == nil {
				t.Errorf("got a whole answer, %d; want a cut connection", resp.StatusCode)
			}
		})
	}
}
