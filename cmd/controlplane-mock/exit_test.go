package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const someToken = "admin_0123456789abcdef"

// TestExitCodes holds the table that scripts rely on, against a server that answers what it is told.
func TestExitCodes(t *testing.T) {
	token := writeFile(t, "token", someToken+"\n", 0o600)
	problem := func(status int, code string) string {
		return fmt.Sprintf(`%d application/problem+json {"type":"about:blank","title":"t","status":%d,"code":%q,"detail":"the detail"}`, status, status, code)
	}
	for name, tc := range map[string]struct {
		answer string // "<status> <content type> <body>"
		args   []string
		code   int
		stderr string
	}{
		"done":                  {`200 application/json {"items":[],"next":""}`, []string{"jobs"}, 0, ""},
		"negative":              {problem(404, "not_found"), []string{"job", "j"}, 1, "the detail (not_found)"},
		"conflict":              {problem(409, "conflict"), []string{"retry", "j"}, 1, "the detail (conflict)"},
		"invalid":               {problem(400, "invalid"), []string{"submit", "--type", "x"}, 1, "the detail"},
		"internal":              {problem(500, "internal"), []string{"jobs"}, 1, "the detail"},
		"unauthenticated":       {problem(401, "unauthenticated"), []string{"jobs"}, 4, "the admin token isn't this server's"},
		"revoked":               {problem(403, "revoked"), []string{"jobs"}, 4, "the detail"},
		"unavailable":           {problem(503, "unavailable"), []string{"jobs"}, 75, "the detail"},
		"throttled":             {problem(429, "throttled"), []string{"jobs"}, 75, "the detail"},
		"asked: no agent":       {problem(503, "unavailable"), []string{"ask", "--type", "t", "--connector", "c", "{}"}, 75, ""},
		"asked: busy":           {problem(429, "busy"), []string{"ask", "--type", "t", "--connector", "c", "{}"}, 75, ""},
		"asked: timeout":        {problem(504, "timeout"), []string{"ask", "--type", "t", "--connector", "c", "{}"}, 75, ""},
		"asked: worker's error": {problem(502, "provider_throttled"), []string{"ask", "--type", "t", "--connector", "c", "{}"}, 1, "provider_throttled"},
		"asked: no queries":     {problem(404, "not_found"), []string{"ask", "--type", "t", "--connector", "c", "{}"}, 1, "takes no queries"},
		"asked: page":           {`200 application/json {"items":[1]}`, []string{"ask", "--type", "t", "--connector", "c", "{}"}, 0, ""},
		"a proxy's page":        {"200 text/html <html>", []string{"jobs"}, 3, "isn't a control plane's answer"},
		"a proxy's error":       {"502 text/html <html>", []string{"jobs"}, 3, "isn't a control plane's answer"},
		"no problem":            {"404 text/plain not found", []string{"jobs"}, 3, "isn't a control plane's answer"},
		"no faults":             {problem(404, "not_found"), []string{"faults"}, 1, "started without --faults"},
	} {
		t.Run(name, func(t *testing.T) {
			parts := strings.SplitN(tc.answer, " ", 3)
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if got, want := r.Header.Get("Authorization"), "Bearer "+someToken; got != want {
					t.Errorf("Authorization: got %q, want %q", got, want)
				}
				w.Header().Set("Content-Type", parts[1])
				var status int
				fmt.Sscan(parts[0], &status)
				w.WriteHeader(status)
				io.WriteString(w, parts[2])
			}))
			defer srv.Close()
			r := invoke(t, "", append(tc.args, "--url", srv.URL, "--admin-token-file", token)...)
			r.want(t, tc.code, "", tc.stderr)
			if tc.code != 0 && r.stdout != "" {
				t.Errorf("stdout: got %q, want nothing", r.stdout)
			}
			if strings.Contains(r.stderr, someToken) {
				t.Error("the token was printed")
			}
		})
	}
}

