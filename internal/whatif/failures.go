package whatif

import (
	"fmt"
	"os"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// What PredictProcess repeats at most: requests, and bytes of a recording. So many requests take
// some seconds and 100 MB.
const (
	mostRequests = 2 << 20
	mostBytes    = 64 << 20
)

// PredictFile returns what other settings would have changed in the runs of a recording.
func PredictFile(file string) ([]*Prediction, error) { return predictFile(file, 0, 2*MaxTensors) }

// PredictProcess is PredictFile of one process alone. The recording may still be written. Of a
// long one the error is ErrTooLong.
func PredictProcess(file string, pid int) ([]*Prediction, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if info.Size() > mostBytes {
		return nil, fmt.Errorf("%w: a recording of more than %s", ErrTooLong, bytefmt.Format(mostBytes))
	}
	return predictFile(file, pid, mostRequests)
}

func predictFile(file string, pid, most int) (all []*Prediction, err error) {
	runs, err := collect(file, pid, most)
	for i, x := range runs {
		all = append(all, Predict(x, Options{}))
		runs[i] = nil // a long one is large
	}
	return all, err
}

// Explain puts into o what predictions of its recording say of the request that failed: whether
// another setting would have served it, or why that cannot be told. It reports whether they
// say something.
func Explain(o *snapshot.OutOfMemory, predictions []*Prediction) (told bool) {
	if !CanExplain(o) {
		return false
	}
	for _, p := range predictions {
		switch {
		case int(p.PID) != o.PID, p.GPU != o.GPU && p.GPU != "" && o.GPU != "":
		case p.Reason != "":
			o.Unpredicted, told = "no prediction: "+p.Reason+".", true
		case p.Lacked == uint64(o.Tensor):
			o.Predicted, o.Unpredicted = p.Answer(), ""
			return true
		case p.Lacked > 0:
			o.Unpredicted, told = "only the first request of the process that failed is repeated under them.", true
		}
	}
	return told
}

// CanExplain reports whether a failure is one that Explain is about: of a tensor that PyTorch
// did not make.
func CanExplain(o *snapshot.OutOfMemory) bool { return o.Tensor > 0 && !o.Recovered }
