package main

import (
	"context"
	"runtime/debug"
	"testing"
)

func TestCollectorPercent(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		what   string
		now    int
		marked uint64
		share  float64
		want   int
	}{
		{"a small heap is left alone", 100, 4 * mb, 0, 100},
		{"a heap that isn't measured yet, too", 100, 0, 0, 100},
		{"one of some size keeps a headroom", 100, 40 * mb, 0, 20},
		{"a large one that idles is kept tight", 100, 400 * mb, 0, leastPercent},
		{"collections that take half of what they may: twice as many", 40, 400 * mb, mostShare / 2, 20},
		{"that take what they may: as many", 40, 400 * mb, mostShare, 40},
		{"that take twice that: half as many", 40, 400 * mb, 2 * mostShare, 80},
		{"a busy server has the default, not more", 60, 400 * mb, 5 * mostShare, 100},
	} {
		if got := collectorPercent(c.now, c.marked, c.share); got != c.want {
			t.Errorf("%s: got %d, want %d", c.what, got, c.want)
		}
	}
}

func TestTheCollectorIsLeftAsItWas(t *testing.T) {
	was := debug.SetGCPercent(77)
	defer debug.SetGCPercent(was)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tuneCollector(ctx)
	if got := debug.SetGCPercent(77); got != 77 {
		t.Errorf("GOGC is %d after the server's end; want the 77 that it was", got)
	}
}
