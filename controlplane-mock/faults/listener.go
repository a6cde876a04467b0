package faults

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// backlog is the kernel's default bound for connections that nobody has accepted yet.
const backlog = 4096

// Listener puts a port under the outage. Wrap the TCP listener itself, TLS goes on top. The
// returned listener closes inner when it is closed.
//
// While refused, the socket stays bound but doesn't listen: the kernel refuses, and nobody else
// can take the port meanwhile. A listener that isn't a TCP socket accepts and closes instead.
func (o *Outage) Listener(inner net.Listener) net.Listener {
	p := &port{Listener: inner, o: o, conns: map[*portConn]struct{}{}, done: make(chan struct{})}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ports[p] = struct{}{}
	if o.now != nil {
		p.takeDown(o.now)
	}
	return p
}

// port is a listener under an outage.
type port struct {
	net.Listener
	o    *Outage
	once sync.Once
	done chan struct{} // closed by Close

	mu    sync.Mutex
	conns map[*portConn]struct{} // guarded by mu: open, accepted through us
}

func (p *port) Close() error {
	p.once.Do(func() { close(p.done) })
	p.o.mu.Lock()
	delete(p.o.ports, p)
	p.o.mu.Unlock()
	err := p.Listener.Close()
	for _, c := range p.open() {
		if c.silenced() != nil {
			c.kill()
		}
	}
	return err
}

// Accept waits through outages; what a blackhole accepts it keeps to itself.
func (p *port) Accept() (net.Conn, error) {
	for {
		d, _ := p.o.current()
		if d != nil && d.spec.Mode == Refuse && p.tcp() != nil {
			select {
			case <-d.over:
				continue
			case <-p.done:
				return nil, net.ErrClosed
			}
		}
		conn, err := p.Listener.Accept()
		if err != nil {
			if p.shutDown(err) {
				continue
			}
			return nil, err
		}
		c := &portConn{Conn: conn, p: p}
		// Registered before the state is looked at: an outage that begins right now finds it.
		p.mu.Lock()
		p.conns[c] = struct{}{}
		p.mu.Unlock()
		d, _ = p.o.current()
		switch {
		case d == nil:
			return c, nil
		case d.spec.Mode == Refuse:
			c.kill()
		default:
			c.silence(d)
		}
	}
}

// shutDown says whether Accept failed because the outage, and not Close, took the socket down.
func (p *port) shutDown(err error) bool {
	if !errors.Is(err, unix.EINVAL) {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *port) tcp() syscall.RawConn {
	l, ok := p.Listener.(*net.TCPListener)
	if !ok {
		return nil
	}
	raw, err := l.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}

// takeDown and bringUp are called with the outage's mutex held.
func (p *port) takeDown(d *down) {
	raw := p.tcp()
	if d.spec.Mode == Refuse && raw != nil {
		raw.Control(stopListening) //nolint:errcheck // a closed listener refuses, too
	}
	for _, c := range p.open() {
		if d.spec.Mode == Refuse {
			c.kill()
		} else {
			c.silence(d)
		}
	}
}

func (p *port) bringUp(d *down) {
	if raw := p.tcp(); d.spec.Mode == Refuse && raw != nil {
		raw.Control(listenAgain) //nolint:errcheck // a closed listener needs it no more
	}
	for _, c := range p.open() {
		if c.silenced() != nil {
			c.kill()
		}
	}
}

// stopListening leaves a bound socket that refuses. Linux takes a shutdown of a listening socket
// as "stop listening, stay bound"; but a port that the kernel picked (bind to 0) it gives up, so
// that one is bound once more, by its number.
func stopListening(fd uintptr) {
	sa, err := unix.Getsockname(int(fd))
	unix.Shutdown(int(fd), unix.SHUT_RD) //nolint:errcheck // fails only on what doesn't listen
	if err == nil {
		unix.Bind(int(fd), sa) //nolint:errcheck // EINVAL: it stayed bound, as was wanted
	}
	// Two sockets that may share an address do so while neither listens: nobody shall slip in.
	unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 0) //nolint:errcheck // a guard only
}

func listenAgain(fd uintptr) {
	unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) //nolint:errcheck // as net.Listen had it
	unix.Listen(int(fd), backlog)                                      //nolint:errcheck // the socket is bound, and asks for nothing new
}

func (p *port) open() []*portConn {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]*portConn, 0, len(p.conns))
	for c := range p.conns {
		out = append(out, c)
	}
	return out
}

// portConn is an accepted connection. Once silenced it gives the server nothing and takes
// nothing from it; when the outage ends it is killed.
type portConn struct {
	net.Conn
	p *port

	mu     sync.Mutex
	silent *down // guarded by mu
}

// NetConn lets a reset reach the socket.
func (c *portConn) NetConn() net.Conn { return c.Conn }

func (c *portConn) silence(d *down) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = d
}

func (c *portConn) silenced() *down {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.silent
}

func (c *portConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if d := c.silenced(); d != nil && !errors.Is(err, net.ErrClosed) {
		if isTimeout(err) {
			return 0, err // the server's own deadline, by which it takes the reader back
		}
		c.stay(d)
		return 0, net.ErrClosed
	}
	return n, err
}

func (c *portConn) Write(b []byte) (int, error) {
	if c.silenced() != nil {
		// A black hole swallows what is sent until the socket's queue is full; the sender notices nothing.
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// stay keeps the reader until the outage or the server ends.
func (c *portConn) stay(d *down) {
	select {
	case <-d.over:
	case <-c.p.done:
	}
}

func (c *portConn) Close() error {
	if d := c.silenced(); d != nil {
		select {
		case <-d.over:
		case <-c.p.done:
		default:
			// The client must go on seeing a connection that says nothing: it ends with the outage.
			return c.SetReadDeadline(past)
		}
	}
	return c.drop()
}

// past wakes a reader; any time before now does.
var past = time.Unix(1, 0)

func (c *portConn) drop() error {
	c.p.mu.Lock()
	delete(c.p.conns, c)
	c.p.mu.Unlock()
	return c.Conn.Close()
}

// kill ends the connection with RST.
func (c *portConn) kill() {
	abort(c.Conn)
	c.p.mu.Lock()
	delete(c.p.conns, c)
	c.p.mu.Unlock()
}

func isTimeout(err error) bool {
	ne, ok := errors.AsType[net.Error](err)
	return ok && ne.Timeout()
}
