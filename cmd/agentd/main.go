package main

import (
	"context"
	"os"

	"agentd/agent/exec"
)

func main() {
	exec.Main() // the shim that supervises one job is this same binary
	c := &cli{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv, environ: os.Environ}
	os.Exit(c.execute(context.Background(), os.Args[1:]))
}
