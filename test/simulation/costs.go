package main

import (
	"flag"
	"time"
)

// costs are what steps cost in CPU, at an instance or the database, and how long the disk takes. The defaults were measured:
// docs/scaling.md says how.
type costs struct {
	beat   time.Duration // instance: a heartbeat, from its arrival to its answer
	poll   time.Duration // instance: a poll that finds nothing
	job    time.Duration // instance: submission, offer and completion of one job, without its heartbeats
	log    time.Duration // instance: a small log batch
	query  time.Duration // instance: a statement for many, NOTIFY too
	notice time.Duration // instance: a notification heard
	event  time.Duration // instance: an event in it
	dial   time.Duration // instance: a new connection, TLS handshake included

	statement time.Duration // database: a statement for many, besides its rows
	renewal   time.Duration // database: a lease renewed in it
	batch     time.Duration // database: a log batch stored in it
	look      time.Duration // database: a look for a job, or for a key's agent
	change    time.Duration // database: a job's row written alone: submitted, offered, settled
	notify    time.Duration // database: NOTIFY
	listen    time.Duration // database: and for each instance that listens
	sync      time.Duration // the disk: a commit made durable
	network   time.Duration // from an instance to the database and back

	client time.Duration // where one machine plays it all: the agents' own CPU for a call
}

func defaultCosts() costs {
	const us = time.Microsecond
	return costs{
		beat: 175 * us, poll: 390 * us, job: 2000 * us, log: 220 * us, query: 300 * us, notice: 50 * us, event: 10 * us, dial: 600 * us,
		statement: 800 * us, renewal: 20 * us, batch: 15 * us, look: 210 * us, change: 400 * us, notify: 250 * us, listen: 30 * us,
		sync: 325 * us, network: 200 * us,
	}
}

func (c *costs) flags(f *flag.FlagSet) {
	for _, v := range []struct {
		name, use string
		to        *time.Duration
	}{
		{"beat", "instance's CPU: a heartbeat, arrival and answer", &c.beat},
		{"poll", "instance's CPU: a poll that finds nothing", &c.poll},
		{"job", "instance's CPU: a job's submission, offer and completion", &c.job},
		{"log", "instance's CPU: a small log batch", &c.log},
		{"query", "instance's CPU: a statement for many", &c.query},
		{"notice", "instance's CPU: a notification heard", &c.notice},
		{"event", "instance's CPU: an event in a notification", &c.event},
		{"dial", "instance's CPU: a new connection with TLS", &c.dial},
		{"statement", "database's CPU: a statement for many, besides its rows", &c.statement},
		{"renewal", "database's CPU: a lease renewed, among others", &c.renewal},
		{"batch", "database's CPU: a log batch stored, among others", &c.batch},
		{"look", "database's CPU: a look for a job or a key", &c.look},
		{"change", "database's CPU: a job's row changed", &c.change},
		{"notify", "database's CPU: NOTIFY", &c.notify},
		{"listen", "database's CPU: NOTIFY, for each instance that listens", &c.listen},
		{"sync", "the disk: a commit made durable", &c.sync},
		{"network", "from an instance to the database and back", &c.network},
	} {
		f.DurationVar(v.to, "cost-"+v.name, *v.to, v.use)
	}
}
