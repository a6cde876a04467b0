package identity_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/identity"
	"agentd/agent/protocol"
)

// bubble gives an identity that is linked and runs, with a control plane that it reaches over
// memory, in fake time.
func bubble(t *testing.T, c *control, dir string, tokens identity.TokenSource) (*identity.Identity, *protocol.Client) {
	t.Helper()
	ln := newPipes()
	server := &http.Server{Handler: c}
	var wg sync.WaitGroup
	wg.Go(func() { server.Serve(ln) })
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return ln.dial() }}
	cfg := protocol.ClientConfig{Server: "http://localhost", Base: transport, ProcessID: fmt.Sprintf("boot.%p", ln)}
	linker, err := protocol.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	i, err := identity.Open(identity.Config{Dir: dir, ProcessID: cfg.ProcessID, Linker: linker, Token: tokens, Info: identity.Info{Name: "host-1"}})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Credential, cfg.Relink = i.Credential, i.Relink
	client, err := protocol.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() {
		if err := i.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		transport.CloseIdleConnections()
		server.Close()
		wg.Wait()
	})
	synctest.Wait()
	return i, client
}

func TestKeysAreRenewedAtThreeQuartersOfTheirLife(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := unserved(t)
		i, _ := bubble(t, c, dir, token("good"))
		if s := i.Status(); s.State != identity.Linked || s.NextLink != 45*time.Minute || s.KeyLeft != time.Hour ||
			!strings.Contains(s.Words, "linked as "+i.AgentID()) {
			t.Fatalf("got %+v, want linked, renewal in 45 min", s)
		}
		key := i.Credential()
		time.Sleep(45*time.Minute - time.Second)
		synctest.Wait()
		if links, _ := c.seen(); links != 1 || i.Credential() != key {
			t.Fatalf("got %d links a second early, want 1", links)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if links, _ := c.seen(); links != 2 || i.Credential() == key {
			t.Fatalf("got %d links, want 2 and another key", links)
		}
		time.Sleep(3 * 24 * time.Hour)
		synctest.Wait()
		if links, attempts := c.seen(); links != 1+3*24*60/45+1 || links != attempts {
			t.Fatalf("got %d of %d links after three days, want one every 45 min", links, attempts)
		}
		for n, l := range c.links {
			if l.Start != (n == 0) || (l.AgentID == "") != (n == 0) {
				t.Fatalf("link %d: start %v, agent id %q", n, l.Start, l.AgentID)
			}
		}
	})
}

func TestAnOutageAtRenewalCostsNothing(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := unserved(t)
		i, client := bubble(t, c, dir, token("good"))
		id := i.AgentID()
		c.set(func() { c.drop = 1 << 30 })
		time.Sleep(50 * time.Minute)
		synctest.Wait()
		if s := i.Status(); s.State != identity.Linked || !strings.Contains(s.Words, "could not be renewed yet") {
			t.Errorf("got %+v, want linked on the old key", s)
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if s := i.Status(); s.State != identity.Away || !strings.Contains(s.Words, "linking does not work yet") {
			t.Errorf("got %+v, want away", s)
		}
		c.set(func() { c.keys = map[string]string{} }) // the server let them all run out
		before, _ := c.seen()
		if err := poll(t, client); protocol.ActionFor(err) != protocol.Retry {
			t.Errorf("got %v, want the outage's error at once", err)
		}
		for range 10 {
			_ = poll(t, client)
		}
		if after, _ := c.seen(); after-before > 1 {
			t.Errorf("calls that were refused within a moment asked %d times, want once", after-before)
		}
		c.set(func() { c.drop = 0 })
		time.Sleep(time.Second)
		// The back-off is at 30 s by now. A heartbeat that the server refuses doesn't wait for it: the lease would be lost.
		if err := poll(t, client); err != nil || i.AgentID() != id || i.Status().State != identity.Linked {
			t.Errorf("after the outage: %v, %+v", err, i.Status())
		}
	})
}

func poll(t *testing.T, c *protocol.Client) error {
	t.Helper()
	_, err := c.NextJob(t.Context(), protocol.PollRequest{PollID: "p", Types: []string{"extract"}})
	return err
}

func TestARefusedKeyIsReplacedOnceForAllWhoAsk(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := unserved(t)
		i, client := bubble(t, c, dir, token("good"))
		old := i.Credential()
		c.set(func() { c.keys = map[string]string{} })
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if err := poll(t, client); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if links, _ := c.seen(); links != 2 {
			t.Errorf("got %d links for 50 refused calls, want 1 more", links-1)
		}
		if err := i.Relink(t.Context(), old); err != nil {
			t.Errorf("a key that is replaced already: %v", err)
		}
		if links, _ := c.seen(); links != 2 {
			t.Errorf("it was replaced again")
		}
	})
}

