//go:build linux

package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/doctor"
)

func newDoctor() *cobra.Command {
	var pid int
	var asJSON bool
	c := &cobra.Command{
		Use:   "doctor [-p PID]",
		Short: "Check what tracing needs here, and say how to fix what is missing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("pid") && pid <= 0 {
				return usagef("%d is not a process id", pid)
			}
			endOnSignal()
			r := doctor.Run(pid)
			o, write := layout(os.Stdout), r.WriteJSON
			if !asJSON {
				write = func(w io.Writer) error { return r.WriteText(w, o.Width, o.Color) }
			}
			if err := write(os.Stdout); err != nil {
				return err
			}
			if r.Failed() {
				return exitError(exitFailed)
			}
			return nil
		},
	}
	c.Flags().IntVarP(&pid, "pid", "p", 0, "also check this process, and only the libraries that it uses")
	c.Flags().BoolVar(&asJSON, "json", false, "print an array of {group, check, status, detail, fix}")
	return c
}
