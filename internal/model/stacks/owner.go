package stacks

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// application is the owner of stacks whose nearest caller of CUDA is the
// program itself.
const application = "application"

// An owner is one row of the table: whose code this is, by any of its columns.
type owner struct {
	name      string
	files     []string // path.Match patterns of the base names of mapped files
	functions []string // prefixes, for copies linked into another file: see nativeOwner
	packages  []string // Python packages, as imported
}

// owners is in order of precedence. To know one more library, add a row.
var owners = []owner{
	// NVIDIA's libraries.
	{"nccl", []string{"libnccl.so*", "libnccl-*.so*", "libnccl_*.so*"}, []string{"ncclCo", "ncclGroup", "ncclMem", "ncclInit", "ncclAll", "ncclBroadcast", "ncclReduce", "ncclSend", "ncclRecv", "ncclCuda", "ncclShadow", "ncclSpace", "ncclProxy", "ncclTransport", "pncclCo", "pncclGroup", "pncclMem"}, []string{"nccl"}},
	{"cublas", []string{"libcublas.so*", "libcublasLt.so*", "libcublasMp.so*", "libcublasXt.so*", "libnvblas.so*"}, []string{"cublas"}, nil},
	{"cudnn", []string{"libcudnn*.so*"}, []string{"cudnn"}, []string{"cudnn"}},
	{"cufft", []string{"libcufft*.so*"}, []string{"cufft"}, nil},
	{"cusolver", []string{"libcusolver*.so*"}, []string{"cusolver"}, nil},
	{"cusparse", []string{"libcusparse*.so*"}, []string{"cusparse"}, nil},
	{"curand", []string{"libcurand*.so*"}, []string{"curand"}, nil},
	{"cutensor", []string{"libcutensor*.so*"}, []string{"cutensor"}, nil},
	{"nvshmem", []string{"libnvshmem*.so*", "nvshmem_*.so*"}, []string{"nvshmem"}, []string{"nvshmem"}},
	{"nvjpeg", []string{"libnvjpeg*.so*"}, []string{"nvjpeg"}, nil},
	{"npp", []string{"libnpp*.so*"}, nil, nil},
	{"nvcomp", []string{"libnvcomp*.so*"}, []string{"nvcomp"}, nil},
	{"cupti", []string{"libcupti.so*"}, []string{"cupti"}, nil},
	{"optix", []string{"libnvoptix.so*"}, nil, nil},
	{"cufile", []string{"libcufile*.so*"}, []string{"cuFile"}, nil},
	{"dali", []string{"libdali*.so*"}, []string{"dali::"}, []string{"nvidia.dali"}},
	{"tensorrt", []string{"libnvinfer*.so*", "libnvonnxparser*.so*", "libtensorrt_llm*.so*"}, []string{"nvinfer1::", "tensorrt_llm::"}, []string{"tensorrt", "tensorrt_llm"}},
	{"transformer_engine", []string{"libtransformer_engine*.so*", "transformer_engine_*.so*"}, []string{"transformer_engine::", "nvte_"}, []string{"transformer_engine"}},

	// Serving and inference, before the frameworks that they are built on.
	{"vllm", nil, []string{"vllm::"}, []string{"vllm"}},
	{"sglang", nil, nil, []string{"sglang", "sgl_kernel"}},
	{"deepspeed", nil, nil, []string{"deepspeed"}},
	{"flash_attn", []string{"flash_attn*.so", "flashinfer*.so"}, nil, []string{"flash_attn", "flashinfer"}},
	{"bitsandbytes", []string{"libbitsandbytes*.so*"}, nil, []string{"bitsandbytes"}},
	{"llama.cpp", []string{"libggml*.so*", "libllama.so*"}, []string{"ggml_", "llama_"}, []string{"llama_cpp"}},
	{"ctranslate2", []string{"libctranslate2*.so*"}, []string{"ctranslate2::"}, []string{"ctranslate2"}},
	{"onnxruntime", []string{"libonnxruntime*.so*", "onnxruntime_*.so"}, []string{"onnxruntime::"}, []string{"onnxruntime"}},
	{"openvino", []string{"libopenvino*.so*"}, nil, []string{"openvino"}},

	// Frameworks.
	{"pytorch", []string{"libc10.so*", "libc10_*.so*", "libtorch*.so*", "libcaffe2*.so*", "libshm.so*"}, []string{"c10::", "at::", "torch::", "caffe2::", "THCCachingAllocator"}, []string{"torch", "torchvision", "torchaudio"}},
	{"jax", []string{"libjax*.so*", "xla_cuda_plugin.so", "xla_extension.so", "pjrt_*.so*", "libpjrt*.so*", "_jax.so", "libtfrt*.so*"}, []string{"jax::", "jaxlib::", "pjrt::", "xla::", "stream_executor::"}, []string{"jax", "jaxlib", "jax_plugins", "jax_cuda12_plugin", "jax_cuda13_plugin", "jax_cuda12_pjrt", "jax_cuda13_pjrt", "flax"}},
	{"tensorflow", []string{"libtensorflow*.so*", "_pywrap_tensorflow*.so"}, []string{"tensorflow::"}, []string{"tensorflow", "keras"}},
	{"triton", []string{"libtriton*.so*", "cuda_utils*.so", "__triton_launcher*.so", "libproton*.so*"}, []string{"triton::"}, []string{"triton"}},
	{"cupy", nil, []string{"cupy::"}, []string{"cupy", "cupy_backends", "cupyx"}},
	{"numba", nil, nil, []string{"numba", "numba_cuda"}},
	{"warp", []string{"warp.so", "warp-clang.so"}, []string{"wp_alloc_device"}, []string{"warp"}},
	{"paddle", []string{"libpaddle*.so*"}, []string{"paddle::", "phi::"}, []string{"paddle"}},
	{"mxnet", []string{"libmxnet*.so*"}, []string{"mxnet::"}, []string{"mxnet"}},
	{"rapids", []string{"librmm.so*", "libcudf.so*", "libcuml*.so*", "libcugraph*.so*", "libraft.so*", "libcuvs*.so*", "libkvikio.so*"}, []string{"rmm::", "cudf::", "raft::", "cuml::", "cuvs::"}, []string{"rmm", "cudf", "cuml", "cugraph", "pylibraft", "cuvs"}},
	{"faiss", []string{"libfaiss*.so*", "_swigfaiss*.so"}, []string{"faiss::"}, []string{"faiss"}},
	{"xgboost", []string{"libxgboost.so*"}, []string{"xgboost::"}, []string{"xgboost"}},
	{"lightgbm", []string{"lib_lightgbm.so*"}, []string{"LightGBM::"}, []string{"lightgbm"}},
	{"opencv", []string{"libopencv_*.so*", "cv2*.so"}, []string{"cv::"}, []string{"cv2"}},
	{"ffmpeg", []string{"libavutil*.so*", "libavcodec*.so*", "libavfilter*.so*"}, []string{"av_hwframe_", "av_hwdevice_", "avcodec_"}, []string{"av"}},
	{"gromacs", []string{"libgromacs*.so*"}, []string{"gmx::"}, nil},
	{"kokkos", []string{"libkokkos*.so*"}, []string{"Kokkos::"}, nil},

	// Communication.
	{"ucx", []string{"libucp.so*", "libucs.so*", "libuct*.so*", "libucm*.so*", "libucc*.so*"}, []string{"ucp_", "uct_", "ucs_"}, []string{"ucp", "ucxx"}},
	{"mpi", []string{"libmpi*.so*", "libopen-pal.so*", "libopen-rte.so*", "libmpich*.so*", "mca_*.so"}, []string{"MPI_", "PMPI_"}, []string{"mpi4py"}},
	{"gdrcopy", []string{"libgdrapi.so*"}, []string{"gdr_"}, nil},
}

