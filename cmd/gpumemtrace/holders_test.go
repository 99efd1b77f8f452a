package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/heap"
	"github.com/gpumemtrace/gpumemtrace/internal/output/holders"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/torchtest"
)

// A trainer is testdata/holders.py, which has tensors in the CPU's memory.
type trainer struct {
	*testing.T
	cmd  *exec.Cmd
	in   io.Writer
	out  *bufio.Reader
	said any // what it says is for
	// What its own garbage collector finds.
	Bytes, Storages int64
	Parameters      map[string]int64
}

func trains(t *testing.T) *trainer {
	t.Helper()
	p := &trainer{T: t}
	p.runs("testdata/holders.py", p)
	return p
}

// runs starts a program, which says into said what it holds. It needs Debian's PyTorch.
func (p *trainer) runs(program string, said any) {
	p.Helper()
	p.runsAs(said, program)
}

// runsAs is runs of a program with arguments.
func (p *trainer) runsAs(said any, args ...string) {
	t := p.T
	t.Helper()
	torchtest.Need(t)
	p.cmd, p.said = exec.Command(torchtest.Python, args...), said
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.out = in, bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	p.reads()
}

// reads has it say what it holds.
func (p *trainer) reads() {
	p.Helper()
	line, err := p.out.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, p.said)
	}
	if err != nil {
		p.Fatal(err)
	}
}

// steps has it train.
func (p *trainer) steps(n string) {
	p.Helper()
	if _, err := io.WriteString(p.in, n+"\n"); err != nil {
		p.Fatal(err)
	}
	p.reads()
}

func (p *trainer) holders(args ...string) *invocation {
	p.Helper()
	return command(p.T, append([]string{"holders", "-p", strconv.Itoa(p.cmd.Process.Pid)}, args...)...).start().ends(exitDone)
}

// rows returns a CSV's, by column.
func (v *invocation) rows() (out []map[string]string) {
	v.Helper()
	rows, err := csv.NewReader(strings.NewReader(v.stdout.String())).ReadAll()
	if err != nil || len(rows) == 0 {
		v.Fatalf("%v in %s", err, v.stdout.String())
	}
	for _, row := range rows[1:] {
		cells := map[string]string{}
		for i, name := range rows[0] {
			cells[name] = row[i]
		}
		out = append(out, cells)
	}
	return out
}

