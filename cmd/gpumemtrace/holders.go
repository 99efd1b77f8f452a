//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/heap"
	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/output/holders"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
	"github.com/gpumemtrace/gpumemtrace/internal/source/gpu"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

const holdersExamples = `  sudo gpumemtrace holders -p 4711                # which list, attribute or variable keeps it
  sudo gpumemtrace holders -p 4711 --by retainer  # what would be freed if an object were gone
  sudo gpumemtrace holders -p 4711 --by parameter # each parameter, its gradient and its optimizer state
  sudo gpumemtrace holders -p 4711 --by shape
  sudo gpumemtrace holders -p 4711 --segments     # why cached memory does not serve a request
  sudo gpumemtrace holders -p 4711 --again 10s    # what came and what went in ten seconds
  sudo gpumemtrace holders -p 4711 -o held.pb.gz && gpumemtrace report held.pb.gz`

// A holdersCommand reads a heap and shows what it found.
type holdersCommand struct {
	report holders.Report
	heap   heap.Options
	again  time.Duration
	file   outputFlags // where to write, and how
	by     string
	keys   keysFlag
	top    int
}

func newHolders() *cobra.Command {
	var h holdersCommand
	c := &cobra.Command{
		Use:     "holders -p PID",
		Short:   "Show which object keeps each tensor of a running Python program alive; this needs no trace",
		Example: holdersExamples,
		Args:    cobra.NoArgs,
		RunE:    func(c *cobra.Command, _ []string) error { return h.run(c) },
	}
	c.Flags().IntVarP(&h.report.PID, "pid", "p", 0, "the process whose heap is read")
	c.Flags().StringVar(&h.by, "by", holders.Names()[0], "a row for each of: "+strings.Join(holders.Names(), ", "))
	c.Flags().DurationVar(&h.again, "again", 0, "read the heap a second time after this long, and show what was added and what is gone")
	c.Flags().BoolVar(&h.report.Divided, "segments", false, "show how PyTorch's segments are divided instead: how much is in tensors, how much is cached, and the largest free block")
	c.Flags().BoolVar(&h.report.CPU, "cpu", false, "show tensors in the CPU's memory too")
	addKeys(c.Flags(), &h.keys)
	c.Flags().BoolVar(&h.heap.Pause, "pause", false, "stop the process while its heap is read, so that nothing in it changes; this ends a wait of the program in epoll_wait and some other system calls with EINTR")
	c.Flags().StringVarP(&h.file.output, "output", "o", "-", "write to this file, - for stdout")
	c.Flags().StringVar(&h.file.format, "format", "", "one of "+strings.Join(ofHeaps().Names(), ", ")+" (default: by the file's extension, else table)")
	c.Flags().BoolVar(&h.file.force, "force", false, "replace an existing file")
	c.Flags().IntVarP(&h.top, "top", "n", 0, "rows of a table (default 20, negative for all)")
	return c
}

func (h *holdersCommand) run(c *cobra.Command) (err error) {
	if h.report.PID <= 0 {
		return usagef("give the process whose heap to read: -p PID")
	}
	if h.report.By, err = holders.ParseBy(h.by); err != nil {
		return usageError{err}
	}
	if h.again < 0 {
		return usagef("--again cannot be negative")
	}
	out, err := newOutput(&h.file, ofHeaps())
	if err != nil {
		return err
	}
	format := out.format.Name
	if h.again > 0 && (format == "pprof" || format == "folded") {
		return usagef("--again shows differences, and the %s format cannot show memory that was freed: use table, json or csv", format)
	}
	if h.report.Divided && (h.again > 0 || c.Flags().Changed("by") || format != "table" && format != "json") {
		return usagef("--segments is a page of its own, without --by and --again: as a table, or as json, which has everything")
	}
	h.heap.Keys, h.heap.CPU = heap.Keys(h.keys), h.report.CPU
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	began := time.Now()
	if err := h.read(ctx); err != nil {
		return err
	}
	if why := h.report.Refusal(); why != "" {
		return fmt.Errorf("process %d: %s", h.report.PID, why)
	}
	shown := export.Options{}
	if out.path == "-" {
		shown = layout(os.Stdout)
	}
	if err := out.put(func(w io.Writer) error { return h.write(w, format, shown, began) }); err != nil || out.path != "-" || format != "table" || h.again > 0 {
		return err
	}
	return export.Next(os.Stdout, shown, h.next()...)
}

