// Package systemd tells the service manager how the daemon is: ready, reloading, stopping, alive.
//
// The watchdog is fed by proof, not by a timer: each ping asks Config.Alive, and a loop that hangs
// silences it, so that systemd restarts the daemon. On a host without systemd nothing is sent and nothing fails.
//
// The unit, the system user and the runtime directories of the packages stand beside the code.
package systemd