// beneath are files below or between the owners: CUDA itself, the C and C++
// libraries, and what carries a call from an interpreter.
var beneath = []string{
	"libcuda.so*", "libcudart.so*", "libcudart-*.so*", "libcudadebugger.so*", "libnvidia-*.so*", "libnvrtc*.so*", "libnvJitLink*.so*", "libnvvm*.so*",
	"libc.so*", "libc-2.*.so", "ld-linux*.so*", "ld-musl-*.so*", "ld-2.*.so", "libpthread*.so*", "libdl*.so*", "librt*.so*", "libm.so*", "libm-2.*.so",
	"libstdc++.so*", "libc++.so*", "libc++abi.so*", "libgcc_s*.so*", "libgomp*.so*", "libomp*.so*", "libiomp5.so*",
	"libffi*.so*", "_ctypes*.so", "_cffi_backend*.so",
	"libjemalloc*.so*", "libtcmalloc*.so*", "libmimalloc*.so*",
	"[vdso]",
}

// Owner returns whose code asked CUDA for memory: that of the frame nearest to
// the leaf that is not in CUDA itself, the C or C++ library, the Python
// interpreter or synthetic. A library of no row goes by its Python package,
// else by its base name; the program, and Python files outside site-packages,
// are the application. Without any such frame it is "". If a frame that may be the nearest
// one has no name yet, it is snapshot.NotNamed.
//
// stack is leaf first and not folded.
func Owner(stack []*snapshot.Location) string {
	var o Owners
	for _, l := range stack {
		if name := o.Owner(l); name != "" {
			return name
		}
	}
	return ""
}

// Owners find the owners of frames. They remember those of mapped files, which take most of
// the time to find. They are for one goroutine.
type Owners struct{ files map[string]file }

// maxFiles bounds the files that are remembered.
const maxFiles = 1 << 12

// A file has the owner that the path of a mapped file shows.
type file struct {
	beneath bool   // no owner's
	owner   string // of its name or package, "" for none
	rest    string // the owner, if no function shows another
}