// Holders of a running PyTorch program are what its own garbage collector and
// named_parameters find, and the program runs on.
func TestHolders(t *testing.T) {
	t.Parallel() // nothing is probed
	p := trains(t)

	var all struct {
		Bytes    int64
		Answer   string
		Storages []struct {
			Holder string
			Cycle  bool
			Bytes  int64
		}
	}
	if err := json.Unmarshal([]byte(p.holders("--cpu", "--format", "json").stdout.String()), &all); err != nil {
		t.Fatal(err)
	}
	if all.Bytes != p.Bytes || int64(len(all.Storages)) != p.Storages {
		t.Errorf("%d bytes in %d storages, and the program finds %d in %d", all.Bytes, len(all.Storages), p.Bytes, p.Storages)
	}
	if !strings.Contains(all.Answer, "`trainer.history` keeps most") {
		t.Error(all.Answer)
	}
	cycles, local := 0, false
	for _, s := range all.Storages {
		if s.Cycle {
			cycles++
			if s.Bytes != 77*99*4 {
				t.Errorf("%q is in a cycle", s.Holder)
			}
		}
		local = local || strings.Contains(s.Holder, `"prefetch"`) && strings.HasSuffix(s.Holder, "local batch") || strings.HasPrefix(s.Holder, "wait() in holders.py:") && strings.HasSuffix(s.Holder, "local batch")
	}
	if cycles != 1 || !local {
		t.Errorf("%d storages in cycles; the thread's variable was found: %v", cycles, local)
	}

	found := map[string]bool{}
	for _, row := range p.holders("--cpu", "--by", "parameter", "--format", "csv").rows() {
		name, ok := strings.CutPrefix(row["parameter"], "trainer.model.")
		if !ok {
			continue
		}
		found[name] = true
		bytes := strconv.FormatInt(p.Parameters[name], 10)
		state, _ := strconv.ParseInt(row["optimizer_state_bytes"], 10, 64)
		if row["parameter_bytes"] != bytes || row["gradient_bytes"] != bytes || state < 2*p.Parameters[name] || state > 2*p.Parameters[name]+8 {
			t.Errorf("%s: %v, want %s bytes, as many of its gradient and twice as many of its optimizer", name, row, bytes)
		}
	}
	if len(found) != len(p.Parameters) {
		t.Errorf("%d parameters, want %d", len(found), len(p.Parameters))
	}

	var shapes int64
	for _, row := range p.holders("--cpu", "--by", "shape", "--format", "csv").rows() {
		n, _ := strconv.ParseInt(row["bytes"], 10, 64)
		shapes += n
		if row["shape"] == "(100, 1000)" && row["storages"] != "5" {
			t.Errorf("%v, want 5 of them", row)
		}
	}
	if shapes != p.Bytes {
		t.Errorf("%d bytes by shape, want %d", shapes, p.Bytes)
	}

	if out := p.holders("--cpu", "--keys", "none").stdout.String(); strings.Contains(out, "exp_avg") || !strings.Contains(out, "trainer.history[*]") {
		t.Errorf("--keys none shows\n%s", out)
	}

	profile := filepath.Join(t.TempDir(), "held.pb.gz")
	p.holders("--cpu", "-o", profile)
	f, err := os.Open(profile)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := pprof.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	var inuse int64
	for i := range s.Samples {
		inuse += s.Samples[i].InuseBytes
	}
	if inuse != p.Bytes {
		t.Errorf("the profile has %d bytes, want %d", inuse, p.Bytes)
	}
	if out := p.holders("--cpu", "--pause").stdout.String(); !strings.Contains(out, "`trainer.history` keeps most") {
		t.Errorf("--pause shows\n%s", out)
	}
	p.steps("1") // it runs on
}

// Two readings say what came in between.
func TestHoldersAgain(t *testing.T) {
	t.Parallel() // nothing is probed
	p := trains(t)
	v := command(t, "holders", "-p", strconv.Itoa(p.cmd.Process.Pid), "--cpu", "--again", "5s", "--by", "shape", "--format", "csv").start()
	v.until("the first reading is done", func() bool { return strings.Contains(v.stderr.String(), "is read again in 5s") })
	p.steps("4")
	v.ends(exitDone)
	rows := v.rows()
	if len(rows) != 1 || rows[0]["shape"] != "(100, 1000)" || rows[0]["storages"] != "4" || rows[0]["bytes"] != "1600000" {
		t.Errorf("what came: %v", rows)
	}
}

// A secondWait does something when what it is for waits a second time.
type secondWait struct {
	context.Context
	waits int
	do    func()
}

func (c *secondWait) Done() <-chan struct{} {
	if c.waits++; c.waits == 2 {
		c.do()
	}
	return c.Context.Done()
}

// Two readings are of one process: another one that has got its PID is not compared with it.
func TestHoldersAgainOfAnother(t *testing.T) {
	p := trains(t)
	h := holdersCommand{report: holders.Report{PID: p.cmd.Process.Pid, CPU: true}, heap: heap.Options{CPU: true}, again: 1}
	other := &trainer{T: t}
	err := h.read(&secondWait{Context: t.Context(), do: func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
		other.runsAs(other, "testdata/sameid.py", strconv.Itoa(h.report.PID), "testdata/holders.py")
	}})
	if other.cmd == nil || other.Bytes == 0 {
		t.Fatal("no other process was started")
	}
	if err == nil || !strings.Contains(err.Error(), "ended, and another process has its PID") {
		t.Errorf("%v; from %d to %d storages", err, len(h.report.Before.Storages), len(h.report.Reading.Storages))
	}
}

