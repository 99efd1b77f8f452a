package state

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// stack tells one of frames: "file function", or "file" for one without a name.
func stack(s *State, id uint64, frames ...string) {
	st := &record.Stack{ID: id, Process: prog}
	for i, frame := range frames {
		file, function, named := strings.Cut(frame, " ")
		l := &snapshot.Location{Address: id<<8 + uint64(i), Lines: []snapshot.Line{{Function: function}}}
		if !named {
			l.Lines[0] = snapshot.Line{Function: "[" + file + "]", Reason: "stripped"}
		}
		if file != "" {
			l.Mapping = &snapshot.Mapping{Path: file}
		}
		st.Frames = append(st.Frames, record.NewPlace(id<<8+uint64(i), l.Address, l, nil))
	}
	s.Apply(st)
}

// TestCauses: where no probed function tells what memory is for, libcuda's function
// that was called from elsewhere does. libcuda's own frames are not shown.
func TestCauses(t *testing.T) {
	const anonymous = ""
	for _, tt := range []struct {
		name     string
		function string // probed
		frames   []string
		want     string
	}{
		{"a function of libcuda's", "", []string{libcuda, libcuda, libcuda + " cuStreamCreate", "/prog main"}, "[stream] cuStreamCreate main"},
		{"inner names are not the cause", "", []string{libcuda + " cuMemAlloc_v2", libcuda + " cuGraphLaunch", "/prog main"}, "[graph] cuGraphLaunch main"},
		{"a function for graphics", "", []string{libcuda + " cuGraphicsMapResources", "/prog main"}, "[graphics] cuGraphicsMapResources main"},
		{"a context for graphics", "", []string{libcuda + " cuGLCtxCreate_v2", "/prog main"}, "[context] cuGLCtxCreate_v2 main"},
		{"another copy of it, in a folder of its own", "", []string{"/a/libcuda.so.1", "/b/libcuda.so.1 cuModuleLoadData", "/prog main"}, "[code] cuModuleLoadData main"},
		{"called back, and called again", "", []string{libcuda + " cuStreamCreate", "/prog callback", libcuda + " cuLaunchHostFunc", "/prog main"}, "[stream] cuStreamCreate callback [libcuda] main"},
		{"a probed function tells first", "cuEventCreate", []string{libcuda + " cuStreamCreate", "/prog main"}, "[event] cuEventCreate main"},
		{"called where it has no name", "", []string{libcuda + " cuInit", libcuda, "/usr/lib/libcudart.so cudaSetDevice", "/prog main"}, "[other] cudaSetDevice main"},
		{"called by video, by an address", "", []string{libcuda, "/usr/lib/libnvcuvid.so.1", "/usr/lib/libnvcuvid.so.1", "/prog main"}, "[video] libnvcuvid main"},
		{"called by video, by its name", "", []string{libcuda, libcuda + " cuModuleLoadData", "/usr/lib/libnvcuvid.so.1", "/prog main"}, "[code] cuModuleLoadData [/usr/lib/libnvcuvid.so.1] main"},
		{"OpenCL, without libcuda", "", []string{"/usr/lib/libnvidia-opencl.so.1", "/usr/lib/libOpenCL.so clCreateBuffer", "/prog main"}, "[opencl] libnvidia-opencl clCreateBuffer main"},
		{"no names at all", "", []string{libcuda, libcuda, "/prog"}, "[cause not known] [" + libcuda + "] [" + libcuda + "] [/prog]"},
		{"nothing but libcuda", "", []string{libcuda, libcuda + " cuStreamCreate"}, "[stream] cuStreamCreate"},
		{"code in no file", "", []string{anonymous + " jitted", "/prog main"}, "[cause not known] jitted main"},
		{"no frames", "", nil, "[cause not known]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := watched()
			stack(s, 5, tt.frames...)
			opened(s, prog, 6).takes(10, tt.function, 2*mib, 5)
			want := strings.ReplaceAll(tt.want, "[libcuda]", "cuLaunchHostFunc")
			expect(t, "samples", map[string][2]int64{want: {2 * mib, 2 * mib}}, stacksOf(driven(s)))
		})
	}
}

// TestFrameWithoutLines: a recording may hold one.
func TestFrameWithoutLines(t *testing.T) {
	s := watched()
	place := record.NewPlace(1, 1, &snapshot.Location{Mapping: &snapshot.Mapping{Path: libcuda}}, nil)
	s.Apply(&record.Stack{ID: 5, Process: prog, Frames: []*record.Place{place}})
	opened(s, prog, 6).takes(10, "", 2*mib, 5)
	if n := len(driven(s).Samples); n != 1 {
		t.Errorf("%d samples, want 1", n)
	}
}

// TestMerged: memory that one call of the program brought is one sample, whatever
// went on inside libcuda.
func TestMerged(t *testing.T) {
	s := watched()
	other := event.Process{PID: 18, Start: event.StartUnit}
	s.Apply(&record.Process{Process: other, Target: true, Name: "other", FromStart: true})
	program := &snapshot.Mapping{Path: "/prog"}
	driver := &snapshot.Mapping{Path: libcuda}
	place := func(id uint64, m *snapshot.Mapping, function string) *record.Place {
		return record.NewPlace(id, id, &snapshot.Location{Address: id, Mapping: m, Lines: []snapshot.Line{{Function: function}}}, nil)
	}
	retain, main, again := place(1, driver, "cuDevicePrimaryCtxRetain"), place(2, program, "main"), place(3, program, "main")
	for i := range uint64(17) {
		s.Apply(&record.Stack{ID: 100 + i, Process: prog, Frames: []*record.Place{place(100+i, driver, fmt.Sprint("inner", i)), retain, main}})
	}
	s.Apply(&record.Stack{ID: 200, Process: prog, Frames: []*record.Place{retain, again}})
	k, second := opened(s, prog, 6), opened(s, prog, 7)
	for i := range uint64(17) {
		k.takes(10+i, "", 2*mib, 100+i)
	}
	k.takes(40, "", 3*mib, 200)                         // from another address of main
	k.takes(41, "cuStreamCreate", 5*mib, 100)           // for something else
	second.takes(42, "", 7*mib, 100)                    // on another GPU
	opened(s, other, 6).takes(43, "", 11*mib, 101)      // of another process
	k.takes(44, "cuDevicePrimaryCtxRetain", 2*mib, 101) // the same, seen otherwise
	s.Apply(held(50, 0))
	moment(s, 51)
	type face struct{ kind, api, gpu, process string }
	got := map[face][]int64{}
	snap := driven(s)
	for i := range snap.Samples {
		x := &snap.Samples[i]
		if x.Stack[0].Lines[0].Function != LineRounding {
			f := face{x.Kind, x.API, x.GPU, x.Process}
			got[f] = append(got[f], x.InuseBytes)
			if x.AllocBytes != x.InuseBytes || x.InuseObjects != x.AllocObjects {
				t.Errorf("%+v", x.Values)
			}
		}
	}
	const api = "cuDevicePrimaryCtxRetain"
	expect(t, "samples", map[face][]int64{
		{"context", api, "3", "prog"}:             {36 * mib, 3 * mib},
		{"stream", "cuStreamCreate", "3", "prog"}: {5 * mib},
		{"context", api, "unknown", "prog"}:       {7 * mib},
		{"context", api, "3", "other"}:            {11 * mib},
	}, got)
}
