package whatif

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// forecast writes a fit, with each line on one line.
func forecast(t *testing.T, f *Fit, limits Limits, to ...float64) string {
	t.Helper()
	var page bytes.Buffer
	if err := f.Write(&page, to, limits, Options{Width: 1000}); err != nil {
		t.Fatal(err)
	}
	return page.String()
}

// Where not even 1 fits, fit says so and why. A run that does not grow has no largest number.
func TestNothingFits(t *testing.T) {
	x := recording(t, "allocator/peft_16.gmt")
	x.Beside = 700 << 20
	f, err := NewFit([]Measured{{16, x}, {8, recording(t, "allocator/peft_8.gmt")}})
	if err != nil {
		t.Fatal(err)
	}
	flat, err := NewFit([]Measured{{8, sized(100)}, {16, sized(100)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		fit    *Fit
		limits Limits
		want   string
	}{
		{f, Limits{Memory: 600 << 20}, "No number fits into 600 MiB of GPU memory: the process holds 700 MiB there besides what PyTorch reserves.\n"},
		{f, Limits{Memory: 700 << 20}, "No number fits into 700 MiB of GPU memory: the process holds 700 MiB there besides what PyTorch reserves.\n"},
		{f, Limits{Memory: 800 << 20}, "No number fits into 800 MiB of GPU memory: PyTorch can reserve 100 MiB of it, and at 1 it would reserve "},
		{f, Limits{Reserved: 100 << 20}, "There is no number at which PyTorch reserves no more than 100 MiB: at 1 it would reserve "},
		{flat, Limits{Memory: 1 << 30}, "Every number up to 16777216 fits into 1.00 GiB of GPU memory, counting PyTorch's memory alone because the recording lacks the rest.\n"},
		{flat, Limits{Reserved: 1 << 30}, "At every number up to 16777216 PyTorch reserves no more than 1.00 GiB.\n"},
	} {
		page := forecast(t, test.fit, test.limits, 32)
		if !strings.Contains(page, test.want) || strings.Contains(page, "16777215") {
			t.Errorf("%+v: %q is not in\n%s", test.limits, test.want, page)
		}
	}
	if x := f.Forecast([]float64{32}, Limits{Memory: 600 << 20}).Memory; *x != (Largest{}) {
		t.Errorf("nothing is left for PyTorch, and %+v run", *x)
	}
}

// A range stands only where the peaks of all programs that fit was compared with lay within theirs.
func TestRange(t *testing.T) {
	const within = "The peaks of all 6 programs that fit was compared with lay within it."
	f := fitted(t, "resnet50_without_cudnn", "8", "16")
	if page := forecast(t, f, Limits{Memory: 80 << 30}, 32); !strings.Contains(page, "1.18 GiB to 1.28 GiB") || !strings.Contains(page, within) || strings.Contains(page, "left out") {
		t.Errorf("no range in\n%s", page)
	}
	far := f.Forecast([]float64{64, 65}, Limits{}).Rows
	if at64, at65 := far[2], far[3]; at64.High == 0 || at65.High != 0 || at65.Low != 0 {
		t.Errorf("%+v, %+v", at64, at65)
	}
	f.base.Beside = 500 << 20
	for name, test := range map[string]struct {
		set    func(*Site)
		reason string
	}{
		"cuDNN":     {func(s *Site) { s.CuDNN = true }, "PEAK MAY BE is left out: fit does not know which algorithms cuDNN chooses at another number.\n"},
		"recurrent": {func(s *Site) { s.Recurrent = true }, "PEAK MAY BE is left out: fit does not know all that recurrent layers such as an LSTM ask for at another number.\n"},
	} {
		site := &f.base.Sites[f.base.Stacks[0]]
		before := *site
		test.set(site)
		page := forecast(t, f, Limits{Memory: 80 << 30}, 32)
		if !strings.Contains(page, test.reason) || strings.Contains(page, " to 1.30 GiB") || strings.Contains(page, within) || !strings.Contains(page, "  perhaps\n") {
			t.Errorf("%s: %q is not in\n%s", name, test.reason, page)
		}
		c := f.Forecast([]float64{32}, Limits{})
		if row := c.Rows[2]; row.Low != 0 || row.High != 0 || len(c.Unmodelled) != 1 {
			t.Errorf("%s: %+v, %q", name, row, c.Unmodelled)
		}
		*site = before
	}
	curved, err := NewFit([]Measured{{4, sized(16)}, {8, sized(64)}})
	if err != nil {
		t.Fatal(err)
	}
	if c := curved.Forecast([]float64{16}, Limits{}); c.Rows[2].High != 0 || len(c.Unmodelled) != 1 {
		t.Errorf("what grows faster than the number has a range: %+v, %q", c.Rows[2], c.Unmodelled)
	}
}

// Stacks say which tensors are of cuDNN and of recurrent layers, by PyTorch's functions or by its files.
func TestUnmodelledSites(t *testing.T) {
	for _, test := range []struct {
		function, file   string
		cudnn, recurrent bool
	}{
		{"at::native::raw_cudnn_convolution_forward_out", "", true, false},
		{"at::native::cudnn_convolution", "", true, false},
		{"at::native::_cudnn_rnn", "", true, false},
		{"at::native::_thnn_fused_lstm_cell_cuda", "", false, true},
		{"at::native::_thnn_fused_gru_cell_backward_cuda", "", false, true},
		{"at::native::lstm", "", false, true},
		{"at::native::gru", "", false, true},
		{"LSTM.forward", "/venv/lib/python3.12/site-packages/torch/nn/modules/rnn.py", false, true},
		{"train_without_cudnn", "train.py", false, false},
		{"at::native::empty_cuda", "", false, false},
	} {
		l := &snapshot.Location{Lines: []snapshot.Line{{Function: test.function, File: test.file}}}
		c := &collector{sites: []*record.Stack{{Frames: []*record.Place{record.NewPlace(1, 1, l, nil)}}}}
		if s := c.name()[0]; s.CuDNN != test.cudnn || s.Recurrent != test.recurrent {
			t.Errorf("%s in %s: %+v", test.function, test.file, s)
		}
	}
}
