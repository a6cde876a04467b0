package main

import (
	"testing"
	"time"
)

func TestDays(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"30d": 30 * day, "1d": day, "36h": 36 * time.Hour, "90m": 90 * time.Minute,
		"": 0, "30": 0, "d": 0, "0d": 0, "-1d": 0, "-5h": 0, "1d12h": 0, "999999999d": 0, "9223372036854775807d": 0,
	} {
		var d days
		if err := d.Set(in); time.Duration(d) != want || (err == nil) != (want > 0) {
			t.Errorf("%q: got %v (%v), want %v", in, time.Duration(d), err, want)
		}
		if want > 0 {
			var again days
			if err := again.Set(d.String()); err != nil || again != d {
				t.Errorf("%q: written as %q, which is read as %v (%v)", in, d.String(), time.Duration(again), err)
			}
		}
	}
}
