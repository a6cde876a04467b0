package exec

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// defaultPath is for an agent that was started without a PATH.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// passed are the names of the agent's environment that a job gets. Short on purpose: the agent's environment
// may hold its own credentials, and a proxy's.
var passed = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "LANG", "LANGUAGE", "SSL_CERT_FILE", "SSL_CERT_DIR",
}

// refused are names that would let whoever submits a job choose what code a configured command runs: the loader's and the
// shells' hooks. AGENTD_… is refused as well, so that what a job reads there is true.
var refused = []string{"BASH_ENV", "ENV", "IFS", "SHELLOPTS", "BASHOPTS", "PS4", "GLIBC_TUNABLES"}

// validName says whether s is a portable name of an environment variable.
func validName(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '_', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case '0' <= c && c <= '9' && i > 0:
		default:
			return false
		}
	}
	return s != ""
}

func checkJobEnv(env []string) error {
	for _, kv := range env {
		name, value, ok := strings.Cut(kv, "=")
		switch {
		case !ok || !validName(name):
			return fmt.Errorf("env: %q is not a name of an environment variable", name)
		case strings.ContainsRune(value, 0):
			return fmt.Errorf("env: the value of %s holds a NUL", name)
		case strings.HasPrefix(name, "AGENTD_"), strings.HasPrefix(name, "LD_"), slices.Contains(refused, name):
			return fmt.Errorf("env: a job may not set %s", name)
		}
	}
	return nil
}

// environ builds what the command sees. Later entries win: the agent's own, then the user's, the job's, and last AGENTD_….
func (a *attempt) environ() []string {
	var env []string
	set := func(name, value string) {
		kv := name + "=" + value
		if i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") }); i >= 0 {
			env[i] = kv
			return
		}
		env = append(env, kv)
	}
	set("PATH", defaultPath)
	for _, kv := range a.r.cfg.Environ {
		name, value, ok := strings.Cut(kv, "=")
		if ok && (slices.Contains(passed, name) || strings.HasPrefix(name, "LC_") || slices.Contains(a.r.cfg.PassEnv, name)) {
			set(name, value)
		}
	}
	if u := a.user; u != nil {
		set("HOME", u.home)
		set("USER", u.name)
		set("LOGNAME", u.name)
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "SHELL=") || strings.HasPrefix(kv, "TMPDIR=") })
	}
	for _, kv := range a.spec.Env {
		name, value, _ := strings.Cut(kv, "=")
		set(name, value)
	}
	set("PWD", a.dir.path)
	set("AGENTD_JOB_ID", a.spec.JobID)
	set("AGENTD_ATTEMPT", strconv.FormatInt(a.spec.Attempt, 10))
	set("AGENTD_TYPE", a.spec.Type)
	set("AGENTD_WORK_DIR", a.dir.path)
	set("AGENTD_RESULT", a.dir.resultPath())
	return env
}

func lookup(env []string, name string) string {
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	return ""
}
