package main

import (
	"fmt"
	"io"
	"slices"
	"time"
)

// report prints results as they come: what, the value, the goal and whether it was met.
type report struct{ w io.Writer }

func newReport(w io.Writer) *report { return &report{w} }

func (r *report) section(what string) { fmt.Fprintf(r.w, "\n%s\n", what) }

// value prints a plain figure.
func (r *report) value(what, format string, v any) {
	fmt.Fprintf(r.w, "  %-58s "+format+"\n", what, v)
}

// atMost prints a figure whose goal is an upper bound.
func (r *report) atMost(what, unit string, v, goal float64) {
	r.goal(what, unit, v, goal, "≤", v <= goal)
}

// atLeast prints a figure whose goal is a lower bound.
func (r *report) atLeast(what, unit string, v, goal float64) {
	r.goal(what, unit, v, goal, "≥", v >= goal)
}

func (r *report) goal(what, unit string, v, goal float64, sign string, met bool) {
	word := "met"
	if !met {
		word = "MISSED"
	}
	fmt.Fprintf(r.w, "  %-58s %9.2f %-8s goal %s %g: %s\n", what, v, unit, sign, goal, word)
}

// percentiles prints p50 and p99 of d in milliseconds; the goal is p99's.
func (r *report) percentiles(what string, d []time.Duration, goal time.Duration) {
	slices.Sort(d)
	ms := func(p float64) float64 {
		return float64(d[min(len(d)-1, int(p*float64(len(d))))].Microseconds()) / 1000
	}
	r.value(fmt.Sprintf("%s, p50 of %d", what, len(d)), "%9.2f ms", ms(0.50))
	r.atMost(what+", p99", "ms", ms(0.99), float64(goal.Microseconds())/1000)
}
