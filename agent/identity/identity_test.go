package identity_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"agentd/agent/identity"
	"agentd/agent/protocol"
)

func token(s string) identity.TokenSource { return func() (string, error) { return s, nil } }

// open opens the identity in dir, as another process of the agent would.
func open(t *testing.T, c *control, dir string, tokens identity.TokenSource) *identity.Identity {
	t.Helper()
	client, err := protocol.NewClient(protocol.ClientConfig{Server: c.url})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	id, err := identity.NewProcessID()
	if err != nil {
		t.Fatal(err)
	}
	i, err := identity.Open(identity.Config{
		Dir: dir, ProcessID: id, Linker: client, Token: tokens,
		Info: identity.Info{Name: "host-1", Labels: map[string]string{"region": "eu-1"}, Types: []string{"extract"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// run runs i until the test, or the returned stop, ends it.
func run(t *testing.T, i *identity.Identity) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := i.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	stop = func() { cancel(); wg.Wait() }
	t.Cleanup(stop)
	return stop
}

func linked(t *testing.T, i *identity.Identity) {
	t.Helper()
	if err := i.WaitLinked(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAFirstLinkKeepsTheIDOverRestarts(t *testing.T) {
	c, dir := newControl(t), filepath.Join(t.TempDir(), "state")
	i := open(t, c, dir, token("good"))
	stop := run(t, i)
	linked(t, i)
	id, key := i.AgentID(), i.Credential()
	stop()

	info, err := os.Stat(filepath.Join(dir, "identity.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("got %v, %v, want 0600", info.Mode(), err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "identity.json"))
	if err != nil || strings.Contains(string(data), key) || strings.Contains(string(data), "good") {
		t.Fatalf("the API key or the token is stored: %s, %v", data, err)
	}
	if names := list(t, dir); !reflect.DeepEqual(names, []string{"identity.json"}) {
		t.Errorf("left behind: %v", names)
	}

	again := open(t, c, dir, nil) // no token any more
	if got := again.AgentID(); got != id {
		t.Fatalf("got %s before the re-link, want %s", got, id)
	}
	run(t, again)
	linked(t, again)
	if got := again.AgentID(); got != id || again.Credential() == key {
		t.Fatalf("got %s with key %s, want %s with another key", got, again.Credential(), id)
	}
	c.set(func() {
		if first, second := c.links[0], c.links[1]; !first.Start || !second.Start || first.AgentID != "" || second.AgentID != id ||
			second.Labels["region"] != "eu-1" || string(first.PublicKey) != string(second.PublicKey) {
			t.Errorf("got %+v, then %+v", first, second)
		}
	})
}

func TestALostAnswerCostsNoIdentity(t *testing.T) {
	c, dir := newControl(t), t.TempDir()
	c.drop = 2
	i := open(t, c, dir, token("good"))
	for range 2 {
		if _, err := i.Enrol(t.Context(), identity.Enrolment{}); protocol.ActionFor(err) != protocol.Retry {
			t.Fatalf("got %v, want a lost answer", err)
		}
	}
	after := open(t, c, dir, token("good")) // killed meanwhile
	if already, err := after.Enrol(t.Context(), identity.Enrolment{}); already || err != nil {
		t.Fatalf("got %v, %v", already, err)
	}
	c.set(func() {
		if len(c.agents) != 1 || c.agents[after.AgentID()] == "" {
			t.Errorf("got agents %v, want just %s", c.agents, after.AgentID())
		}
	})
}

func TestLinkingAgainDoesNothingUnlessForced(t *testing.T) {
	c, dir := newControl(t), t.TempDir()
	c.tokens["better"] = ""
	i := open(t, c, dir, token("good"))
	if _, err := i.Enrol(t.Context(), identity.Enrolment{}); err != nil {
		t.Fatal(err)
	}
	id, before := i.AgentID(), read(t, dir)
	i = open(t, c, dir, token("better"))
	if already, err := i.Enrol(t.Context(), identity.Enrolment{AgentID: id}); !already || err != nil {
		t.Fatalf("got %v, %v, want already", already, err)
	}
	if other, ok := errors.AsType[*identity.OtherIDError](second(i.Enrol(t.Context(), identity.Enrolment{AgentID: "agt_x"}))); !ok || other.Have != id {
		t.Fatalf("got %v, want an OtherIDError", other)
	}
	none := open(t, c, dir, token(""))
	if _, err := none.Enrol(t.Context(), identity.Enrolment{Force: true}); !errors.Is(err, identity.ErrNoToken) || read(t, dir) != before {
		t.Fatalf("got %v, want %v and the old identity", err, identity.ErrNoToken)
	}
	if links, _ := c.seen(); links != 1 {
		t.Fatalf("got %d links, want 1", links)
	}

	// Forced, with the answer lost: the old identity stands until the new one is certain.
	c.set(func() { c.drop = 1 })
	if _, err := i.Enrol(t.Context(), identity.Enrolment{Force: true}); err == nil || read(t, dir) != before {
		t.Fatalf("got %v, want an error and the old identity", err)
	}
	i = open(t, c, dir, token("better"))
	if _, err := i.Enrol(t.Context(), identity.Enrolment{Force: true}); err != nil || i.AgentID() == id || read(t, dir) == before {
		t.Fatalf("got %v, agent %s, want another agent than %s", err, i.AgentID(), id)
	}
	if names := list(t, dir); !reflect.DeepEqual(names, []string{"identity.json"}) {
		t.Errorf("left behind: %v", names)
	}
}

func TestABoundTokenTakesOverALostStateDirectory(t *testing.T) {
	c := newControl(t)
	oldDir := t.TempDir()
	old := open(t, c, oldDir, token("good"))
	if _, err := old.Enrol(t.Context(), identity.Enrolment{}); err != nil {
		t.Fatal(err)
	}
	c.tokens["bound"], c.tokens["free"] = old.AgentID(), ""
	dir := t.TempDir()
	wrong := open(t, c, dir, token("free"))
	if other, ok := errors.AsType[*identity.OtherIDError](second(wrong.Enrol(t.Context(), identity.Enrolment{AgentID: old.AgentID()}))); !ok || other.Want != old.AgentID() {
		t.Fatalf("got %v, want an OtherIDError", other)
	}
	i := open(t, c, dir, token("bound"))
	if _, err := i.Enrol(t.Context(), identity.Enrolment{AgentID: old.AgentID()}); err != nil || i.AgentID() != old.AgentID() {
		t.Fatalf("got %s, %v, want %s", i.AgentID(), err, old.AgentID())
	}
	// What was left of the old directory is refused, and says what to do.
	synctest.Test(t, func(t *testing.T) {
		left, client := bubble(t, c, oldDir, nil)
		_, before := c.seen()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		if s := left.Status(); s.State != identity.Conflict || !strings.Contains(s.Words, "another machine or process uses this identity") || s.NextLink != 0 {
			t.Errorf("got %+v, want a conflict and no further link", s)
		}
		if err := poll(t, client); protocol.ActionFor(err) != protocol.StopConflict {
			t.Errorf("a call: got %v, want the conflict", err)
		}
		if _, after := c.seen(); after != before {
			t.Errorf("linked with start %d times more by itself", after-before)
		}
	})
}

// TestReadOnlyStateDirectory is I3: refused before anything is given up.
func TestReadOnlyStateDirectory(t *testing.T) {
	c := newControl(t)
	for name, dir := range map[string]string{
		"read-only file system": "/proc/agentd", // the one read-only place that root can't write either
		"a file":                filepath.Join(t.TempDir(), "file"),
	} {
		if name == "a file" {
			if err := os.WriteFile(dir, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		client, err := protocol.NewClient(protocol.ClientConfig{Server: c.url})
		if err != nil {
			t.Fatal(err)
		}
		_, err = identity.Open(identity.Config{Dir: dir, ProcessID: "b.p", Linker: client, Token: token("good")})
		if !errors.Is(err, identity.ErrNotWritable) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: got %v, want ErrNotWritable with the directory named", name, err)
		}
	}
	if _, attempts := c.seen(); attempts != 0 {
		t.Errorf("the server was asked %d times", attempts)
	}
}

func TestWithoutTokenNothingIsLinked(t *testing.T) {
	i := open(t, newControl(t), t.TempDir(), nil)
	if err := i.Linkable(); !errors.Is(err, identity.ErrNotLinked) {
		t.Errorf("Linkable: got %v", err)
	}
	if err := i.Run(t.Context()); !errors.Is(err, identity.ErrNotLinked) || !strings.Contains(err.Error(), "agentd link --config") {
		t.Errorf("Run: got %v, want how to link", err)
	}
	if err := i.Relink(t.Context(), ""); !errors.Is(err, identity.ErrStopped) {
		t.Errorf("Relink: got %v", err)
	}
}

func TestADamagedFileIsLeftAsItIs(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"", "{", `{"version":2}`, `{"version":1,"privateKey":"AAAA"}`, `{"version":1}`} {
		if err := os.WriteFile(filepath.Join(dir, "identity.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := identity.Open(identity.Config{Dir: dir, ProcessID: "b.p", Linker: &protocol.Client{}})
		if damaged, ok := errors.AsType[*identity.DamagedError](err); !ok || damaged.Path != filepath.Join(dir, "identity.json") || read(t, dir) != text {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

func TestAFileThatOthersCanReadIsNarrowed(t *testing.T) {
	c, dir := newControl(t), t.TempDir()
	if _, err := open(t, c, dir, token("good")).Enrol(t.Context(), identity.Enrolment{}); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "identity.json")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	open(t, c, dir, nil)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("got %v, %v, want 0600", info.Mode(), err)
	}
	storedKey(t, []byte(read(t, dir)))
}

func TestTokenSources(t *testing.T) {
	dir := t.TempDir()
	good, odd := filepath.Join(dir, "token"), filepath.Join(dir, "odd")
	for path, text := range map[string]string{good: " tok-1\n", odd: "two words\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		source identity.TokenSource
		want   string
		err    string
	}{
		"file":               {identity.TokenFile(good), "tok-1", ""},
		"no file":            {identity.TokenFile(dir + "/none"), "", "no such file"},
		"no token":           {identity.TokenFile(odd), "", "holds no token"},
		"credential":         {identity.TokenCredential(dir), "tok-1", ""},
		"no credential":      {identity.TokenCredential(t.TempDir()), "", ""},
		"not under systemd":  {identity.TokenCredential(""), "", ""},
		"standard input":     {identity.TokenReader(strings.NewReader("tok-2\n")), "tok-2", ""},
		"endless":            {identity.TokenReader(strings.NewReader(strings.Repeat("x", 5000))), "", "holds no token"},
		"the first that has": {identity.FirstToken(identity.TokenCredential(""), token("tok-3"), token("tok-4")), "tok-3", ""},
	} {
		got, err := c.source()
		if got != c.want || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: got %q, %v, want %q, %s", name, got, err, c.want, c.err)
		}
	}
}

func TestProcessIDsAreOfThisBootAndDiffer(t *testing.T) {
	a, errA := identity.NewProcessID()
	b, errB := identity.NewProcessID()
	bootA, _, _ := strings.Cut(a, ".")
	bootB, _, _ := strings.Cut(b, ".")
	if errA != nil || errB != nil || a == b || bootA != bootB || !protocol.ValidProcessID(a) {
		t.Fatalf("got %s, %s, %v, %v", a, b, errA, errB)
	}
}

func second(_ bool, err error) error { return err }

func read(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "identity.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return string(data)
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
