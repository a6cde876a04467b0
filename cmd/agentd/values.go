package main

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// into makes a field of a parser for single values.
func into[T any](r *reader, dst *T, parse func(string) (T, error)) field {
	return func(path string, n ast.Node) {
		text, ok := scalar(n)
		if !ok {
			r.fault(n, path, "%s where one value is wanted", kind(n))
			return
		}
		v, err := parse(text)
		if err != nil {
			r.fault(n, path, "%v", err)
			return
		}
		*dst = v
	}
}

func text(s string) (string, error) { return s, nil }

// word reads text that YAML would read as something else if it weren't quoted: it must be a string.
func (r *reader) word(dst *string) field { return into(r, dst, text) }

func parseBool(s string) (bool, error) {
	switch s {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, fmt.Errorf("%q is neither true nor false", s)
}

func intWithin(lo, hi int) func(string) (int, error) {
	return func(s string) (int, error) {
		v, err := strconv.Atoi(s)
		if err != nil || v < lo || v > hi {
			return 0, fmt.Errorf("%q is not a whole number within %d and %d", s, lo, hi)
		}
		return v, nil
	}
}

func parseCPUs(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v > 0) || v > 4096 {
		return 0, fmt.Errorf("%q is not a number of CPUs: write 0.5 or 2", s)
	}
	return v, nil
}

// parseDuration takes Go's durations. A number without a unit could mean anything, so it is refused.
func parseDuration(s string) (time.Duration, error) {
	v, err := time.ParseDuration(s)
	if err != nil || v < 0 {
		return 0, fmt.Errorf("%q is not a duration: write 500ms, 30s, 5m or 1h30m", s)
	}
	return v, nil
}

var units = map[string]int64{
	"B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
}

// sizeWithin takes sizes with a unit, decimal or binary.
func sizeWithin(lo, hi int64) func(string) (int64, error) {
	return func(s string) (int64, error) {
		i := strings.IndexFunc(s, func(c rune) bool { return (c < '0' || c > '9') && c != '.' })
		if i <= 0 {
			return 0, fmt.Errorf("%q is not a size: write 64KiB, 50MB or 2GiB", s)
		}
		n, err := strconv.ParseFloat(s[:i], 64)
		unit, ok := units[strings.TrimSpace(s[i:])]
		if err != nil || !ok || n*float64(unit) > math.MaxInt64/2 {
			return 0, fmt.Errorf("%q is not a size: units are %s", s, strings.Join(slices.Sorted(maps.Keys(units)), ", "))
		}
		v := int64(n * float64(unit))
		if v < lo || v > hi {
			return 0, fmt.Errorf("%s is not within %s and %s", s, size(lo), size(hi))
		}
		return v, nil
	}
}

// size prints a size so that it reads back.
func size(n int64) string {
	for _, u := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if n >= units[u] && n%units[u] == 0 {
			return strconv.FormatInt(n/units[u], 10) + u
		}
	}
	for _, u := range []string{"GB", "MB", "kB"} {
		if n >= units[u] && n%units[u] == 0 {
			return strconv.FormatInt(n/units[u], 10) + u
		}
	}
	return strconv.FormatInt(n, 10) + "B"
}

func parsePercent(s string) (float64, error) {
	num, ok := strings.CutSuffix(s, "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
	if !ok || err != nil || v < 0 || v > 90 {
		return 0, fmt.Errorf("%q is not a share of the disk: write 5%%, at most 90%%", s)
	}
	return v / 100, nil
}

func oneOf(allowed ...string) func(string) (string, error) {
	return func(s string) (string, error) {
		if !slices.Contains(allowed, s) {
			return "", fmt.Errorf("%q is none of %s", s, strings.Join(allowed, ", "))
		}
		return s, nil
	}
}

// list reads a sequence, each item by item.
func (r *reader) list(item func(i int, path string, n ast.Node)) field {
	return func(path string, n ast.Node) {
		seq, ok := n.(*ast.SequenceNode)
		if !ok {
			r.fault(n, path, "%s where a list is wanted: [a, b], or one line each that begins with -", kind(n))
			return
		}
		for i, v := range seq.Values {
			item(i, fmt.Sprintf("%s[%d]", path, i), v)
		}
	}
}

func (r *reader) words(dst *[]string) field {
	return func(path string, n ast.Node) {
		*dst = nil
		r.list(func(_ int, path string, n ast.Node) {
			var s string
			r.word(&s)(path, n)
			*dst = append(*dst, s)
		})(path, n)
	}
}

// table reads a mapping of free names to text.
func (r *reader) table(dst *map[string]string) field {
	return func(path string, n ast.Node) {
		*dst = map[string]string{}
		for _, kv := range r.pairs(path, n) {
			key, ok := scalar(kv.Key)
			if !ok {
				r.fault(kv.Key, path, "the key %s is not a plain name", kv.Key.String())
				continue
			}
			at := join(path, key)
			if _, twice := (*dst)[key]; twice {
				r.fault(kv.Key, at, "stands here for the second time")
			}
			value := ""
			r.word(&value)(at, kv.Value)
			(*dst)[key] = value
		}
	}
}