func TestACallerThatGivesUpDoesNotEndTheLinkOfTheOthers(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := unserved(t)
		i, _ := bubble(t, c, dir, token("good"))
		old := i.Credential()
		gone, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("gone"))
		if err := i.Relink(gone, old); err == nil || err.Error() != "gone" {
			t.Errorf("got %v, want gone", err)
		}
		if err := i.Relink(t.Context(), old); err != nil || i.Credential() == old {
			t.Errorf("got %v, key %s", err, i.Credential())
		}
		if links, _ := c.seen(); links != 2 {
			t.Errorf("got %d links, want 2", links)
		}
	})
}

func TestRevokedAsksEveryFiveMinutesUntilRestored(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := unserved(t)
		i, client := bubble(t, c, dir, token("good"))
		c.set(func() { c.revoked = true })
		err := poll(t, client)
		if protocol.ActionFor(err) != protocol.StopRevoked {
			t.Fatalf("got %v", err)
		}
		i.Report(err)
		if s := i.Status(); s.State != identity.Revoked || s.NextLink != 5*time.Minute || !strings.Contains(s.Words, "revoked by the control plane's operator") {
			t.Fatalf("got %+v", s)
		}
		time.Sleep(time.Hour)
		c.set(func() { c.revoked = false })
		start := time.Now()
		if err := i.WaitLinked(t.Context()); err != nil || time.Since(start) > 5*time.Minute {
			t.Errorf("linked %v after the restore, %v", time.Since(start), err)
		}
	})
}

func TestARefusedTokenIsTriedAgainWhenItChanges(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := unserved(t)
		var mu sync.Mutex
		now := "bad"
		i, _ := bubble(t, c, dir, func() (string, error) {
			mu.Lock()
			defer mu.Unlock()
			return now, nil
		})
		if s := i.Status(); s.State != identity.Refused || s.NextLink != 5*time.Minute {
			t.Fatalf("got %+v, want refused", s)
		}
		time.Sleep(16 * time.Minute)
		synctest.Wait()
		if _, attempts := c.seen(); attempts != 4 {
			t.Errorf("got %d attempts in 16 min, want one every 5 min", attempts)
		}
		mu.Lock()
		now = "good"
		mu.Unlock()
		start := time.Now()
		if err := i.WaitLinked(t.Context()); err != nil || time.Since(start) > 5*time.Second {
			t.Errorf("linked after %v, %v, want 5 s", time.Since(start), err)
		}
	})
}

// TestACopiedStateDirectory is I2: the later process is the current one, the earlier one stops
// asking for work, never links with start again, and goes on otherwise.
func TestACopiedStateDirectory(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := unserved(t)
		first, client := bubble(t, c, dir, token("good"))
		second, other := bubble(t, c, dir, nil)
		if first.AgentID() != second.AgentID() {
			t.Fatal("not a copy")
		}
		err := poll(t, client)
		if protocol.ActionFor(err) != protocol.StopConflict {
			t.Fatalf("got %v, want a conflict", err)
		}
		first.Report(err)
		time.Sleep(10 * time.Hour)
		synctest.Wait()
		if s := first.Status(); s.State != identity.Conflict || !strings.Contains(s.Words, "copied state directory") || s.KeyLeft == 0 {
			t.Errorf("got %+v, want a conflict with a good key", s)
		}
		if _, err := client.LogNext(t.Context(), protocol.AttemptRef{JobID: "j", Attempt: 1, LeaseToken: "lt"}); err != nil {
			t.Errorf("its logs: %v", err)
		}
		if err := poll(t, other); err != nil {
			t.Errorf("the current process: %v", err)
		}
		starts := 0
		for _, l := range c.links {
			if l.Start {
				starts++
			}
		}
		if starts != 2 {
			t.Errorf("got %d links with start, want 2", starts)
		}
	})
}

func TestAReloadIsAnnounced(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := unserved(t)
		i, _ := bubble(t, c, dir, token("good"))
		i.Announce(identity.Info{Name: "host-1", Labels: map[string]string{"gpu": "1"}, Connectors: []string{"ucc_entra"}})
		synctest.Wait()
		if links, _ := c.seen(); links != 2 {
			t.Fatalf("got %d links, want 2", links)
		}
		if l := c.links[1]; l.Labels["gpu"] != "1" || l.Connectors[0] != "ucc_entra" || l.Start {
			t.Errorf("got %+v", l)
		}
	})
}

// pipes is a listener over memory, so that fake time knows when everybody waits.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) dial() (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }
