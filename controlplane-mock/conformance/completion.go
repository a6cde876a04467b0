package conformance

var completionChecks = []Check{
	{"jobs/complete-report", secComplete, []string{`{"attempt":1,"leaseToken":"…","outcome":"succeeded","exitCode":0,"signal":"","error":"","result":{},`}, completeReport, 0},
	{"jobs/complete-outcomes", secComplete, []string{"`outcome`: `succeeded`, `failed`, `cancelled`, `timedOut` or `lost`."}, completeOutcomes, 0},
	{"jobs/complete-log-records", secComplete, []string{"`logRecords` (required): how many record numbers the attempt's log covers. Outcome and log don't wait for each other; the log is complete when `next` ≥ `logRecords`."}, completeLogRecords, 0},
	{"jobs/complete-again", secComplete, []string{"The same outcome again is always `200`"}, completeAgain, 0},
	{"jobs/complete-after-given-on", secComplete, []string{"The same outcome again is always `200`, also after the job was given on"}, completeAfterGivenOn, 0},
	{"jobs/complete-lost-late", secComplete, []string{"so `lost`, for an attempt that the reaper ended as `lost`, is `200` and sets `logRecords`."}, completeLostLate, 0},
	{"jobs/complete-otherwise", secComplete, []string{"Another outcome, or a job that was given to somebody else or settled otherwise: `409 lease_lost`."}, completeOtherwise, 0},
	{"jobs/complete-offer", secComplete, []string{"An offer that was never accepted may be completed (it could not start); that uses an attempt.", "The stamps are left out of the report of a job that never started."}, completeOffer, 0},
	{"jobs/complete-after-cancel", secComplete, []string{"After a cancellation was asked for, success is still `succeeded`, and `lost` makes the job `cancelled`."}, completeAfterCancel, 0},
}

func completeReport(p *probe) {
	a := p.agent()
	p.submit(map[string]any{"maxAttempts": 1})
	l := a.start()
	r := a.complete(l, "failed", 7, map[string]any{"exitCode": 137, "signal": "SIGKILL", "error": "out of memory", "result": map[string]any{"rows": 12}})
	r.must(200)
	t := p.attempt(l.job, l.attempt)
	p.assert(t.str("state") == "failed" && t.int("exitCode") == 137 && t.str("signal") == "SIGKILL" && t.str("error") == "out of memory" && t.int("logRecords") == 7,
		"the attempt reads %s", t.raw)
	t.json("result", `{"rows":12}`)
	p.assert(p.job(l.job).str("reason") != "", "the job's reason doesn't say how it ended")
}

func completeOutcomes(p *probe) {
	a := p.agent()
	for outcome, want := range map[string]string{"succeeded": "succeeded", "failed": "failed", "cancelled": "cancelled", "timedOut": "timedOut", "lost": "failed"} {
		p.submit(map[string]any{"maxAttempts": 1})
		l := a.start()
		a.complete(l, outcome, 0).must(200)
		p.assert(p.attempt(l.job, l.attempt).str("state") == outcome, "the attempt is %s after it completed as %s", p.attempt(l.job, l.attempt).str("state"), outcome)
		p.assert(p.status(l.job) == want, "the job is %s after its only attempt completed as %s; want %s", p.status(l.job), outcome, want)
	}
}

func completeLogRecords(p *probe) {
	a := p.agent()
	p.submit(nil)
	l := a.start()
	p.assert(p.attempt(l.job, l.attempt).null("logRecords"), "logRecords is %s while unknown; want null", p.attempt(l.job, l.attempt).raw["logRecords"])
	a.ship(l, batch{count: 2, body: lines(0, 2)}).must(200)
	a.complete(l, "succeeded", 5).must(200)
	t := p.attempt(l.job, l.attempt)
	p.assert(p.status(l.job) == "succeeded", "the job is %s while its log lags; want succeeded", p.status(l.job))
	p.assert(t.int("logRecords") == 5 && t.int("logNext") == 2 && !t.bool("logsComplete"), "logRecords, logNext, logsComplete are %d, %d, %v; want 5, 2, false",
		t.int("logRecords"), t.int("logNext"), t.bool("logsComplete"))
	a.ship(l, batch{first: 2, count: 3, body: lines(2, 3)}).must(200)
	t = p.attempt(l.job, l.attempt)
	p.assert(t.int("logNext") == 5 && t.bool("logsComplete"), "logNext, logsComplete are %d, %v; want 5, true", t.int("logNext"), t.bool("logsComplete"))
	// A log of no records is complete at once.
	p.submit(nil)
	l = a.start()
	a.complete(l, "succeeded", 0).must(200)
	p.assert(p.attempt(l.job, l.attempt).bool("logsComplete"), "a log of no records isn't complete")
}

