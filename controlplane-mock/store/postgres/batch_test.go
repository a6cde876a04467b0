package postgres

import (
	"reflect"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// flushes is what a batcher flushed, and when.
type flushes struct {
	mu   sync.Mutex
	all  [][]int
	when []time.Duration
}

// batching runs f on a batcher in a bubble, in which a flush takes as long as takes says, and wants exactly those flushes.
func batching(t *testing.T, b *batcher[int], takes time.Duration, f func(add func(items ...int), urgent func(int)), want ...[]int) *flushes {
	t.Helper()
	var got flushes
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var wg sync.WaitGroup
		b.flush = func(items []int) {
			got.mu.Lock()
			got.all, got.when = append(got.all, items), append(got.when, time.Since(began))
			got.mu.Unlock()
			time.Sleep(takes)
		}
		newBatcher(&wg, b)
		f(func(items ...int) {
			for _, i := range items {
				b.add(i, false)
			}
			synctest.Wait()
		}, func(i int) { b.add(i, true); synctest.Wait() })
		wg.Wait()
	})
	if !reflect.DeepEqual(got.all, want) {
		t.Errorf("flushed %v, want %v", got.all, want)
	}
	return &got
}

func TestBatcherGathersOnlyWhileOthersAreUnderWay(t *testing.T) {
	got := batching(t, &batcher[int]{gap: 100 * time.Millisecond, most: 10}, time.Millisecond, func(add func(...int), _ func(int)) {
		add(1)
		add(2, 3)
		time.Sleep(50 * time.Millisecond)
		add(4)
		time.Sleep(time.Second)
		add(5)
	}, []int{1}, []int{2, 3, 4}, []int{5})
	if want := []time.Duration{0, 100 * time.Millisecond, 1050 * time.Millisecond}; !reflect.DeepEqual(got.when, want) {
		t.Errorf("flushed at %v, want %v", got.when, want)
	}
}

func TestBatcherAnUrgentItemEndsTheGap(t *testing.T) {
	got := batching(t, &batcher[int]{gap: 100 * time.Millisecond, most: 10}, time.Millisecond, func(add func(...int), urgent func(int)) {
		add(1)
		add(2)
		time.Sleep(20 * time.Millisecond)
		urgent(3)
		time.Sleep(10 * time.Millisecond)
		add(4) // not urgent: the gap counts from the last flush
	}, []int{1}, []int{2, 3}, []int{4})
	if want := []time.Duration{0, 20 * time.Millisecond, 120 * time.Millisecond}; !reflect.DeepEqual(got.when, want) {
		t.Errorf("flushed at %v, want %v", got.when, want)
	}
}

func TestBatcherBoundsAFlush(t *testing.T) {
	size := func(i int) int { return i }
	batching(t, &batcher[int]{most: 3}, time.Millisecond, func(add func(...int), _ func(int)) {
		add(1)
		add(2, 3, 4, 5)
	}, []int{1}, []int{2, 3, 4}, []int{5})
	batching(t, &batcher[int]{most: 10, size: size, bytes: 10}, time.Millisecond, func(add func(...int), _ func(int)) {
		add(1)
		add(99, 5, 5, 1) // one item is always let through
	}, []int{1}, []int{99}, []int{5, 5}, []int{1})
}

func TestBatcherKeepsItemsOfOneKeyApartAndInOrder(t *testing.T) {
	batching(t, &batcher[int]{most: 10, key: func(i int) string { return strconv.Itoa(i % 10) }}, time.Millisecond, func(add func(...int), _ func(int)) {
		add(1)
		add(2, 12, 3, 22, 13)
	}, []int{1}, []int{2, 3}, []int{12, 13}, []int{22})
}

func TestBatcherLosesNothingWithTwoLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var wg, callers sync.WaitGroup
		var mu sync.Mutex
		seen := map[int]int{}
		b := newBatcher(&wg, &batcher[int]{lanes: 2, most: 3, flush: func(items []int) {
			time.Sleep(time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			for _, i := range items {
				seen[i]++
			}
		}})
		const n = 500
		for i := range n {
			callers.Go(func() {
				time.Sleep(time.Duration(i%50) * time.Millisecond)
				b.add(i, i%7 == 0)
			})
		}
		callers.Wait()
		wg.Wait()
		for i := range n {
			if seen[i] != 1 {
				t.Errorf("item %d was flushed %d times, want once", i, seen[i])
			}
		}
	})
}