func TestUsageAndConfiguration(t *testing.T) {
	token := writeFile(t, "token", someToken, 0o600)
	nobody := "http://" + freeAddr(t)
	for name, tc := range map[string]struct {
		args   []string
		code   int
		stderr string
	}{
		"nothing":             {[]string{}, 2, "Available Commands"},
		"unknown command":     {[]string{"explode"}, 2, `unknown command "explode"`},
		"unknown subcommand":  {[]string{"agents", "explode"}, 2, `unknown command "explode"`},
		"unknown flag":        {[]string{"jobs", "--colour"}, 2, "--colour"},
		"missing argument":    {[]string{"job"}, 2, "accepts 1 arg"},
		"bad duration":        {[]string{"token", "--ttl", "soon"}, 2, "invalid duration"},
		"no type":             {[]string{"submit"}, 2, "--type is required"},
		"payload isn't JSON":  {[]string{"submit", "--type", "x", "--payload", "hello"}, 2, "isn't JSON"},
		"bad label":           {[]string{"submit", "--type", "x", "--label", "gpu"}, 2, "want NAME=VALUE"},
		"run nothing":         {[]string{"run"}, 2, "want either CMD"},
		"run both":            {[]string{"run", "--script", "x", "true"}, 2, "want either CMD"},
		"bad format":          {[]string{"logs", "j", "--format", "xml"}, 2, "want text or ndjson"},
		"bad stream":          {[]string{"logs", "j", "--stream", "x"}, 2, "want out, err or agent"},
		"outage and end":      {[]string{"outage", "refuse", "--end"}, 2, "want either refuse"},
		"ask nobody":          {[]string{"ask", "{}"}, 2, "--type and --connector"},
		"no token":            {[]string{"jobs"}, 78, "give --admin-token-file FILE or set CONTROLPLANE_ADMIN_TOKEN_FILE"},
		"token isn't there":   {[]string{"jobs", "--admin-token-file", "/nonexistent/token"}, 78, "/nonexistent/token"},
		"token file is empty": {[]string{"jobs", "--admin-token-file", writeFile(t, "e", "\n", 0o600)}, 78, "doesn't hold a token"},
		"URL without scheme":  {[]string{"jobs", "--admin-token-file", token, "--url", "localhost:7070"}, 78, "want http://HOST:PORT"},
		"no CA file":          {[]string{"jobs", "--admin-token-file", token, "--ca-file", "/nonexistent/ca"}, 78, "/nonexistent/ca"},
		"half a certificate":  {[]string{"jobs", "--admin-token-file", token, "--cert-file", "x"}, 78, "go together"},
		"nobody there":        {[]string{"jobs", "--admin-token-file", token, "--url", nobody}, 3, "is a control plane running there?"},
		"run, nobody there":   {[]string{"run", "--admin-token-file", token, "--url", nobody, "true"}, 3, "connection refused"},
		"version":             {[]string{"version"}, 0, ""},
		"completion":          {[]string{"completion", "bash"}, 0, ""},
		"help":                {[]string{"run", "--help"}, 0, ""},
		"serve without store": {[]string{"serve"}, 2, "--store is required"},
		"unknown store":       {[]string{"serve", "--store", "mysql://u:secret@h/d"}, 2, "want redka:DIR"},
		"database is away":    {[]string{"serve", "--store", "postgres://u:secret@127.0.0.1:1/d", "--admin-token-file", token}, 3, "refused"},
		"no database URL":     {[]string{"serve", "--store", "postgres://u:secret@h:x/d", "--admin-token-file", token}, 78, "port"},
		"database, no token":  {[]string{"serve", "--store", "postgres://u:secret@127.0.0.1:1/d"}, 2, "--admin-token-file is required"},
		"keep logs how long":  {[]string{"serve", "--store", "redka:x", "--keep-logs", "30"}, 2, "as 30d"},
		"redka keeps all":     {[]string{"serve", "--store", "redka:x", "--keep-logs", "30d"}, 2, "only a PostgreSQL store"},
		"bad log level":       {[]string{"serve", "--store", "redka:x", "--log-level", "loud"}, 2, "want debug"},
		"client CA alone":     {[]string{"serve", "--store", "redka:x", "--client-ca", "y"}, 2, "needs TLS"},
		"half a key pair":     {[]string{"serve", "--store", "redka:x", "--tls-cert", "y"}, 2, "go together"},
		"no such certificate": {[]string{"serve", "--store", "redka:x", "--tls-cert", "/nonexistent/c", "--tls-key", "/nonexistent/k"}, 78, "/nonexistent/c"},
		"silly lease TTL":     {[]string{"serve", "--store", "redka:" + t.TempDir(), "--lease-ttl", "1ms"}, 78, "LeaseTTL"},
	} {
		t.Run(name, func(t *testing.T) {
			r := invoke(t, "", tc.args...)
			r.want(t, tc.code, "", tc.stderr)
			if tc.code == 0 && r.stdout == "" {
				t.Error("printed nothing")
			}
			if strings.Contains(r.stderr, "secret") {
				t.Errorf("a password was printed: %s", r.stderr)
			}
		})
	}
}

