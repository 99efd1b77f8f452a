package export

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A purpose is the memory of one of those that hold it, and the parts of it that have a name.
type purpose struct {
	bytes, tensors, cached, context int64
}

// owners says how much each of those that name tells has, the largest first. Each byte is in one
// part, so the parts add up to the whole.
func (x *overview) owners(samples []*snapshot.Sample, name func(*snapshot.Sample) string) []string {
	all, bytes := map[string]*purpose{}, map[string]int64{}
	for name, g := range gather(samples, name) {
		all[name] = x.purpose(g.samples)
		bytes[name] = all[name].bytes
	}
	return listed(bytes, len(bytes), func(name string) string { return all[name].says(name) })
}

// purposes says in a sentence whose the memory is.
func (x *overview) purposes(page *render.Page, samples []*snapshot.Sample) {
	parts := x.owners(samples, ownerName)
	if len(parts) == 0 {
		return
	}
	page.Heading("What for")
	page.Line("  %s: %s%s", strings.Join(parts, "; "), bytefmt.Format(x.purpose(samples).bytes), x.compared())
	x.reserved(page, samples)
}

// reserved says why nvidia-smi shows more than PyTorch does: what PyTorch's allocator has, and
// whose the rest is.
func (x *overview) reserved(page *render.Page, samples []*snapshot.Sample) {
	var pytorch int64
	var rest []*snapshot.Sample
	for _, s := range samples {
		if s.Owner == "pytorch" && snapshot.Class(s.Kind) != event.ClassDriver.String() {
			pytorch += x.shown(&s.Values)
		} else {
			rest = append(rest, s)
		}
	}
	other := x.purpose(rest).bytes
	if pytorch == 0 || other <= 0 {
		return
	}
	parts := x.owners(rest, func(s *snapshot.Sample) string {
		if name := ownerName(s); name != libraryNames["pytorch"] {
			return name
		}
		switch cause := snapshot.Cause(s); cause {
		case event.KindContext.String(): // purpose.says adds the word
			return "PyTorch's"
		case "local memory", "code", "stream":
			return "PyTorch's " + cause
		}
		return "PyTorch outside of its allocator"
	})
	page.Line("  PyTorch itself reports %s of this as reserved%s. nvidia-smi shows the other %s too: %s.", bytefmt.Format(pytorch), across(samples), bytefmt.Format(other), strings.Join(parts, "; "))
}

// across says that a sum is of several processes or GPUs, of which nvidia-smi has a row each.
func across(samples []*snapshot.Sample) string {
	var several []string
	if pids := gather(samples, func(s *snapshot.Sample) int { return s.PID }); len(pids) > 1 {
		several = append(several, fmt.Sprintf("%d processes", len(pids)))
	}
	if gpus := gather(samples, func(s *snapshot.Sample) string { return s.GPU }); len(gpus) > 1 {
		several = append(several, fmt.Sprintf("%d GPUs", len(gpus)))
	}
	if len(several) == 0 {
		return ""
	}
	return ", added up across " + strings.Join(several, " and ")
}

// itself returns n. sorting.Largest takes it for a map whose values are the figures to sort by.
func itself(n int64) int64 { return n }

// small reports whether a sentence names a part of a sum only among others: it would hide the
// answer. Tables have a row for each.
func small(part, sum int64) bool {
	const least = 1 << 20 // bytes
	return sum >= least && (abs(part) < least || float64(abs(part)) < 0.001*float64(sum))
}

// listed returns the parts of a sum, the largest first, as says writes them, most of them at most,
// and after them the sum of those that are left: of the small ones, too.
func listed(parts map[string]int64, most int, says func(name string) string) (out []string) {
	var sum, others int64
	for _, n := range parts {
		sum += n
	}
	for _, name := range sorting.Largest(parts, itself) {
		switch n := parts[name]; {
		case n == 0:
		case small(n, sum), len(out) == most:
			others += n
		default:
			out = append(out, says(name))
		}
	}
	if others != 0 {
		out = append(out, "others "+bytefmt.Format(others))
	}
	return out
}

// purpose adds samples up.
func (x *overview) purpose(samples []*snapshot.Sample) *purpose {
	p := &purpose{}
	for _, s := range samples {
		bytes := x.shown(&s.Values)
		p.bytes += bytes
		switch s.Kind {
		case snapshot.Tensor:
			p.tensors += bytes
		case snapshot.Cached:
			p.cached += bytes
		case event.KindContext.String():
			p.context += bytes
		}
		switch snapshot.Cause(s) {
		case "tensors from before attach":
			p.tensors += bytes
		case "cached, in segments from before attach":
			p.cached += bytes
		}
	}
	return p
}

// says says how much name has, and how much of that is in parts that have a name of their own.
func (p *purpose) says(name string) string {
	all := bytefmt.Format(p.bytes)
	if bytefmt.Format(p.context) == all {
		return name + " context " + all
	}
	var parts []string
	for _, part := range []struct {
		bytes int64
		what  string
	}{{p.tensors, "in tensors"}, {p.cached, "cached"}, {p.context, "context"}} {
		switch text := bytefmt.Format(part.bytes); {
		case part.bytes == 0, small(part.bytes, p.bytes):
		case text == all:
			return name + " " + all + ", all " + part.what
		default:
			parts = append(parts, text+" "+part.what)
		}
	}
	if len(parts) == 0 {
		return name + " " + all
	}
	return name + " " + all + ", of which " + strings.Join(parts, " and ")
}

// ownerName names whose a sample's memory is: the library's whose call took it, or CUDA's, which
// takes the context and what it needs itself. No part is named after anything else, such as a cause,
// so that nothing counts twice.
func ownerName(s *snapshot.Sample) string {
	switch driver := snapshot.Class(s.Kind) == event.ClassDriver.String(); {
	case driver && snapshot.Cause(s) == "allocated before attach":
		return "allocated before the trace"
	case s.Owner == "" && driver, s.Owner == "cuda":
		return "CUDA"
	case s.Owner == "application":
		return "the program itself"
	case s.Owner == "":
		return "not known"
	case s.Owner == snapshot.NotNamed:
		return "not named yet"
	}
	return cmp.Or(libraryNames[s.Owner], "the library "+s.Owner)
}

// libraryNames are the names of owners as their makers write them.
var libraryNames = map[string]string{
	"pytorch": "PyTorch", "jax": "JAX", "tensorflow": "TensorFlow", "cupy": "CuPy", "numba": "Numba", "cublas": "cuBLAS", "cudnn": "cuDNN", "cupti": "CUPTI",
	"cusolver": "cuSOLVER", "cusparse": "cuSPARSE", "cufft": "cuFFT", "curand": "cuRAND", "nccl": "NCCL", "nvshmem": "NVSHMEM", "tensorrt": "TensorRT", "onnxruntime": "ONNX Runtime",
	"vllm": "vLLM", "triton": "Triton", "ucx": "UCX", "opencv": "OpenCV", "ffmpeg": "FFmpeg", "deepspeed": "DeepSpeed", "xgboost": "XGBoost", "rapids": "RAPIDS",
}
