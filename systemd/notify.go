package systemd

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

const (
	// statusEvery bounds how stale `systemctl status` may be without a watchdog to set the pace.
	statusEvery = 5 * time.Second
	// extendBy is how much longer a draining daemon asks for at each tick. It exceeds the tick several
	// times over, so that one late tick on a busy machine doesn't end in SIGKILL.
	extendBy = 30 * time.Second
)

// Config wires a Notifier. The zero value is a notifier with nothing to say.
type Config struct {
	// Status describes the daemon in a few words, for `systemctl status`. Must not block.
	Status func() string
	// Alive answers nil while every loop makes progress, else which one doesn't. Must not block.
	Alive  func() error
	Logger *zap.Logger // nil: silent
}

// Notifier speaks sd_notify. Its methods may be called concurrently.
type Notifier struct {
	cfg      Config
	watchdog time.Duration // 0: systemd doesn't watch
}

// New reads what systemd wants (WATCHDOG_USEC) and starts nothing.
func New(cfg Config) (*Notifier, error) {
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	if cfg.Status == nil {
		cfg.Status = func() string { return "" }
	}
	if cfg.Alive == nil {
		cfg.Alive = func() error { return nil }
	}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("systemd: %w", err)
	}
	return &Notifier{cfg: cfg, watchdog: watchdog}, nil
}

// Ready says that the daemon serves: the spool is open and the loops run, whether or not the control plane answers.
func (n *Notifier) Ready() { n.send(daemon.SdNotifyReady, n.status()) }

// Reloading says that a reload began; Ready ends it. MONOTONIC_USEC lets `systemctl reload` of
// systemd 253 and later tell this reload from an earlier one.
func (n *Notifier) Reloading() {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic("BUG: systemd: CLOCK_MONOTONIC: " + err.Error())
	}
	n.send(daemon.SdNotifyReloading, fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000))
}

// Run keeps systemd informed until ctx ends: the status in words, the watchdog's pings, and from
// the moment stopping is closed STOPPING=1 and more time for as long as the drain makes progress.
func (n *Notifier) Run(ctx context.Context, stopping <-chan struct{}) error {
	// A third of the watchdog's time: two pings may be late before a live daemon is shot.
	every := statusEvery
	if n.watchdog > 0 && n.watchdog/3 < every {
		every = n.watchdog / 3
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	draining := false
	hung := false
	for {
		var lines []string
		if draining {
			lines = append(lines, fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", extendBy.Microseconds()))
		}
		err := n.cfg.Alive()
		switch {
		case err == nil:
			lines = append(lines, n.status())
			if n.watchdog > 0 {
				lines = append(lines, daemon.SdNotifyWatchdog)
			}
		case !hung:
			n.cfg.Logger.Error("stopped feeding the watchdog", zap.Error(err))
			fallthrough
		default:
			lines = append(lines, "STATUS=not alive: "+oneLine(err.Error()))
		}
		hung = err != nil
		n.send(lines...)
		select {
		case <-ctx.Done():
			return nil
		case <-stopping:
			stopping, draining = nil, true
			n.send(daemon.SdNotifyStopping)
		case <-tick.C:
		}
	}
}

func (n *Notifier) status() string { return "STATUS=" + oneLine(n.cfg.Status()) }

// oneLine keeps a text from ending the assignment it stands in.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func (n *Notifier) send(lines ...string) {
	if _, err := daemon.SdNotify(false, strings.Join(lines, "\n")); err != nil {
		n.cfg.Logger.Warn("did not reach systemd", zap.Error(err))
	}
}
