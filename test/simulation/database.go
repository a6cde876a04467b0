package main

import "time"

// callTime bounds a call of the store, waiting for a connection included.
const callTime = 10 * time.Second

// database is PostgreSQL: cores, and a disk that takes one sync at a time. Each statement is a transaction.
type database struct {
	*engine
	cpu     *station
	disk    *disk
	network time.Duration // to it and back
	reset   func(*station)
	down    bool
	life    int // counts its ends: what was under way then fails
	work    time.Duration
}

// pool is an instance's connections.
type pool struct {
	free    int
	waiting []func()
}

func (p *pool) get(then func()) {
	if p.free == 0 {
		p.waiting = append(p.waiting, then)
		return
	}
	p.free--
	then()
}

func (p *pool) put() {
	if len(p.waiting) == 0 {
		p.free++
		return
	}
	then := p.waiting[0]
	p.waiting = p.waiting[1:]
	then()
}

// statement takes a connection, cpu of one core and, if it wrote anything that is to be durable, waits for the disk. act is what
// it does to the data, in the moment that it has done its work. done is told whether it succeeded.
func (d *database) statement(p *pool, cpu time.Duration, act func() (durable bool), done func(ok bool)) {
	asked := d.now
	p.get(func() {
		finish := func(ok bool) {
			p.put()
			done(ok)
		}
		if d.down || d.now-asked > callTime {
			d.after(d.network, func() { finish(false) })
			return
		}
		life := d.life
		cpu = d.about(cpu)
		d.work += cpu
		d.cpu.serve(cpu, nil, func() {
			if d.life != life {
				finish(false)
				return
			}
			durable := act()
			answer := func() { d.after(d.network, func() { finish(d.life == life) }) }
			if durable {
				d.disk.commit(answer)
			} else {
				answer()
			}
		})
	})
}

// stop takes it away, and everything that it was about to do.
func (d *database) stop() {
	d.down = true
	d.life++
	d.reset(d.cpu)
}

func (d *database) start() { d.down = false }