// What is suggested next is not what was just asked, and shows the same process in the same way.
func TestHoldersNext(t *testing.T) {
	p := trains(t)
	next := func(args ...string) (commands []string) {
		_, after, _ := strings.Cut(p.holders(args...).stdout.String(), "\nNext\n")
		for line := range strings.SplitSeq(after, "\n") {
			if c, ok := strings.CutPrefix(line, "    gpumemtrace "); ok {
				commands = append(commands, c)
			}
		}
		return commands
	}
	base := "holders -p " + strconv.Itoa(p.cmd.Process.Pid) + " --cpu"
	for args, want := range map[string][]string{
		"--cpu":               {base + " --by retainer", base + " --again 10s"},
		"--cpu --by retainer": {base + " --again 10s"},
		"--by=retainer --pause --keys=none --cpu": {base + " --keys none --pause --again 10s"},
	} {
		if d := cmp.Diff(want, next(strings.Fields(args)...)); d != "" {
			t.Errorf("after %s (-want +got):\n%s", args, d)
		}
	}
}

// Tables are what testdata/tables.py says of itself.
type tables struct {
	Shapes     map[string][2]int64 // how many storages and bytes, by shape, type and class
	Parameters map[string][3]int64 // bytes of each, of its gradient and of its optimizer state
}

// The rows by parameter are those that named_parameters() has, one for one, with its names.
func TestHoldersByParameter(t *testing.T) {
	t.Parallel() // nothing is probed
	p, said := &trainer{T: t}, &tables{}
	p.runs("testdata/tables.py", said)
	got := map[string][3]int64{}
	for _, row := range p.holders("--cpu", "--by", "parameter", "--format", "csv").rows() {
		if name, ok := strings.CutPrefix(row["parameter"], "ncf."); ok {
			var bytes [3]int64
			for i, column := range []string{"parameter_bytes", "gradient_bytes", "optimizer_state_bytes"} {
				bytes[i], _ = strconv.ParseInt(row[column], 10, 64)
			}
			got[name] = bytes
		}
	}
	if d := cmp.Diff(said.Parameters, got); d != "" || len(got) != 12 {
		t.Errorf("by parameter (-program +holders):\n%s", d)
	}
}

// The rows by shape are what the program's own garbage collector finds, row for row. What
// came and what went has rows of its own, also for one shape.
func TestHoldersByShape(t *testing.T) {
	t.Parallel() // nothing is probed
	p, said := &trainer{T: t}, &tables{}
	p.runs("testdata/tables.py", said)
	shapes := func(v *invocation) map[string][2]int64 {
		out := map[string][2]int64{}
		for _, row := range v.rows() {
			count, _ := strconv.ParseInt(row["storages"], 10, 64)
			bytes, _ := strconv.ParseInt(row["bytes"], 10, 64)
			sign := ""
			if strings.Contains(strings.Join(v.cmd.Args, " "), "--again") {
				sign = map[bool]string{true: "+", false: "-"}[count > 0]
			}
			out[sign+row["shape"]+" "+row["dtype"]+" "+row["class"]] = [2]int64{count, bytes}
		}
		return out
	}
	if d := cmp.Diff(said.Shapes, shapes(p.holders("--cpu", "--by", "shape", "--format", "csv"))); d != "" || len(said.Shapes) < 10 {
		t.Errorf("by shape (-program +holders):\n%s", d)
	}
	v := command(t, "holders", "-p", strconv.Itoa(p.cmd.Process.Pid), "--cpu", "--again", "5s", "--by", "shape", "--format", "csv").start()
	v.until("the first reading is done", func() bool { return strings.Contains(v.stderr.String(), "is read again in 5s") })
	p.steps("1")
	v.ends(exitDone)
	if d := cmp.Diff(map[string][2]int64{
		"+(12, 3, 64, 64) float32 Tensor": {1, 12 * 3 * 64 * 64 * 4},
		"+(8, 3, 64, 64) float32 Tensor":  {2, 2 * 8 * 3 * 64 * 64 * 4},
		"-(8, 3, 64, 64) float32 Tensor":  {-1, -8 * 3 * 64 * 64 * 4},
		"-(4, 3, 64, 64) float32 Tensor":  {-1, -4 * 3 * 64 * 64 * 4},
	}, shapes(v)); d != "" {
		t.Errorf("what came and went (-program +holders):\n%s", d)
	}
}