func completeAgain(p *probe) {
	a := p.agent()
	for _, outcome := range []string{"succeeded", "failed", "timedOut"} {
		p.submit(map[string]any{"maxAttempts": 1})
		l := a.start()
		for range 3 {
			a.complete(l, outcome, 0).must(200)
		}
		t := p.job(l.job).objects("attempts")
		p.assert(len(t) == 1, "the job has %d attempts after one that completed three times", len(t))
	}
}

func completeAfterGivenOn(p *probe) {
	a, b := p.agent(), p.agent()
	p.submit(map[string]any{"retryOn": []string{"failed"}})
	l := a.start()
	a.complete(l, "failed", 0).must(200)
	m := b.start()
	p.assert(m.job == l.job, "the job wasn't given on")
	a.complete(l, "failed", 0).must(200)
	b.beat(m, 0).must(200)
	a.complete(l, "succeeded", 0).refused(409, "lease_lost")
	b.complete(m, "succeeded", 0).must(200)
	a.complete(l, "failed", 0).must(200)
	p.assert(p.status(l.job) == "succeeded", "the job is %s; want succeeded", p.status(l.job))
}

// lapse waits until an accepted attempt's lease has run out.
func (p *probe) lapse(l lease) { p.isState(l, "lost", 3*p.ttl()+soon) }

func completeLostLate(p *probe) {
	a, b := p.agent(), p.agent()
	p.submit(nil)
	l := a.start()
	p.lapse(l)
	p.assert(p.attempt(l.job, l.attempt).null("logRecords"), "logRecords is known after a lease that ran out")
	m := b.start()
	p.assert(m.job == l.job, "the job wasn't given on")
	a.complete(l, "lost", 9).must(200)
	t := p.attempt(l.job, l.attempt)
	p.assert(!t.null("logRecords") && t.int("logRecords") == 9, "logRecords is %s; want 9", t.raw["logRecords"])
	b.beat(m, 0).must(200)
}

func completeOtherwise(p *probe) {
	a, b := p.agent(), p.agent()
	p.submit(map[string]any{"maxAttempts": 1})
	l := a.start()
	a.complete(l, "failed", 0).must(200)
	for _, outcome := range []string{"succeeded", "cancelled", "timedOut", "lost"} {
		a.complete(l, outcome, 0).refused(409, "lease_lost")
	}
	p.assert(p.status(l.job) == "failed", "the job is %s; want failed: the first outcome stands", p.status(l.job))
	// Given to somebody else.
	p.submit(nil)
	l = a.start()
	p.lapse(l)
	m := b.start()
	a.complete(l, "succeeded", 0).refused(409, "lease_lost")
	p.assert(p.status(l.job) == "running", "the job is %s; want running at the second agent", p.status(l.job))
	b.beat(m, 0).must(200)
}

func completeOffer(p *probe) {
	a := p.agent()
	p.submit(map[string]any{"maxAttempts": 1, "retryOn": []string{"failed"}})
	l := a.take()
	a.complete(l, "failed", 0, map[string]any{"error": "no such command"}).must(200)
	p.assert(p.status(l.job) == "failed", "the job is %s after an offer that completed as failed; want failed: it uses an attempt", p.status(l.job))
	a.beat(l, 0).refused(409, "lease_lost")
}

func completeAfterCancel(p *probe) {
	a := p.agent()
	for outcome, want := range map[string]string{"succeeded": "succeeded", "lost": "cancelled", "cancelled": "cancelled", "failed": "failed"} {
		p.submit(map[string]any{"retryOn": []string{"lost", "failed"}})
		l := a.start()
		p.cancel(l.job, "x").must(202)
		a.complete(l, outcome, 0).must(200)
		p.assert(p.status(l.job) == want, "the job is %s after a cancel and an attempt that %s; want %s", p.status(l.job), outcome, want)
	}
}
