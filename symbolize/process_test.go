package symbolize

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// buildWithLibrary compiles shapes.cc against testdata/library.c as a shared
// object with hidden functions.
func buildWithLibrary(t testing.TB, flags ...string) (exe, lib string) {
	t.Helper()
	dir := t.TempDir()
	exe, lib = filepath.Join(dir, "shapes"), filepath.Join(dir, "libshapes.so.1")
	command(t, "gcc", append([]string{"-O2", "-fPIC", "-shared", "testdata/library.c", "-o", lib}, flags...)...)
	command(t, "g++", "-O2", "-std=c++17", "-DLIBRARY", "testdata/shapes.cc", lib, "-o", exe, "-Wl,-rpath,"+dir)
	return exe, lib
}

func TestSharedLibrary(t *testing.T) {
	for _, c := range []struct {
		name, flag, library, hidden string
	}{
		{"with symbols", "-g0", "library_return_address", "hidden_caller"},
		{"with lines", "-g", "library_return_address", "hidden_caller"},
		{"stripped", "-s", "library_return_address", "libshapes.so.1+0x"},
	} {
		t.Run(c.name, func(t *testing.T) {
			exe, lib := buildWithLibrary(t, c.flag)
			tg := start(t, exe)
			s := newSymbolizer(t, Config{})
			l := s.Resolve(s.Locate(tg.pid, tg.at["library"], Return))
			if got := names(l); got != c.library {
				t.Errorf("got %s, want %s", got, c.library)
			}
			if l.Mapping.Path != lib || l.Mapping.BuildID == "" {
				t.Errorf("mapping %+v", l.Mapping)
			}
			hidden := s.Locate(tg.pid, tg.at["hidden"], Return)
			first := s.Resolve(hidden)
			if got := names(first); !strings.HasPrefix(got, c.hidden) || !hidden.Final(first) {
				t.Errorf("got %s, want %s", got, c.hidden)
			}
			before := reasonCount(t, s, "unnamed_no_symbol")
			s.Retry(hidden, first)
			if after := reasonCount(t, s, "unnamed_no_symbol"); after != before {
				t.Errorf("one address counted twice: %d, then %d", before, after)
			}
			if c.flag == "-s" && before != 1 {
				t.Errorf("%d addresses without a symbol, want 1", before)
			}
		})
	}
}

// A library that was replaced or removed on disk is still the one that the
// process runs.
func TestDeletedLibrary(t *testing.T) {
	for _, replace := range []bool{false, true} {
		t.Run(fmt.Sprintf("replaced %v", replace), func(t *testing.T) {
			exe, lib := buildWithLibrary(t)
			tg := start(t, exe)
			if err := os.Remove(lib); err != nil {
				t.Fatal(err)
			}
			if replace {
				command(t, "gcc", "-shared", "-xc", "/dev/null", "-o", lib)
			}
			s := newSymbolizer(t, Config{})
			l := s.Resolve(s.Locate(tg.pid, tg.at["hidden"], Return))
			if got := names(l); got != "hidden_caller" {
				t.Errorf("got %s, want hidden_caller", got)
			}
			if l.Mapping.Path != lib {
				t.Errorf("path %q, want %q", l.Mapping.Path, lib)
			}
		})
	}
}

func TestProcessEndsBeforeResolve(t *testing.T) {
	exe, lib := buildWithLibrary(t, "-g")
	tg := start(t, exe)
	s := newSymbolizer(t, Config{})
	a := s.Locate(tg.pid, tg.at["hidden"], Return)
	unlocated := tg.at["main"]
	tg.stop()
	os.Remove(lib)
	s.Forget(tg.pid)
	if got := names(s.Resolve(a)); got != "hidden_caller" {
		t.Errorf("got %s, want hidden_caller", got)
	}
	l := s.Resolve(s.Locate(tg.pid, unlocated, Exact))
	if got, want := names(l), "[unknown] ("+processGone.String()+")"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if n := reasonCount(t, s, "unnamed_process_gone"); n != 1 {
		t.Errorf("%d addresses of a process gone, want 1", n)
	}
}

func TestNoMapping(t *testing.T) {
	s := newSymbolizer(t, Config{})
	l := s.Resolve(s.Locate(uint32(os.Getpid()), 0x10, Exact))
	if got, want := names(l), "[unknown] ("+noMapping.String()+")"; got != want || l.Mapping != nil {
		t.Errorf("got %s in %v, want %s", got, l.Mapping, want)
	}
}

// A storm of addresses without a mapping does not make us read the mappings
// each time.
func TestMapsAreReadAtALimitedRate(t *testing.T) {
	s := newSymbolizer(t, Config{})
	const n = 200_000
	start := time.Now()
	for i := range n {
		s.Locate(uint32(os.Getpid()), uint64(i), Exact)
	}
	if reasonCount(t, s, "symbolize_stale_maps") == 0 {
		t.Errorf("the mappings were read %d times in %v", n, time.Since(start))
	}
}

func TestOpenFilesAreBounded(t *testing.T) {
	exe, _ := buildWithLibrary(t)
	tg := start(t, exe)
	s := newSymbolizer(t, Config{maxFiles: 1})
	first := s.Locate(tg.pid, tg.at["hidden"], Return)
	second := s.Locate(tg.pid, tg.at["main"], Exact)
	if got := names(s.Resolve(second)); got != "main" {
		t.Errorf("got %s, want main", got)
	}
	if l := s.Resolve(first); l.Lines[0].Reason != fileClosed.String() {
		t.Errorf("got %s, want that the file was closed", names(l))
	}
	if n := reasonCount(t, s, "symbolize_files_closed"); n != 1 {
		t.Errorf("%d files closed, want 1", n)
	}
	// It is opened again when it is seen again.
	if got := names(s.Resolve(s.Locate(tg.pid, tg.at["hidden"], Return))); got != "hidden_caller" {
		t.Errorf("got %s, want hidden_caller", got)
	}
}