func TestFlagsWinOverTheEnvironment(t *testing.T) {
	s := serving(t)
	for _, tc := range []struct {
		env  map[string]string
		args []string
		code int
	}{
		{map[string]string{"CONTROLPLANE_URL": s.url, "CONTROLPLANE_ADMIN_TOKEN_FILE": s.token}, []string{"jobs"}, 0},
		{map[string]string{"CONTROLPLANE_URL": "http://127.0.0.1:1", "CONTROLPLANE_ADMIN_TOKEN_FILE": "/nonexistent"}, s.args("jobs"), 0},
		{map[string]string{"CONTROLPLANE_URL": "http://127.0.0.1:1", "CONTROLPLANE_ADMIN_TOKEN_FILE": s.token}, []string{"jobs"}, 3},
	} {
		if got := invokeWith(t, "", tc.env, tc.args...); got.code != tc.code {
			t.Errorf("%v %v: got %+v, want exit code %d", tc.env, tc.args, got, tc.code)
		}
	}
}

// What can't be used is named, with the fix.
func TestServeRefuses(t *testing.T) {
	s := serving(t)
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	open := writeFile(t, "open", someToken, 0o644)
	short := writeFile(t, "short", "secret", 0o600)
	file := writeFile(t, "file", "", 0o600)
	for name, tc := range map[string]struct {
		args []string
		code int
		want []string
	}{
		"port in use":           {[]string{"--listen", s.listen, "--store", "redka:" + other}, 1, []string{s.listen, "in use", "--listen"}},
		"admin port in use":     {[]string{"--listen", "127.0.0.1:0", "--admin-listen", s.listen, "--store", "redka:" + other}, 1, []string{s.listen, "in use", "--admin-listen"}},
		"not our address":       {[]string{"--listen", "192.0.2.1:7070", "--store", "redka:" + other}, 78, []string{"192.0.2.1:7070", "HOST:PORT of this machine"}},
		"no address":            {[]string{"--listen", "7070", "--store", "redka:" + other}, 78, []string{"7070", "HOST:PORT"}},
		"store in use":          {[]string{"--listen", "127.0.0.1:0", "--store", "redka:" + s.dir}, 1, []string{s.dir, "in use by process"}},
		"store is a file":       {[]string{"--listen", "127.0.0.1:0", "--store", "redka:" + file}, 78, []string{file, "name a directory"}},
		"store can't be":        {[]string{"--listen", "127.0.0.1:0", "--store", "redka:/proc/x"}, 1, []string{"/proc/x"}},
		"token that others see": {[]string{"--listen", "127.0.0.1:0", "--store", "redka:" + other, "--admin-token-file", open}, 78, []string{open, "chmod 600"}},
		"token that is short":   {[]string{"--listen", "127.0.0.1:0", "--store", "redka:" + other, "--admin-token-file", short}, 78, []string{short, "fewer than 16"}},
		"token's folder":        {[]string{"--listen", "127.0.0.1:0", "--store", "redka:" + other, "--admin-token-file", file + "/token"}, 78, []string{file, "--admin-token-file"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := invoke(t, "", append([]string{"serve"}, tc.args...)...)
			if r.code != tc.code {
				t.Errorf("exit code: got %d, want %d\n%s", r.code, tc.code, r.stderr)
			}
			for _, want := range tc.want {
				if !strings.Contains(r.stderr, want) {
					t.Errorf("got %s, want %q in it", r.stderr, want)
				}
			}
		})
	}
}

func TestAdminTokenFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "new", "token")
	first, written, err := adminToken(file)
	if err != nil || !written || len(first) < 32 {
		t.Fatalf("got %q, %v, %v, want a new token", first, written, err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v, want mode 0600", info, err)
	}
	again, written, err := adminToken(file)
	if err != nil || written || again != first {
		t.Errorf("again: got %q, %v, %v, want the same one", again, written, err)
	}
	left, err := os.ReadDir(filepath.Dir(file))
	if err != nil || len(left) != 1 {
		t.Errorf("the folder holds %v (%v), want the token only", left, err)
	}
}
