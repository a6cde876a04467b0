package faults

import (
	"fmt"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
)

// Predicate picks requests, and prints itself. It may be called concurrently.
type Predicate interface {
	Match(r *http.Request) bool
	String() string
}

type predicate struct {
	match func(*http.Request) bool
	text  func() string
}

func (p predicate) Match(r *http.Request) bool { return p.match(r) }
func (p predicate) String() string             { return p.text() }

func words(s string) func() string { return func() string { return s } }

// When is a predicate from a function and its name.
func When(name string, match func(*http.Request) bool) Predicate {
	return predicate{match, words(name)}
}

// Method matches requests of that method.
func Method(m string) Predicate {
	return When("method "+m, func(r *http.Request) bool { return strings.EqualFold(r.Method, m) })
}

// Path matches paths by glob: * stands for anything within one segment, ** for any number of
// segments. Empty matches all.
func Path(glob string) (Predicate, error) {
	if glob == "" {
		return And(), nil
	}
	want := strings.Split(glob, "/")
	for _, seg := range want {
		if _, err := path.Match(seg, ""); err != nil {
			return nil, fmt.Errorf("path %q: %w", glob, err)
		}
	}
	return When("path "+glob, func(r *http.Request) bool {
		return matchSegments(want, strings.Split(r.URL.Path, "/"))
	}), nil
}

// matchSegments needs to come back to the latest ** only: what an earlier one took was enough for
// all that stands between the two, and the latest can take the rest. So no glob takes long.
func matchSegments(want, got []string) bool {
	w, g, star, taken := 0, 0, -1, 0
	for g < len(got) {
		if w < len(want) && want[w] == "**" {
			star, taken = w, g
			w++
			continue
		}
		if w < len(want) {
			if ok, _ := path.Match(want[w], got[g]); ok {
				w++
				g++
				continue
			}
		}
		if star < 0 {
			return false
		}
		taken++
		w, g = star+1, taken
	}
	for w < len(want) && want[w] == "**" {
		w++
	}
	return w == len(want)
}

// Chance matches with probability p; random answers from [0,1).
func Chance(p float64, random func() float64) Predicate {
	return When(fmt.Sprintf("probability %g", p), func(*http.Request) bool { return random() < p })
}

// First matches n times, then never again.
func First(n int64) Predicate {
	var used atomic.Int64
	return predicate{
		match: func(*http.Request) bool {
			// Not beyond n, so that no number of requests wraps around.
			for {
				u := used.Load()
				if u >= n {
					return false
				}
				if used.CompareAndSwap(u, u+1) {
					return true
				}
			}
		},
		text: func() string { return fmt.Sprintf("the first %d (%d so far)", n, used.Load()) },
	}
}

// And matches when all do, asked in order until one doesn't; with none, it always matches.
func And(all ...Predicate) Predicate {
	return predicate{
		match: func(r *http.Request) bool {
			for _, p := range all {
				if !p.Match(r) {
					return false
				}
			}
			return true
		},
		text: func() string { return join(all, " and ", "any request") },
	}
}

// Or matches when one does.
func Or(some ...Predicate) Predicate {
	return predicate{
		match: func(r *http.Request) bool {
			for _, p := range some {
				if p.Match(r) {
					return true
				}
			}
			return false
		},
		text: func() string { return "(" + join(some, " or ", "no request") + ")" },
	}
}

// Not matches when p doesn't.
func Not(p Predicate) Predicate {
	return predicate{
		match: func(r *http.Request) bool { return !p.Match(r) },
		text:  func() string { return "not (" + p.String() + ")" },
	}
}

func join(ps []Predicate, sep, none string) string {
	if len(ps) == 0 {
		return none
	}
	texts := make([]string, len(ps))
	for i, p := range ps {
		texts[i] = p.String()
	}
	return strings.Join(texts, sep)
}