// Owner returns the owner of a frame, "" to look further up the stack.
func (o *Owners) Owner(l *snapshot.Location) string {
	switch {
	case interpreted(l):
		return scriptOwner(l.Lines[0].File)
	case !l.Named():
		return snapshot.NotNamed
	case l.Mapping == nil:
		return ""
	}
	f, ok := o.files[l.Mapping.Path]
	if !ok {
		f = fileOf(l)
		if o.files == nil || len(o.files) >= maxFiles {
			o.files = map[string]file{}
		}
		o.files[l.Mapping.Path] = f
	}
	return f.nativeOwner(l)
}

// fileOf returns the owner that the path of the file of l shows.
func fileOf(l *snapshot.Location) file {
	base := mappedFile(l)
	if interpreterFile(base) || matchAny(beneath, base) || bindings(l.Mapping.Path) {
		return file{beneath: true}
	}
	f := file{rest: application}
	if libraryFile(base) {
		f.rest = libraryName(base)
	}
	for i := range owners {
		if matchAny(owners[i].files, base) {
			f.owner = owners[i].name
			return f
		}
	}
	f.owner = packageOwner(l.Mapping.Path)
	return f
}

// Listed reports whether an owner is one of the table, the application or not known: there
// are so many of them, whatever runs.
func Listed(name string) bool {
	return name == "" || name == application || name == snapshot.NotNamed || slices.ContainsFunc(owners, func(o owner) bool { return o.name == name })
}

// nativeOwner returns the owner of a frame with an address, "" to look further
// up the stack.
//
// The prefix of a C function outranks the file: it is defined once, in its
// library, wherever that is linked into. A C++ namespace does not: its
// templates are compiled into whatever includes its headers, so that it counts
// only where the file has no owner.
func (f *file) nativeOwner(l *snapshot.Location) string {
	if f.beneath {
		return ""
	}
	if name := functionOwner(l, func(prefix string) bool { return !strings.Contains(prefix, "::") }); name != "" {
		return name
	}
	if f.owner != "" {
		return f.owner
	}
	return cmp.Or(functionOwner(l, func(string) bool { return true }), f.rest)
}

// functionOwner returns the owner of the innermost function of l that begins
// with one of the prefixes to use.
func functionOwner(l *snapshot.Location, use func(prefix string) bool) string {
	for _, line := range l.Lines {
		if line.Reason != "" {
			continue
		}
		for i := range owners {
			for _, prefix := range owners[i].functions {
				if use(prefix) && strings.HasPrefix(line.Function, prefix) {
					return owners[i].name
				}
			}
		}
	}
	return ""
}

func matchAny(patterns []string, base string) bool {
	for _, p := range patterns {
		if ok, _ := path.Match(p, base); ok {
			return true
		}
	}
	return false
}

// libraryName cuts version and suffix: libfoo.so.1.2 is libfoo.
func libraryName(base string) string {
	name, _, _ := strings.Cut(base, ".so")
	if name == "" {
		return base
	}
	return name
}

// packageOwner returns the owner of a file below site-packages, "" for others.
func packageOwner(file string) string {
	rest, ok := inPackages(file)
	if !ok {
		return ""
	}
	for i := range owners {
		for _, p := range owners[i].packages {
			if within(rest, strings.ReplaceAll(p, ".", "/")) {
				return owners[i].name
			}
		}
	}
	name, _, inside := strings.Cut(rest, "/")
	if !inside { // a module of its own: foo.py, foo.cpython-312-x86_64-linux-gnu.so
		name, _, _ = strings.Cut(name, ".")
	}
	return strings.TrimSuffix(name, ".libs")
}

// inPackages returns the part of a path below site-packages, or Debian's
// dist-packages.
func inPackages(file string) (string, bool) {
	for _, dir := range []string{"/site-packages/", "/dist-packages/"} {
		if i := strings.LastIndex(file, dir); i >= 0 {
			return file[i+len(dir):], true
		}
	}
	return "", false
}

// within reports whether a path is of the package in directory dir.
func within(file, dir string) bool {
	rest, ok := strings.CutPrefix(file, dir)
	return ok && (rest == "" || rest[0] == '/' || rest[0] == '.')
}

// bindings reports whether a file is of a Python package that only hands calls
// to CUDA: cuda-python, NVIDIA's.
func bindings(file string) bool {
	rest, ok := inPackages(file)
	return ok && (within(rest, "cuda") || within(rest, "pynvml"))
}

// scriptOwner returns the owner of a Python file, "" for the standard library
// and for frames of the interpreter itself such as "<frozen runpy>".
func scriptOwner(file string) string {
	if bindings(file) {
		return ""
	}
	if name := packageOwner(file); name != "" {
		return name
	}
	if strings.HasPrefix(file, "<frozen ") || standardLibrary(file) {
		return ""
	}
	return application
}

// standardLibrary reports whether a file is under lib/pythonX.Y.
func standardLibrary(file string) bool {
	for _, dir := range []string{"/lib/python", "/lib64/python"} {
		if i := strings.LastIndex(file, dir); i >= 0 {
			version, _, ok := strings.Cut(file[i+len(dir):], "/")
			return ok && version != "" && strings.Trim(version, "0123456789.t") == ""
		}
	}
	return false
}
