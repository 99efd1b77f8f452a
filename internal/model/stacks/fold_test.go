package stacks

import (
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// frames makes a stack, leaf first, out of "function @ file" for native and
// "function # file" for Python frames; a name alone is synthetic. A function
// of "?" has no name.
func frames(list ...string) []*snapshot.Location {
	mappings := make(map[string]*snapshot.Mapping)
	var out []*snapshot.Location
	for i, s := range list {
		l := &snapshot.Location{}
		function, file, native := strings.Cut(s, " @ ")
		if native {
			if mappings[file] == nil {
				mappings[file] = &snapshot.Mapping{Path: file}
			}
			l.Address, l.Mapping = uint64(0x1000+i), mappings[file]
			l.Lines = []snapshot.Line{{Function: function}}
			if function == "?" {
				l.Lines[0].Reason = "no symbol"
			}
		} else {
			function, file, _ = strings.Cut(s, " # ")
			l.Lines = []snapshot.Line{{Function: function, File: file}}
		}
		out = append(out, l)
	}
	return out
}

func show(stack []*snapshot.Location) string {
	var out []string
	for _, l := range stack {
		out = append(out, l.Lines[0].Function)
	}
	return strings.Join(out, " ")
}

const (
	site = "/venv/lib/python3.12/site-packages/"
	py   = "/usr/bin/python3.12"
	libC = "/usr/lib/x86_64-linux-gnu/libc.so.6"
)

func pytorchStack() []*snapshot.Location {
	return frames(
		"cuMemAlloc_v2",
		"? @ /usr/lib/libcudart.so.12",
		"c10::cuda::CUDACachingAllocator::Native::malloc @ "+site+"torch/lib/libc10_cuda.so",
		"at::native::empty_cuda @ "+site+"torch/lib/libtorch_cuda.so",
		"torch::autograd::THPVariable_empty @ "+site+"torch/lib/libtorch_python.so",
		"cfunction_call @ "+py,
		"_PyObject_MakeTpCall @ "+py,
		"_PyEval_EvalFrameDefault @ "+py,
		"forward # "+site+"torch/nn/modules/linear.py",
		"<interpreter trampoline> # <shim>",
		"? @ "+py,
		"slot_tp_call @ "+py,
		"main # /home/user/train.py",
		"<module> # /home/user/train.py",
		"run_mod @ "+py,
		"Py_BytesMain @ "+py,
		"__libc_start_call_main @ "+libC,
		"__libc_start_main @ "+libC,
		"_start @ "+py,
	)
}

func TestFold(t *testing.T) {
	const python = "forward main <module>"
	for _, c := range []struct {
		name  string
		mode  Native
		stack []*snapshot.Location
		want  string
	}{
		{"python", NativePython, pytorchStack(), "cuMemAlloc_v2 ? c10::cuda::CUDACachingAllocator::Native::malloc at::native::empty_cuda torch::autograd::THPVariable_empty " + python},
		{"none", NativeNone, pytorchStack(), "cuMemAlloc_v2 " + python},
		{"all", NativeAll, pytorchStack(), "cuMemAlloc_v2 ? c10::cuda::CUDACachingAllocator::Native::malloc at::native::empty_cuda torch::autograd::THPVariable_empty cfunction_call _PyObject_MakeTpCall _PyEval_EvalFrameDefault forward ? slot_tp_call main <module> run_mod Py_BytesMain __libc_start_call_main __libc_start_main _start"},
		{"no Python frames", NativeNone, frames("cuMemAlloc_v2", "main @ /bin/app", "_start @ /bin/app"), "cuMemAlloc_v2 main _start"},
		{"no Python frames, interpreter", NativePython, frames("cuMemAlloc_v2", "PyObject_Call @ "+py), "cuMemAlloc_v2 PyObject_Call"},
		{"embedded statically", NativePython, frames("cuMemAlloc_v2", "type_call @ /bin/game", "run # a.py", "_PyEval_Vector @ /bin/game", "Script::run @ /bin/game", "main @ /bin/game", "_start @ /bin/game"), "cuMemAlloc_v2 run"},
		{"shared interpreter", NativePython, frames("x", "f # a.py", "? @ /usr/lib/libpython3.13t.so.1.0"), "x f"},
		{"a library's function by such a name stays", NativePython, frames("x", "type_call @ "+site+"zoo/_zoo.so", "f # a.py"), "x type_call f"},
		{"a thread", NativePython, frames("x", "f # a.py", "thread_run @ "+py, "start_thread @ "+libC, "clone3 @ "+libC), "x f"},
		{"a thread of C++ that calls Python", NativePython, frames("x", "at::empty @ /t.so", "hook # a.py", "? @ "+py, "call # b.py", "Pool::run @ /t.so", "execute_native_thread_routine @ /usr/lib/libstdc++.so.6", "clone3 @ "+libC), "x at::empty hook call"},
		{"the same, whole", NativeAll, frames("x", "f # a.py", "Pool::run @ /t.so", "clone3 @ "+libC), "x f Pool::run clone3"},
		{"autograd calls Python", NativePython, frames("x", "at::empty @ /t.so", "hook # a.py", "torch::autograd::PyNode::apply @ /t.so", "torch::autograd::Engine::thread_main @ /t.so", "execute_native_thread_routine @ /usr/lib/libstdc++.so.6", "clone3 @ "+libC), "x at::empty hook torch::autograd::PyNode::apply torch::autograd::Engine::thread_main"},
		{"autograd is called by Python", NativePython, frames("x", "torch::autograd::Engine::execute @ /t.so", "backward # a.py", "PyRun_Any @ /bin/game", "main @ /bin/game"), "x torch::autograd::Engine::execute backward"},
		{"autograd alone", NativePython, frames("x", "torch::autograd::Engine::thread_main @ /t.so", "clone3 @ "+libC), "x torch::autograd::Engine::thread_main clone3"},
		{"cut", NativePython, frames("x", "f # a.py", "[truncated: 3 frames]", "main @ /bin/game"), "x f [truncated: 3 frames]"},
		{"malloc in the C library stays", NativePython, frames("x", "malloc @ "+libC, "f # a.py"), "x malloc f"},
		{"empty", NativePython, nil, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := show(Fold(c.mode, c.stack)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestModeFlag(t *testing.T) {
	for _, m := range []Native{NativePython, NativeAll, NativeNone} {
		var got Native
		if err := got.Set(m.String()); err != nil || got != m {
			t.Errorf("Set(%q) gave %v, %v", m, got, err)
		}
	}
	var m Native
	if m.String() != "python" {
		t.Errorf("the default is %v", m)
	}
	if err := m.Set("some"); err == nil || !strings.Contains(err.Error(), `"some"`) {
		t.Errorf("Set(some): %v", err)
	}
}

func TestOwner(t *testing.T) {
	for _, c := range []struct {
		want  string
		stack []*snapshot.Location
	}{
		{"pytorch", pytorchStack()},
		{"", nil},
		{"", frames("cuMemAlloc_v2")},
		{"", frames("cuMemAlloc_v2", "? @ /usr/lib/libcuda.so.1", "malloc @ "+libC)},
		{"application", frames("cuMemAlloc_v2", "cudaMalloc @ /usr/lib/libcudart.so.12", "main @ /bin/app", "_start @ /bin/app")},
		{"application", frames("cuMemAlloc_v2", "cudaMalloc @ /bin/app", "main @ /bin/app")},
		{"application", frames("cuMemAlloc_v2", "? @ /usr/lib/libstdc++.so.6", "main @ /bin/app")},
		{"nccl", frames("cuMemCreate", "ncclCuMemAlloc @ "+site+"nvidia/nccl/lib/libnccl.so.2", "c10d::ProcessGroupNCCL @ "+site+"torch/lib/libtorch_cuda.so")},
		{"nccl", frames("cuMemCreate", "ncclCommInitRankConfig @ "+site+"torch/lib/libtorch_cuda.so")},
		{"cublas", frames("cuMemAlloc_v2", "? @ "+site+"nvidia/cu13/lib/libcublasLt.so.13", "? @ "+site+"nvidia/cu13/lib/libcublas.so.13", "at::cuda::getCurrentCUDABlasHandle @ "+site+"torch/lib/libtorch_cuda.so")},
		{"cublas", frames("cuMemAlloc_v2", "? @ /bin/app", "cublasCreate_v2 @ /bin/app", "main @ /bin/app")[2:]},
		{"cudnn", frames("x", "? @ /usr/lib/libcudnn_engines_precompiled.so.9")},
		{"cufft", frames("x", "? @ /usr/lib/libcufft.so.11")},
		{"cusolver", frames("x", "? @ /usr/lib/libcusolverMg.so.11")},
		{"cusparse", frames("x", "? @ /usr/lib/libcusparseLt.so.0")},
		{"curand", frames("x", "? @ /usr/lib/libcurand.so.10")},
		{"nvshmem", frames("x", "? @ /usr/lib/libnvshmem_host.so.3")},
		{"triton", frames("x", "loadBinary @ /root/.triton/cache/ABC/cuda_utils.cpython-312-x86_64-linux-gnu.so", "launch # "+site+"triton/runtime/jit.py")},
		{"jax", frames("x", "xla::Allocate @ "+site+"jax_plugins/xla_cuda12/xla_cuda_plugin.so")},
		{"jax", frames("x", "stream_executor::gpu::Alloc @ /bin/my_xla")},
		{"tensorflow", frames("x", "xla::Allocate @ "+site+"tensorflow/libtensorflow_cc.so.2")},
		{"cupy", frames("x", "? @ "+site+"cupy/cuda/memory.cpython-312-x86_64-linux-gnu.so")},
		{"cupy", frames("x", "? @ "+site+"cupy_backends/cuda/api/runtime.so")},
		{"numba", frames("x", "ffi_call @ /usr/lib/libffi.so.8", "? @ /usr/lib/python3.12/lib-dynload/_ctypes.cpython-312-x86_64-linux-gnu.so", "PyObject_Call @ "+py, "safe_call # "+site+"numba/cuda/cudadrv/driver.py", "main # /x.py")},
		{"application", frames("x", "? @ "+site+"cuda/bindings/driver.cpython-312-x86_64-linux-gnu.so", "_PyEval @ "+py, "alloc # "+site+"cuda/core/memory.py", "main # /home/u/a.py")},
		{"onnxruntime", frames("x", "onnxruntime::CUDAAllocator::Alloc @ "+site+"onnxruntime/capi/libonnxruntime_providers_cuda.so")},
		{"tensorrt", frames("x", "? @ /usr/lib/libnvinfer_plugin.so.10")},
		{"vllm", frames("x", "at::empty @ "+site+"vllm/_C.abi3.so")},
		{"llama.cpp", frames("x", "ggml_cuda_pool::alloc @ /opt/libggml-cuda.so", "main @ /bin/llama-cli")},
		{"llama.cpp", frames("x", "ggml_backend_cuda_buffer_type_alloc_buffer @ /bin/llama-server", "main @ /bin/llama-server")},
		{"pytorch", frames("x", "c10::cuda::CUDACachingAllocator::Native::malloc @ /bin/static_libtorch_app")},
		{"opencv", frames("x", "cv::cuda::GpuMat::create @ /usr/lib/libopencv_core.so.408")},
		{"rapids", frames("x", "rmm::mr::cuda_memory_resource::do_allocate @ /usr/lib/librmm.so")},
		{"ucx", frames("x", "? @ /usr/lib/ucx/libuct_cuda.so.0")},
		{"mpi", frames("x", "? @ /usr/lib/openmpi/mca_accelerator_cuda.so")},
		{"npp", frames("x", "? @ /usr/lib/libnppif.so.12")},
		{"nvjpeg", frames("x", "? @ /usr/lib/libnvjpeg.so.12")},
		{"xformers", frames("x", "xformers::run @ "+site+"xformers/_C.so")},
		{"mymodule", frames("x", "run @ "+site+"mymodule.cpython-312-x86_64-linux-gnu.so")},
		{"debian_pkg", frames("x", "f # /usr/lib/python3/dist-packages/debian_pkg/x.py")},
		{"libengine", frames("x", "Engine::alloc @ /opt/lib/libengine.so.3.1", "main @ /bin/app")},
		{"application", frames("x", "f # /usr/lib/python3.12/ctypes/__init__.py", "<module> # <frozen runpy>", "<module> # /home/u/a.py")},
		{"torchrec", frames("x", "f # "+site+"torchrec/a.py")},
	} {
		if got := Owner(c.stack); got != c.want {
			t.Errorf("%s: owner %q, want %q", show(c.stack), got, c.want)
		}
	}
}

// A row without a column can never match, and a pattern that does not parse
// never does.
func TestOwnerTable(t *testing.T) {
	seen := make(map[string]bool)
	for _, o := range owners {
		if seen[o.name] || o.name == "" || len(o.files)+len(o.functions)+len(o.packages) == 0 {
			t.Errorf("bad row %q", o.name)
		}
		seen[o.name] = true
		for _, p := range o.files {
			base := strings.ReplaceAll(p, "*", "")
			if !matchAny([]string{p}, base) {
				t.Errorf("%s: pattern %q does not match %q", o.name, p, base)
			}
			if matchAny(beneath, base) {
				t.Errorf("%s: %q is skipped before it can own", o.name, base)
			}
		}
	}
}