func TestHoldersFail(t *testing.T) {
	t.Parallel() // nothing is probed
	p := trains(t)
	id := strconv.Itoa(p.cmd.Process.Pid)
	there := filepath.Join(t.TempDir(), "there.json")
	if err := os.WriteFile(there, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"", exitUsage, "-p PID"},
		{"-p -5", exitUsage, "-p PID"},
		{"-p 1 --by stack", exitUsage, "cannot show holders by \"stack\": use " + strings.Join(holders.Names(), ", ")},
		{"-p 1 --format xml", exitUsage, "use one of table, json, csv, folded, pprof"},
		{"-p 1 -o x.unknown", exitUsage, "unknown extension"},
		{"-p 1 --again -1s", exitUsage, "negative"},
		{"-p 1 --top x", exitUsage, "top"},
		{"-p 1 --again 1s --format pprof", exitUsage, "--again"},
		{"-p 1 --segments --by path", exitUsage, "--segments is a page of its own"},
		{"-p 1 --segments --format csv", exitUsage, "--segments is a page of its own"},
		{"-p " + id + " --segments", exitFailed, "PyTorch's allocator was not found"},
		{"-p " + id + " -o " + there, exitFailed, "--force"},
		{"-p " + id, exitFailed, "lie in the CPU's memory: show them with --cpu"},
		{"-p " + strconv.Itoa(os.Getpid()), exitFailed, "no CPython in the process"},
		{"-p 2147483646", exitFailed, "there is no process 2147483646"},
	} {
		t.Run(c.args, func(t *testing.T) {
			v := command(t, append([]string{"holders"}, strings.Fields(c.args)...)...).start().ends(c.code)
			v.says(c.says)
		})
	}
	p.steps("1") // nothing of this ended it
}

// A trace with --holders has readings of the heap, also of a program that it attached to
// late, and one for its profile.
func TestTraceHolders(t *testing.T) {
	p := trains(t)
	id := strconv.Itoa(p.cmd.Process.Pid)
	run := filepath.Join(t.TempDir(), "run.gmt")
	v := tracing(t, "-p", id, "--holders", "1s", "--keys", "none", "-d", "3s", "--format", "json", "-o", "-", "--record", run, "-q")
	p.steps("3")
	v.ends(exitDone)
	type heaps struct {
		Heaps []struct {
			PID     int
			Reading struct {
				Framework string
				Storages  []struct {
					Holder string
					Bytes  int64
				}
			}
		}
	}
	check := func(what string, text []byte) {
		t.Helper()
		var got heaps
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Heaps) != 1 || got.Heaps[0].PID != p.cmd.Process.Pid || got.Heaps[0].Reading.Framework != "PyTorch" {
			t.Fatalf("%s has %d heaps", what, len(got.Heaps))
		}
		var bytes int64
		for _, s := range got.Heaps[0].Reading.Storages {
			bytes += s.Bytes
			if strings.Contains(s.Holder, "exp_avg") {
				t.Errorf("%s shows a key: %s", what, s.Holder)
			}
		}
		if bytes != p.Bytes {
			t.Errorf("%s has %d bytes, and the program finds %d", what, bytes, p.Bytes)
		}
	}
	check("the profile", []byte(v.stdout.String()))
	check("the recording", []byte(command(t, "convert", run, "--format", "json", "-o", "-", "-q").start().ends(exitDone).stdout.String()))
	command(t, "report", run, "--by", "holder").start().ends(exitUsage).says("does not say which objects hold memory")
}
