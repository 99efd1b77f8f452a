package export

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// OutOfMemory writes one page about a failure for want of memory: what was
// asked for and where, the GPUs and who is on them, and who held most.
func OutOfMemory(w io.Writer, o *snapshot.OutOfMemory) error {
	page := render.NewPage(w, 140, false)
	asked := bytefmt.Format(o.Requested)
	if f := o.Framework; f != nil && f.Requested != o.Requested {
		asked = fmt.Sprintf("%s, of which the driver refused a piece of %s", bytefmt.Format(f.Requested), asked)
	}
	page.Heading("Out of GPU memory: %s (%d) asked for %s", o.Process, o.PID, asked)
	where := o.API
	if o.GPU != "" {
		where += " on GPU " + o.GPU
	}
	page.Line("%s, thread %d, in %s", o.Time.UTC().Format(time.RFC3339Nano), o.Thread, where)
	switch {
	case o.Recovered:
		page.Line("Recovered: the same thread got as many bytes when it tried again.")
	case o.Calls == 0:
		page.Line("No driver call failed: it is the framework's own limit.")
	default:
		page.Line("Not recovered: the same thread did not get as many bytes soon after.")
	}
	if f := o.Framework; f != nil {
		page.Line("%s held %s, of which %s was cached and unused.", f.Name, bytefmt.Format(f.Reserved), bytefmt.Format(f.Reserved-f.Allocated))
	}
	page.Line("The largest contiguous free piece is not known: the driver does not tell it.")

	page.Heading("Where")
	for _, l := range o.Stack {
		for _, line := range l.Lines {
			page.Line("  %s", place(line))
		}
	}
	for i := range o.GPUs {
		gpuPage(page, &o.GPUs[i], o.PID)
	}
	processes(page, o.Snapshot.Processes)
	accounts(page, o.Snapshot.Accounts)
	groups(page, o.Snapshot.Samples, owner)
	stacks(page, o.Snapshot, "In use", held, Options{})
	losses(page, o.Snapshot)
	return page.Flush("write out-of-memory report")
}

func place(l snapshot.Line) string {
	if l.File == "" {
		return l.Function
	}
	return fmt.Sprintf("%s  %s:%d", l.Function, l.File, l.Line)
}

func gpuPage(page *render.Page, g *snapshot.GPUMemory, pid int) {
	page.Heading("GPU %s, %s: %s in all, %s used, %s free", g.GPU, g.Name,
		bytefmt.Format(g.Total), bytefmt.Format(g.Used), bytefmt.Format(g.Free))
	var rows []render.Row
	for _, p := range g.Processes {
		size := "not known"
		if p.Known {
			size = bytefmt.Format(p.Bytes)
		}
		mark := ""
		if p.PID == pid {
			mark = "this one"
		}
		rows = append(rows, render.Row{Cells: []string{strconv.Itoa(p.PID), p.Name, size, mark}})
	}
	if len(rows) > 0 {
		page.Table([]string{">PID", "PROCESS", ">BYTES", ""}, rows)
	}
}
