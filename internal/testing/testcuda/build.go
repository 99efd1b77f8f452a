package testcuda

import (
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

//go:embed src
var sources embed.FS

// compiler is gcc or $TESTCUDA_CC, which may be of another machine.
var compiler = cmp.Or(os.Getenv("TESTCUDA_CC"), "gcc")

var (
	framePointers   = []string{"-fno-omit-frame-pointer"}
	noFramePointers = []string{"-fomit-frame-pointer"}

	// Identical functions stay apart (-fno-ipa-icf) and calls between exported
	// ones stay inside the library (-Bsymbolic): a probe must see what a
	// program called, no more.
	library = []string{
		"-fPIC", "-shared", "-fvisibility=hidden", "-fno-ipa-icf",
		"-ftls-model=initial-exec", "-Wl,-Bsymbolic", "-Wl,-rpath,$ORIGIN",
	}
	// The kernel driver's calls go through a lazy stub, as they do in NVIDIA's.
	libcuda   = append(slices.Clone(library), "-Wl,-soname,libcuda.so.1", "-fplt", "-fcf-protection=none", "-Wl,-z,lazy", "-Wl,-rpath,$ORIGIN/..")
	libtestrm = append(slices.Clone(library), "-Wl,-soname,libtestrm.so", "-Wl,--version-script,src/rm.map")
	libcudart = append(slices.Clone(library), "-Wl,-soname,libcudart.so.13")

	kernelDriver = []string{"src/rm.c", "src/rm_objects.c"}
	oldFamilies  = []string{"src/stats.c", "src/device.c", "src/block.c", "src/ctx.c", "src/mem.c", "src/array.c", "src/ipc.c", "src/graph.c",
		"src/kernel.c", "src/backing.c", "src/footprint.c", "src/module.c", "src/stream.c"}
	families = append(slices.Clone(oldFamilies), "src/vmm.c", "src/sparse.c", "src/pool.c", "src/capture.c", "src/proc.c")
	workload = []string{"src/workload.c", "src/script.c", "src/requests.c", "src/tensor.c", "src/ops.c", "src/args.c", "src/rows.c"}

	rpath      = []string{"-Wl,-rpath,$ORIGIN"}
	linkKernel = []string{"libtestrm.so"}
	linkShared = append([]string{"libcudart.so.13", "-Wl,--no-as-needed", "libcuda.so.1"}, rpath...)
	linkStatic = append([]string{"libcudart_static.a"}, rpath...)
	linkCUDA   = append([]string{"libcuda.so.1"}, rpath...)
	// Every call stays a call (-fno-optimize-sibling-calls), whose caller is in
	// the stack.
	commonCFlags = []string{"-std=gnu11", "-O2", "-fno-optimize-sibling-calls", "-g", "-pthread", "-Wl,--build-id"}
)

// A step is one command of the build, in words of the compiler's arguments.
type step struct {
	out  string
	args [][]string
}

// steps in groups: those of one group need only earlier ones.
var steps = [][]step{{
	{"libtestrm.so", [][]string{framePointers, libtestrm, kernelDriver}},
	{"libc10.so", [][]string{framePointers, library, {"src/c10.c"}}},
	{"libc10_cuda.so", [][]string{framePointers, library, {"src/c10_cuda.c"}}},
}, {
	{"libcuda.so.1", [][]string{framePointers, libcuda, families, linkKernel}},
	{"nofp/libcuda.so.1", [][]string{noFramePointers, libcuda, families, linkKernel}},
	{"old/libcuda.so.1", [][]string{framePointers, libcuda, {"-DTESTCUDA_OLD"}, oldFamilies, linkKernel}},
	{"libcudart.so.13", [][]string{framePointers, libcudart, {"src/cudart.c"}}},
	{"nofp/libcudart.so.13", [][]string{noFramePointers, libcudart, {"src/cudart.c"}}},
	{"cudart.o", [][]string{framePointers, {"-c", "src/cudart.c"}}},
	{string(WorkloadLate), [][]string{framePointers, {"-DLATE"}, workload, rpath}},
}, {
	{"libcudart_static.a", nil},
	{string(Workload), [][]string{framePointers, workload, linkShared}},
	{string(WorkloadNoFP), [][]string{noFramePointers, workload, linkShared}},
	{string(Train), [][]string{framePointers, {"src/train.c"}, linkShared}},
	{string(Hammer), [][]string{framePointers, {"src/hammer.c"}, linkCUDA}},
}, {
	{string(WorkloadStatic), [][]string{framePointers, workload, linkStatic}},
	{string(WorkloadStripped), [][]string{framePointers, {"-s"}, workload, linkStatic}},
}}

// Build makes the kit in a folder of dir named after its sources, the compiler
// and the flags, and returns at once when that folder is there. Any number of
// processes may build at the same time.
func Build(dir string) (*Kit, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	key, err := fingerprint()
	if err != nil {
		return nil, fmt.Errorf("fingerprint the stand-in's build: %w", err)
	}
	final := filepath.Join(dir, key)
	kit := kitIn(final)
	if _, err := os.Stat(final); err == nil {
		return kit, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	// Beside the final folder, to be renamed into it when complete.
	temp, err := os.MkdirTemp(dir, "building-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(temp)
	if err := buildIn(temp); err != nil {
		return nil, fmt.Errorf("build the stand-in: %w", err)
	}
	if err := os.Rename(temp, final); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return kit, nil
}

// Copy returns a copy of the kit in a folder of dir, for users who cannot read the kit.
func (k *Kit) Copy(dir string) (*Kit, error) {
	to := filepath.Join(dir, "kit")
	if err := os.CopyFS(to, os.DirFS(k.Dir)); err != nil {
		return nil, fmt.Errorf("copy the stand-in: %w", err)
	}
	return kitIn(to), nil
}

func kitIn(dir string) *Kit {
	return &Kit{
		Dir:        dir,
		LibCUDA:    filepath.Join(dir, "libcuda.so.1"),
		LibCUDAOld: filepath.Join(dir, "old/libcuda.so.1"),
		LibCUDART:  filepath.Join(dir, "libcudart.so.13"),
	}
}

func fingerprint() (string, error) {
	version, err := exec.Command(compiler, "--version").Output()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%q\n%q\n", version, commonCFlags, steps)
	err = fs.WalkDir(sources, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := sources.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n%s", path, len(text), text)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)[:8]), err
}

func buildIn(dir string) error {
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if err := os.CopyFS(dir, sources); err != nil {
		return err
	}
	for _, sub := range []Libs{LibsNoFP, LibsOld} {
		if err := os.Mkdir(filepath.Join(dir, string(sub)), 0o755); err != nil {
			return err
		}
	}
	for _, group := range steps {
		if err := runAll(dir, group); err != nil {
			return err
		}
	}
	return nil
}

func runAll(dir string, group []step) error {
	errs := make([]error, len(group))
	slots := make(chan struct{}, runtime.NumCPU())
	var wg sync.WaitGroup
	for i, s := range group {
		wg.Go(func() {
			slots <- struct{}{}
			errs[i] = s.run(dir)
			<-slots
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s step) run(dir string) error {
	name, args := compiler, slices.Concat(append([][]string{commonCFlags, {"-o", s.out}}, s.args...)...)
	if s.args == nil {
		name, args = strings.TrimSuffix(compiler, "gcc")+"ar", []string{"rcs", s.out, "cudart.o"}
	}
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}
