package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"agentd/shipper"
	"agentd/spool"
)

// progressTo is where progress is shown: only to a person.
func (c *cli) progressTo() io.Writer {
	f, ok := c.err.(*os.File)
	if !ok {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	return f
}

func (c *cli) spoolVerifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "verify",
		Short: "Read every batch, check every checksum, and list what is lost (exit 1 when something is)",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			src, done, err := c.spoolArea(cmd.Context(), cmd.Flags())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, done()) }()
			list, err := src.Attempts(cmd.Context())
			if err != nil {
				return err
			}
			bar := &progress{w: c.progressTo(), what: "verifying"}
			for _, in := range list {
				bar.total += in.Bytes
			}
			var batches, records, lost, bad int64
			for _, in := range list {
				for b, err := range src.Batches(cmd.Context(), in.Attempt, in.First) {
					if h, ok := errors.AsType[*spool.HoleError](err); ok {
						bar.end()
						fmt.Fprintf(c.out, "%s: records %d to %d are lost: %s\n", h.Attempt, h.First, h.Next-1, h.Reason)
						lost += h.Next - h.First
						continue
					}
					if err != nil {
						return err
					}
					if _, err := shipper.Decode(b.Data, b.Encoding); err != nil {
						bar.end()
						fmt.Fprintf(c.out, "%s: records %d to %d don't decode: %v\n", b.Attempt, b.First, b.Next()-1, err)
						bad++
					}
					batches++
					records += b.Count
					bar.add(len(b.Data))
				}
			}
			bar.end()
			fmt.Fprintf(c.out, "%d attempts, %d batches, %d records read; %d records lost, %d batches undecodable\n", len(list), batches, records, lost, bad)
			if lost+bad > 0 {
				return exit(exitFailed, errors.New("the spool isn't whole"))
			}
			return nil
		},
	}
}

func (c *cli) spoolExportCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "export [JOB[/ATTEMPT]]... -o FILE.tar.zst",
		Short: "Write logs into an archive that cat --from and ls --from read on any host (default: all of them)",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if output == "" {
				return exit(exitUsage, errors.New("-o FILE is missing (- for standard output)"))
			}
			src, done, err := c.spoolArea(cmd.Context(), cmd.Flags())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, done()) }()
			list, err := src.Attempts(cmd.Context())
			if err != nil {
				return err
			}
			if list, err = chosen(list, args); err != nil {
				return err
			}
			if output == "-" {
				return c.export(cmd.Context(), src, list, c.out)
			}
			f, err := os.CreateTemp(filepath.Dir(output), filepath.Base(output)+".*") // 0600, as the spool is
			if err != nil {
				return err
			}
			err = c.export(cmd.Context(), src, list, f)
			if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
				err = os.Rename(f.Name(), output)
			}
			if err != nil {
				return errors.Join(err, os.Remove(f.Name()))
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "the archive (- for standard output)")
	return cmd
}

func (c *cli) export(ctx context.Context, src spoolSource, list []spool.AttemptInfo, w io.Writer) error {
	a, err := spool.NewArchive(w)
	if err != nil {
		return err
	}
	bar := &progress{w: c.progressTo(), what: "exporting"}
	for _, in := range list {
		bar.total += in.Bytes
	}
	defer bar.end()
	for _, in := range list {
		if err := a.Add(in, src.Batches(ctx, in.Attempt, in.First), bar.add); err != nil {
			return err
		}
	}
	return a.Close()
}

// chosen keeps the attempts that the arguments name: JOB means all of its attempts.
func chosen(list []spool.AttemptInfo, args []string) ([]spool.AttemptInfo, error) {
	if len(args) == 0 {
		return list, nil
	}
	var out []spool.AttemptInfo
	for _, arg := range args {
		n := len(out)
		for _, in := range list {
			if job, _ := jobOf(in.Attempt); job == arg || in.Attempt == arg {
				out = append(out, in)
			}
		}
		if len(out) == n {
			return nil, exit(exitFailed, fmt.Errorf("nothing of %s is in the spool", arg))
		}
	}
	return out, nil
}

func (c *cli) spoolRmCommand() *cobra.Command {
	var yes bool
	var letters []string
	cmd := &cobra.Command{
		Use:   "rm [JOB[/ATTEMPT]]... [--dead ID] --yes",
		Short: "Give logs up: what wasn't shipped becomes a gap in the job's log",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args)+len(letters) == 0 {
				return exit(exitUsage, errors.New("nothing named: a job, an attempt, or --dead ID"))
			}
			if !yes {
				return exit(exitUsage, errors.New("this loses logs for good: say --yes"))
			}
			area, done, err := c.spoolArea(cmd.Context(), cmd.Flags())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, done()) }()
			if len(args) > 0 {
				list, err := area.Attempts(cmd.Context())
				if err != nil {
					return err
				}
				if list, err = chosen(list, args); err != nil {
					return err
				}
				for _, in := range list {
					if err := area.Remove(cmd.Context(), in.Attempt); err != nil {
						return err
					}
					fmt.Fprintf(c.out, "%s: %d records given up\n", in.Attempt, in.Next-in.First)
				}
			}
			for _, id := range letters {
				if err := area.RemoveDead(cmd.Context(), id); err != nil {
					return err
				}
				fmt.Fprintf(c.out, "dead letter %s removed\n", id)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	cmd.Flags().StringArrayVar(&letters, "dead", nil, "remove a dead letter by its id")
	return cmd
}
