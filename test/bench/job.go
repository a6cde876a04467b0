package main

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// runJob is the job side of the sections.
func runJob(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: bench job term|deaf FILE, bench job noise N")
	}
	switch args[0] {
	case "term": // waits for SIGTERM and writes down when it came
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		if err := os.WriteFile(args[1]+".ready", nil, 0o600); err != nil {
			return err
		}
		<-term
		return os.WriteFile(args[1], fmt.Appendf(nil, "%d", time.Now().UnixNano()), 0o600)
	case "deaf": // ignores SIGTERM, and tells its process id
		signal.Ignore(syscall.SIGTERM)
		if err := os.WriteFile(args[1], fmt.Appendf(nil, "%d", os.Getpid()), 0o600); err != nil {
			return err
		}
		time.Sleep(time.Hour)
		return nil
	case "lookup":
		return lookup(os.Stdin, os.Stdout)
	case "noise": // prints N lines that hardly compress
		n, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		w := bufio.NewWriter(os.Stdout)
		for range n {
			if _, err := fmt.Fprintf(w, "%016x%016x%016x%016x\n", rand.Uint64(), rand.Uint64(), rand.Uint64(), rand.Uint64()); err != nil {
				return err
			}
		}
		return w.Flush()
	}
	return fmt.Errorf("no job %q", args[0])
}
