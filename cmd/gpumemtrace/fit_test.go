package main

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/whatif"
)

// What the process held beside PyTorch's reserved memory is in the prediction, and in what fits.
func TestFit(t *testing.T) {
	dir, err := filepath.Abs("../../test/recordings/allocator")
	if err != nil {
		t.Fatal(err)
	}
	v := command(t, "fit", "16="+filepath.Join(dir, "peft_16.gmt"), filepath.Join(dir, "peft_8.gmt"), "--batch", "32", "--memory", "20GiB").start().ends(exitDone)
	for _, want := range []string{
		"32 does not fit into 20.0 GiB. At 32 ",
		"about 30.2 GiB in nvidia-smi, with the 742 MiB that the process held besides, such as CUDA's context",
		"The largest number that fits into 20.0 GiB of GPU memory is 20: PyTorch can reserve 19.3 GiB of it.",
		"49.4%) 15.6 GiB yes",
	} {
		if !strings.Contains(strings.Join(strings.Fields(v.stdout.String()), " "), want) {
			t.Errorf("%q is not in\n%s", want, v.stdout.String())
		}
	}
}

// Two runs of one number show nothing that grows, and fit says so first.
func TestFitOfEqualRuns(t *testing.T) {
	run, err := filepath.Abs("../../test/recordings/allocator/bert.gmt")
	if err != nil {
		t.Fatal(err)
	}
	out := command(t, "fit", "8="+run, "16="+run, "--to", "32").start().ends(exitDone).stdout.String()
	if _, after, _ := strings.Cut(out, "\n"); !strings.HasPrefix(after, "Nothing grew from run to run, so the prediction for every number is what was measured.") {
		t.Errorf("it says %s", out)
	}
}

// What the program may reserve by set_per_process_memory_fraction is of PyTorch's reserved memory
// alone: at 20 it reserves 18.6 GiB and at 21 19.5 GiB.
func TestFitReserved(t *testing.T) {
	dir, err := filepath.Abs("../../test/recordings/allocator")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"fit", filepath.Join(dir, "peft_8.gmt"), filepath.Join(dir, "peft_16.gmt"), "--to", "20,21"}
	out := command(t, append(args, "--reserved", "19GiB")...).start().ends(exitDone).stdout.String()
	for _, want := range []string{
		"The largest number at which PyTorch reserves no more than 19.0 GiB is 20.", "RESERVES UP TO 19.0 GiB", " 20 18.6 GiB", " 21 19.5 GiB",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if strings.Contains(out, "FITS INTO") {
		t.Errorf("it speaks of a GPU:\n%s", out)
	}
	out = command(t, append(args, "--reserved", "19GiB", "--memory", "20GiB")...).start().ends(exitDone).stdout.String()
	if !strings.Contains(out, "FITS INTO 20.0 GiB  RESERVES UP TO 19.0 GiB") {
		t.Errorf("both limits:\n%s", out)
	}
	out = command(t, append(args, "--reserved", "19GiB", "--json")...).start().ends(exitDone).stdout.String()
	var c whatif.Forecast
	if err := json.Unmarshal([]byte(out), &c); err != nil || len(c.Rows) != 4 || c.Rows[3].At != 21 || c.Reserved == nil || *c.Reserved != (whatif.Largest{Limit: 19 << 30, Kept: 20, Emptying: 36}) {
		t.Errorf("%v: %s", err, out)
	}
	command(t, append(args, "--reserved", "much")...).start().ends(exitUsage).says("--reserved")
}
