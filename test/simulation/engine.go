package main

import (
	"math/rand/v2"
	"time"
)

// engine is the clock and what is to happen. One goroutine's.
type engine struct {
	now   time.Duration
	heap  []event // the earliest first
	count uint64
	rand  *rand.Rand
}

type event struct {
	at   time.Duration
	turn uint64 // of two at the same time, the one that was planned first
	do   func()
}

func (e event) before(o event) bool { return e.at < o.at || e.at == o.at && e.turn < o.turn }

func newEngine(seed uint64) *engine { return &engine{rand: rand.New(rand.NewPCG(seed, seed))} }

// after plans do for d from now.
func (e *engine) after(d time.Duration, do func()) {
	e.count++
	v := event{e.now + max(d, 0), e.count, do}
	h := append(e.heap, v)
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !v.before(h[parent]) {
			break
		}
		h[i], i = h[parent], parent
	}
	h[i] = v
	e.heap = h
}

func (e *engine) pop() event {
	h := e.heap
	first, last := h[0], h[len(h)-1]
	h[len(h)-1] = event{} // its function is garbage
	h = h[:len(h)-1]
	e.heap = h
	if len(h) == 0 {
		return first
	}
	i := 0
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(last) {
			break
		}
		h[i], i = h[child], child
	}
	h[i] = last
	return first
}

// run lets time pass until end.
func (e *engine) run(end time.Duration) {
	for len(e.heap) > 0 && e.heap[0].at <= end {
		v := e.pop()
		e.now = v.at
		v.do()
	}
	e.now = end
}

// upTo is anything between nothing and d.
func (e *engine) upTo(d time.Duration) time.Duration {
	return time.Duration(e.rand.Float64() * float64(d))
}

// about is a time whose mean is d: half of it always, the rest exponential. Service times vary, but have a least.
func (e *engine) about(d time.Duration) time.Duration {
	return d/2 + time.Duration(e.rand.ExpFloat64()*float64(d)/2)
}

// exp is an exponential time whose mean is d.
func (e *engine) exp(d time.Duration) time.Duration {
	return time.Duration(e.rand.ExpFloat64() * float64(d))
}