func TestIndexMemoryIsBounded(t *testing.T) {
	exe, _ := buildWithLibrary(t)
	tg := start(t, exe)
	s := newSymbolizer(t, Config{maxIndex: 1})
	for range 3 {
		for place, want := range map[string]string{"hidden": "hidden_caller", "library": "library_return_address"} {
			if got := names(s.Resolve(s.Locate(tg.pid, tg.at[place], Return))); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		if got := names(s.Resolve(s.Locate(tg.pid, tg.at["main"], Exact))); got != "main" {
			t.Errorf("got %s, want main", got)
		}
		if n := s.indexes.costs.Len(); n != 1 {
			t.Errorf("%d indexes kept, want 1", n)
		}
	}
}

// Indexes that nobody uses are dropped, and made again when they are wanted.
func TestIndexesRest(t *testing.T) {
	exe, _ := buildWithLibrary(t)
	tg := start(t, exe)
	s := newSymbolizer(t, Config{})
	for range 2 {
		if got := names(s.Resolve(s.Locate(tg.pid, tg.at["main"], Exact))); got != "main" {
			t.Errorf("got %s, want main", got)
		}
		if x := s.indexes; x.costs.Len() != 1 || x.total == 0 || x.took == 0 {
			t.Errorf("%d indexes of %d bytes, made in %v", x.costs.Len(), x.total, x.took)
		}
		s.indexes.unloadAll()
		if x := s.indexes; x.costs.Len() != 0 || x.total != 0 || x.took != 0 {
			t.Errorf("%d indexes of %d bytes, made in %v, are kept", x.costs.Len(), x.total, x.took)
		}
	}
}

// Debug information over the limit costs the lines, not the names.
func TestDebugInformationIsBounded(t *testing.T) {
	tg := start(t, buildShapes(t, "-g"))
	s := newSymbolizer(t, Config{maxDebug: 1000})
	l := s.Resolve(s.Locate(tg.pid, tg.at["inlines"], Return))
	if got := names(l); got != "outer" || l.Lines[0].Line != 0 || l.Mapping.HasLines {
		t.Errorf("got %s at %s", got, sources(l))
	}
	if n := reasonCount(t, s, "symbolize_debug_too_large"); n != 1 {
		t.Errorf("%d files with too much debug information, want 1", n)
	}
}

func TestConcurrentUse(t *testing.T) {
	exe, _ := buildWithLibrary(t, "-g")
	tg := start(t, exe)
	s := newSymbolizer(t, Config{maxFiles: 1, maxIndex: 1})
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 300 {
				place := []string{"hidden", "library", "inlines", "template"}[(w+i)%4]
				l := s.Resolve(s.Locate(tg.pid, tg.at[place], Return))
				if l.Address != tg.at[place] || len(l.Lines) == 0 {
					t.Errorf("%s: got %+v", place, l)
				}
				_ = l.Mapping.HasLines
				switch i % 50 {
				case 10:
					s.Invalidate(tg.pid)
				case 20:
					s.Forget(tg.pid)
				}
				s.Loss()
			}
		})
	}
	wg.Wait()
}

// Once its first thread has ended, /proc/PID shows a process without mappings;
// its other threads still have them.
func TestFirstThreadEnded(t *testing.T) {
	exe := filepath.Join(t.TempDir(), "leaderless")
	command(t, "gcc", "-O1", "testdata/leaderless.c", "-o", exe, "-pthread")
	tg := start(t, exe)
	s := newSymbolizer(t, Config{})
	for deadline := time.Now().Add(5 * time.Minute); ; {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", tg.pid)); err == nil && len(b) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the first thread does not end")
		}
		time.Sleep(time.Millisecond)
	}
	if got := names(s.Resolve(s.Locate(tg.pid, tg.at["main"], Exact))); got != "main" {
		t.Errorf("got %s, want main", got)
	}
}

// A file that does not answer keeps the names of others waiting for a moment
// only, and gives its own when it does.
func TestFileThatHangs(t *testing.T) {
	exe, _ := buildWithLibrary(t, "-g0")
	tg := start(t, exe)
	s := newSymbolizer(t, Config{readPatience: 100 * time.Millisecond})
	a := s.Locate(tg.pid, tg.at["library"], Return)
	im := a.region.image
	im.mu.Lock() // as a reading does that does not end
	began := time.Now()
	for range 6000 { // ten minutes, if each waited
		if l := s.Resolve(a); l.Lines[0].Reason != fileSlow.String() {
			t.Fatalf("got %s", names(l))
		}
	}
	if took := time.Since(began); took > 5*time.Minute {
		t.Errorf("took %v", took)
	}
	im.mu.Unlock()
	for end := time.Now().Add(5 * time.Minute); names(s.Resolve(a)) != "library_return_address"; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("got %s", names(s.Resolve(a)))
		}
	}
}

// Who tells of new mappings does not wait for a file of the process that never
// answers.
func TestInvalidateWaitsForNothing(t *testing.T) {
	s := newSymbolizer(t, Config{})
	pid := uint32(os.Getpid())
	s.Locate(pid, 0, Exact)
	p, _ := s.processes.Get(pid)
	p.mu.Lock() // as Locate does while it opens files
	defer p.mu.Unlock()
	told := make(chan struct{})
	go func() {
		defer close(told)
		s.Invalidate(pid)
		s.Forget(pid)
	}()
	select {
	case <-told:
	case <-time.After(5 * time.Minute):
		t.Error("it waits for the process's files")
	}
}
