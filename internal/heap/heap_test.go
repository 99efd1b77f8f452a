package heap

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
)

// skip skips the test, but not where all that tests need is promised.
func skip(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// installed returns an interpreter of each minor version that is here. The environment's CPYTHONS says
// how many there are at least.
func installed(t testing.TB) map[int]string {
	t.Helper()
	found := map[int]string{}
	candidates := []string{"/usr/bin/python3"}
	if home, err := os.UserHomeDir(); err == nil {
		others, _ := filepath.Glob(filepath.Join(home, ".pyenv/versions/3.*/bin/python3"))
		candidates = append(candidates, others...)
	}
	for _, python := range candidates {
		out, err := exec.Command(python, "-c", "import sys, sysconfig; print(sys.version_info[1]); open(sysconfig.get_path('include') + '/Python.h')").Output()
		minor, nerr := strconv.Atoi(strings.TrimSpace(string(out)))
		if err == nil && nerr == nil && layouts[minor].minor == minor {
			found[minor] = python
		}
	}
	if len(found) == 0 {
		skip(t, "no CPython with its headers")
	}
	if wanted, _ := strconv.Atoi(os.Getenv("CPYTHONS")); len(found) < wanted {
		t.Fatalf("CPYTHONS asks for %d versions of CPython with their headers, and %d are here", wanted, len(found))
	}
	return found
}

// run runs a command, and returns what it printed.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, errs.String())
	}
	return strings.TrimSpace(string(out))
}

// A program is a Python program that waits.
type program struct {
	pid  int
	said struct {
		Objects  int
		Truth    map[string]truth
		Storages [][2]uint64
		Modules  map[string]holder.Module // by path
		Arrays   []struct {
			Path, DType string
			Bytes       uint64
			Shape       []int64
		}
	}
}

type truth struct {
	Address uint64
	Role    holder.Role
	Class   string `json:"klass"`
	Node    string
	Module  string
	Cycle   bool
	Device  int32
	Shape   []int64
	Bytes   uint64
}

// start starts a program, and waits until it has said what it holds.
func start(t testing.TB, python string, env []string, args ...string) *program {
	t.Helper()
	cmd := exec.Command(python, args...)
	cmd.Env = append(os.Environ(), env...)
	var errs strings.Builder
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	p := &program{pid: cmd.Process.Pid}
	line, err := bufio.NewReaderSize(out, 1<<20).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &p.said)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", python, err, errs.String())
	}
	return p
}

func read(t testing.TB, pid int, o Options) *holder.Reading {
	t.Helper()
	r, err := Read(context.Background(), pid, o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Refused != "" {
		t.Fatal(r.Refused)
	}
	for _, l := range r.Loss {
		// The program frees what it printed when it has printed it.
		if l.Value != 0 && l.Name != "heap_objects_gone" {
			t.Errorf("%s: %d", l.Name, l.Value)
		}
	}
	return r
}

// check holds a reading against what a program said.
func (p *program) check(t *testing.T, r *holder.Reading) {
	t.Helper()
	if n := int(r.Objects); n < p.said.Objects-50 || n > p.said.Objects+p.said.Objects/20+50 {
		t.Errorf("%d objects, the program counts %d", n, p.said.Objects)
	}
	for path, want := range p.said.Truth {
		i := slices.IndexFunc(r.Storages, func(s holder.Storage) bool { return s.Address == want.Address })
		if i < 0 {
			t.Errorf("%s at %#x was not found", path, want.Address)
			continue
		}
		s := &r.Storages[i]
		if s.Holder != strings.TrimSpace(path) { // one path may be to several
			t.Errorf("%s, want %s; more %q", s.Holder, path, s.More)
		}
		if s.Role != want.Role || want.Class != "" && s.Class != want.Class || want.Node != "" && s.Node != want.Node || s.Cycle != want.Cycle || s.Module != want.Module ||
			want.Shape != nil && !slices.Equal(s.Shape, want.Shape) || want.Device != 0 && s.Device != want.Device || s.Device < 0 && s.Device != -1 ||
			want.Bytes != 0 && s.Bytes != want.Bytes || s.DType != "float32" {
			t.Errorf("%s: %+v, want %+v", path, *s, want)
		}
	}
}

// checkModules holds the modules of a reading against those that a program has.
func (p *program) checkModules(t *testing.T, r *holder.Reading) {
	t.Helper()
	got := map[string]holder.Module{}
	for _, m := range r.Modules {
		got[m.Path] = m
	}
	if len(p.said.Modules) == 0 || len(got) != len(r.Modules) || !maps.Equal(got, p.said.Modules) {
		t.Errorf("modules %v, want %v", got, p.said.Modules)
	}
}

// buildModule builds an extension module of a file, and returns its folder.
func buildModule(t testing.TB, python, name string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	run(t, "gcc", append(flags, "-O1", "-w", "-shared", "-fPIC", "-I", run(t, python, "-c", "import sysconfig; print(sysconfig.get_path('include'))"),
		"-o", filepath.Join(dir, name+".so"), "testdata/"+name+".c")...)
	return dir
}

// buildStandin builds what stands in for PyTorch 2.11.
func buildStandin(t testing.TB, python string) string { return buildModule(t, python, "standin") }

func TestHolders(t *testing.T) {
	for minor, python := range installed(t) {
		for layout, flag := range map[string]string{"2.11": "-DNEW", "1.13": "-DOLD"} {
			t.Run(fmt.Sprintf("CPython 3.%d, PyTorch %s", minor, layout), func(t *testing.T) {
				p := start(t, python, []string{"PYTHONPATH=" + buildModule(t, python, "standin", flag)}, "testdata/holders.py")
				r := read(t, p.pid, Options{Keys: AllKeys, CPU: true})
				p.check(t, r)
				p.checkModules(t, r)
				for _, s := range read(t, p.pid, Options{Keys: NoKeys, CPU: true}).Storages {
					if strings.Contains(s.Holder+strings.Join(s.More, " ")+s.Module, "secret") {
						t.Errorf("without keys: %q, more %q", s.Holder, s.More)
					}
				}
				if want := fmt.Sprintf("CPython 3.%d", minor); r.Runtime != want || r.Framework != "PyTorch" {
					t.Errorf("%s, %s", r.Runtime, r.Framework)
				}
			})
		}
	}
}

// What a reducer's memory has belongs to the module that has the reducer.
func TestReducer(t *testing.T) {
	for minor, python := range installed(t) {
		t.Run(fmt.Sprintf("CPython 3.%d", minor), func(t *testing.T) {
			p := start(t, python, []string{"PYTHONPATH=" + buildStandin(t, python) + ":" + buildWords(t, python)}, "testdata/ddp_holders.py")
			r := read(t, p.pid, Options{})
			for path, want := range p.said.Truth {
				i := slices.IndexFunc(r.Storages, func(s holder.Storage) bool { return s.Address == want.Address })
				if i < 0 || r.Storages[i].Holder != strings.TrimSpace(path) || r.Storages[i].Role != want.Role {
					t.Errorf("%q was not found as that: %+v", path, r.Storages)
				}
			}
			if len(r.Storages) != len(p.said.Truth) {
				t.Errorf("%d storages, want %d", len(r.Storages), len(p.said.Truth))
			}
		})
	}
}
