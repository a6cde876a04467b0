package main

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

const (
	// lookFirst and lookMax pace the look at a job that waits: a person sees at once that it began, and
	// an hour's wait costs a request a second.
	lookFirst = 100 * time.Millisecond
	lookMax   = time.Second
	// quietWait is how long a job waits before we say why: most are taken at once.
	quietWait = 300 * time.Millisecond
	// eventRoom is how many records may have come before they are written: enough for full writes.
	eventRoom = 512
)

// event is one thing that happened to a watched job; exactly one field is set.
type event struct {
	record  *adminclient.LogRecord
	waits   string               // why no attempt is on: changed
	attempt *adminclient.Attempt // whose log comes next
	lost    error                // the server went away
	back    bool                 // and is there again
	end     *adminclient.Job     // no more comes: all attempts have been followed
	err     error                // no more comes
	signal  os.Signal
}

// tell says on standard error what happened, where that is of interest to a person.
func (e event) tell(a *app) {
	switch {
	case e.waits != "":
		a.notef("waiting: %s", printable(e.waits))
	case e.attempt != nil && e.attempt.Number > 1:
		a.notef("attempt %d on %s", e.attempt.Number, printable(e.attempt.AgentID))
	case e.lost != nil:
		a.notef("the server went away, trying to reach it: %v", printable(e.lost.Error()))
	case e.back:
		a.notef("the server is there again")
	}
}

// watcher follows a job: why it waits, then the log of each attempt, one after the other.
type watcher struct {
	client  *adminclient.Client
	job     string
	attempt int64 // where to begin; 0: with the first
	latest  bool  // with attempt 0: begin with the latest
	only    bool  // follow no other
	from    int64 // record number in the first one followed
	giveUp  time.Duration
}

// watch calls f for each event, signals included, until it answers false or an error. more says
// that another event is there already.
func (w *watcher) watch(ctx context.Context, signals <-chan os.Signal, f func(e event, more bool) (bool, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	events := make(chan event, eventRoom)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { w.follow(ctx, events) })
	for {
		var e event
		select {
		case e = <-events:
		case s := <-signals:
			e = event{signal: s}
		}
		if e.err != nil {
			return e.err
		}
		if on, err := f(e, len(events) > 0); err != nil || !on {
			return err
		}
	}
}

// follow is the watcher's own goroutine.
func (w *watcher) follow(ctx context.Context, events chan<- event) {
	emit := func(e event) bool {
		select {
		case events <- e:
			return true
		case <-ctx.Done():
			return false
		}
	}
	after := w.attempt - 1
	waits := ""
	since := time.Now() // when the job began to wait, as far as we know
	pace := lookFirst
	for {
		job, err := w.look(ctx, emit)
		if err != nil {
			emit(event{err: err})
			return
		}
		if w.attempt == 0 && w.latest && job.Last() != nil {
			after = job.Last().Number - 1
			w.latest = false
		}
		next, err := w.next(job, after)
		switch {
		case err != nil:
			emit(event{err: err})
			return
		case next != nil:
			after, pace, waits = next.Number, lookFirst, ""
			if !emit(event{attempt: next}) || !w.followAttempt(ctx, next.Number, emit) {
				return
			}
			if w.only {
				emit(event{end: &job})
				return
			}
			since = time.Now()
			continue
		case job.Settled():
			emit(event{end: &job})
			return
		}
		if job.Reason != "" && job.Reason != waits && time.Since(since) >= quietWait {
			waits = job.Reason
			if !emit(event{waits: waits}) {
				return
			}
		}
		if adminclient.Sleep(ctx, pace) != nil {
			return
		}
		pace = min(pace*3/2, lookMax)
	}
}

// next is the attempt to follow after the given one, nil while there is none.
func (w *watcher) next(job adminclient.Job, after int64) (*adminclient.Attempt, error) {
	if w.only {
		if a := job.Attempt(w.attempt); a != nil {
			return a, nil
		}
		return nil, &adminclient.Error{Op: "read the log of job " + job.ID, Status: 404, Code: protocol.CodeNotFound, Detail: "no such attempt"}
	}
	for i := range job.Attempts {
		if a := &job.Attempts[i]; a.Number > after {
			return a, nil
		}
	}
	return nil, nil //nolint:nilnil // none yet is no error
}

func (w *watcher) followAttempt(ctx context.Context, n int64, emit func(event) bool) bool {
	from := w.from
	w.from = 0
	records := w.client.Follow(ctx, w.job, adminclient.FollowOptions{
		Attempt: n, From: from, GiveUp: w.giveUp,
		Lost: func(err error) { emit(event{lost: err}) },
		Back: func() { emit(event{back: true}) },
	})
	for r, err := range records {
		if err != nil {
			emit(event{err: err})
			return false
		}
		if !emit(event{record: &r}) {
			return false
		}
	}
	return true
}

// look asks for the job, over an absence of the server too. Its very first question is not
// repeated: a wrong address shall be said at once.
func (w *watcher) look(ctx context.Context, emit func(event) bool) (adminclient.Job, error) {
	pace := adminclient.NewPace()
	var away time.Time
	for {
		job, err := w.client.Job(ctx, w.job)
		if err == nil {
			if !away.IsZero() {
				emit(event{back: true})
			}
			return job, nil
		}
		if ctx.Err() != nil || !adminclient.Passing(err) || w.giveUp <= 0 {
			return job, err
		}
		if away.IsZero() {
			away = time.Now()
			emit(event{lost: err})
		}
		if time.Since(away) > w.giveUp {
			return job, err
		}
		if sleepErr := adminclient.Sleep(ctx, pace.NextBackOff()); sleepErr != nil {
			return job, errors.Join(sleepErr, err)
		}
	}
}