// next returns what else can be asked about the process, in the way that was asked for.
func (h *holdersCommand) next() (commands []export.Command) {
	var shown strings.Builder
	fmt.Fprintf(&shown, "holders -p %d ", h.report.PID)
	for _, f := range []struct {
		set  bool
		flag string
	}{{h.report.CPU, "--cpu "}, {h.heap.Keys != heap.NamedKeys, "--keys " + h.keys.String() + " "}, {h.heap.Pause, "--pause "}} {
		if f.set {
			shown.WriteString(f.flag)
		}
	}
	again := shown.String()
	if !h.report.Divided && len(h.report.Reading.Allocators) > 0 {
		commands = append(commands, export.Command{Args: again + "--segments", Answers: "How PyTorch's cached memory is divided"})
	}
	if h.report.By != holders.Retainer {
		commands = append(commands, export.Command{Args: again + "--by retainer", Answers: "What would be freed if an object were gone"})
	}
	return append(commands, export.Command{Args: again + "--again 10s", Answers: "What comes and goes in ten seconds"})
}

// read reads the heap, twice with --again.
func (h *holdersCommand) read(ctx context.Context) (err error) {
	start, err := proc.StartTicks(h.report.PID)
	if err != nil {
		return fmt.Errorf("there is no process %d: %w", h.report.PID, err)
	}
	h.report.Process = proc.Comm(h.report.PID)
	if h.report.Reading, err = readHeap(ctx, h.report.PID, start, h.heap); err != nil {
		return err
	}
	if h.again == 0 {
		h.report.OnGPUs = onGPUs(h.report.PID)
		return nil
	}
	if h.report.Reading.Refused != "" {
		return nil
	}
	h.report.Before = h.report.Reading
	fmt.Fprintf(os.Stderr, "gpumemtrace: the heap was read, and is read again in %v\n", h.again)
	select {
	case <-time.After(h.again):
	case <-ctx.Done():
		return fmt.Errorf("wait for the second reading: %w", context.Cause(ctx))
	}
	h.report.Reading, err = readHeap(ctx, h.report.PID, start, h.heap)
	return err
}

// onGPUs returns what a process holds on all GPUs, in bytes, 0 if NVML does not know it.
func onGPUs(pid int) (sum int64) {
	nvml, err := gpu.Open()
	if err != nil {
		return 0
	}
	defer nvml.Close()
	devices, err := nvml.Devices()
	if err != nil {
		return 0
	}
	for _, d := range devices {
		for _, part := range append(d.Instances, d) {
			// What is inferred holds only for a GPU that the process is known to use.
			if use, err := nvml.Use(part, pid); err == nil && use.Known && !use.Inferred {
				sum += use.Bytes
			}
		}
	}
	return sum
}

// readHeap reads the heap of the process that began at start, and says what to do where that is not
// allowed.
func readHeap(ctx context.Context, pid int, start uint64, o heap.Options) (*holder.Reading, error) {
	r, err := heap.Read(ctx, pid, o)
	now, gone := proc.StartTicks(pid)
	switch {
	case gone == nil && now != start:
		return nil, fmt.Errorf("process %d ended, and another process has its PID", pid)
	case err == nil:
		return r, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w: run as root, or as a user who may trace process %d (CAP_SYS_PTRACE)", err, pid)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ESRCH):
		return nil, fmt.Errorf("there is no process %d: %w", pid, err)
	}
	return nil, err
}

func (h *holdersCommand) write(w io.Writer, format string, o export.Options, began time.Time) error {
	r := &h.report
	switch format {
	case "json":
		return r.JSON(w)
	case "table":
		if r.Divided {
			o.Segments = true
			return export.Report(w, r.Segments(version, strings.Join(os.Args, " "), began), o)
		}
	case "csv":
		return r.CSV(w)
	case "folded":
		return r.Folded(w)
	case "pprof":
		return pprof.Write(w, r.Snapshot(version, strings.Join(os.Args, " "), began))
	}
	o.Top = h.top
	return r.Table(w, o)
}
