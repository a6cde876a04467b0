package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"agentd/agent/protocol"
	"agentd/controlplane-mock/adminclient"
)

// The exit codes, the same in all of the project's commands. 75 and 78 are sysexits' EX_TEMPFAIL and EX_CONFIG.
const (
	exitFailed       = 1
	exitUsage        = 2
	exitUnreachable  = 3
	exitNotPermitted = 4
	exitLater        = 75
	exitConfig       = 78
)

// exitError ends the command with a code. A nil error means that all has been said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usage(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// report says what went wrong and what to do, and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return 0
	}
	code, hint := classify(err)
	if e, ok := errors.AsType[*exitError](err); ok && e.err == nil {
		return code
	}
	text := strings.ReplaceAll(err.Error(), "adminclient: ", "")
	a.notef("%s", printable(text))
	if hint != "" {
		a.notef("%s", hint)
	}
	return code
}

func classify(err error) (code int, hint string) {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code, ""
	}
	if e, ok := errors.AsType[*adminclient.Error](err); ok {
		return ofServer(e)
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return exitNotPermitted, ""
	case errors.Is(err, context.Canceled):
		return exitFailed, ""
	}
	return exitFailed, ""
}

// ofServer maps what the server said. A worker's own code (of a query) is a negative answer.
func ofServer(e *adminclient.Error) (code int, hint string) {
	switch e.Code {
	case "":
		return exitUnreachable, "is a control plane running there? --url or CONTROLPLANE_URL says where; controlplane-mock serve starts one"
	case protocol.CodeUnauthenticated:
		return exitNotPermitted, "the admin token isn't this server's: --admin-token-file must name the file that its serve command uses"
	case protocol.CodeRevoked:
		return exitNotPermitted, ""
	case protocol.CodeUnavailable, protocol.CodeThrottled, protocol.CodeBusy, protocol.CodeTimeout:
		return exitLater, ""
	}
	return exitFailed, ""
}
