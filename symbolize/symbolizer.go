// Package symbolize names the functions at addresses of other processes, or
// says why an address has no name.
//
// It works in two steps, because a process may have ended when an output needs its
// names. Locate is cheap and runs when a stack is first seen: it finds the mapping and
// leaves the mapped file open. Resolve reads symbols and debug information later.
//
// Process mappings and the files in them are hostile input: everything read
// from them is bounded. Names are as the files have them: outputs escape them.
package symbolize

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/lru"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

type (
	// A Location is an address, with the functions there. pprofout takes it as a frame.
	Location = snapshot.Location
	// A Line is a function of a Location.
	Line = snapshot.Line
	// A Mapping is the file that a Location is in.
	Mapping = snapshot.Mapping
	// A Counter says how often something was lost.
	Counter = loss.Counter
)

// Config says where debug files are.
type Config struct {
	// DebuginfodURLs are servers to ask for debug files. Asking sends them the
	// build ids of the traced programs.
	DebuginfodURLs []string

	// The rest is for tests: a zero field means its default.

	debugDirs         []string      // of split debug files, looked up in the process's root and in ours
	debuginfodCache   string        // a directory
	debuginfodMaxFile int64         // bytes
	readPatience      time.Duration // for the symbols of one file, with debuginfod's time

	maxFiles int    // open mapped files, each perhaps with its debug file, and as many perf-PID.map
	maxDebug uint64 // bytes of one file's debug information, uncompressed
	maxIndex int64  // bytes of all indexes and debug information in memory
}

// ConfigFromEnv returns the default configuration with the debuginfod servers
// that DEBUGINFOD_URLS names (debuginfod(8)).
func ConfigFromEnv() Config {
	return Config{DebuginfodURLs: strings.Fields(os.Getenv("DEBUGINFOD_URLS"))}
}

func (c Config) withDefaults() Config {
	def(&c.debuginfodMaxFile, 1<<30)
	def(&c.readPatience, time.Minute)
	def(&c.maxFiles, 512)
	def(&c.maxDebug, 256<<20)
	def(&c.maxIndex, 384<<20)
	if c.debugDirs == nil {
		c.debugDirs = []string{"/usr/lib/debug"}
	}
	if c.debuginfodCache == "" {
		if dir, err := os.UserCacheDir(); err == nil {
			c.debuginfodCache = filepath.Join(dir, "gpumemtrace", "debuginfod")
		}
	}
	return c
}

func def[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// A Lookup says what a captured address is.
type Lookup uint8

const (
	// Exact is an instruction's address: the leaf of a stack that was captured at
	// a function's entry, or a frame that a signal interrupted.
	Exact Lookup = iota
	// Return is a return address: the call is just before it, and may be the
	// last instruction of its function. The names are those of the address
	// before.
	Return
)

// An Address is the result of Locate. It is comparable, and stays valid when its process
// has ended.
type Address struct {
	pc     uint64
	lookup Lookup
	reason reason
	region *region // nil if reason says why there is none
}

// PC returns the address as captured.
func (a Address) PC() uint64 { return a.pc }

// offset returns the place in the mapped file, 0 if there is none.
func (a Address) offset() uint64 {
	if a.region == nil {
		return 0
	}
	return a.pc - a.region.Start + a.region.Offset
}

// mapped returns the mapping around the address, nil if there is none or it has no
// file. Addresses in one mapping of a process share it. The first Resolve of an address
// in it sets HasLines: do not read it before.
func (a Address) mapped() *snapshot.Mapping {
	if a.region == nil || a.region.mapping == nil {
		return nil
	}
	return &a.region.mapping.Mapping
}

// A Symbolizer names addresses. It is safe for concurrent use; Locate does not
// wait for a Resolve.
type Symbolizer struct {
	cfg        Config
	loss       *loss.Set
	debuginfod *debuginfod

	mu        sync.Mutex // guards processes
	processes *lru.Cache[uint32, *process]

	files *files

	indexes *indexes
	slow    atomic.Int64 // calls of resolve that exceeded the time limit and still run
}

// maxProcesses bounds the processes whose mappings are remembered.
const maxProcesses = 4096

// New returns a Symbolizer. Close it to close the files that it holds.
func New(cfg Config) *Symbolizer {
	s := &Symbolizer{cfg: cfg.withDefaults(), loss: loss.New(causes)}
	s.processes = lru.New[uint32, *process](maxProcesses, nil)
	s.files = newFiles(s.cfg.maxFiles, s.loss)
	s.indexes = newIndexes(s.cfg.maxIndex)
	s.debuginfod = newDebuginfod(s.cfg, s.loss)
	return s
}

// Close closes all files. Addresses that are not resolved by then stay without a name.
func (s *Symbolizer) Close() {
	s.mu.Lock()
	s.processes.Purge()
	s.mu.Unlock()
	s.files.close()
	s.indexes.rest.Stop()
}

// Locate finds the mapping of an address of the process pid, as the tracer's
// procfs numbers it, and holds what Resolve needs. Any failure is in the
// result.
func (s *Symbolizer) Locate(pid uint32, addr uint64, lookup Lookup) Address {
	s.mu.Lock()
	p, ok := s.processes.Get(pid)
	if !ok {
		p = &process{s: s, pid: pid, allowance: mapsAllowance, last: time.Now()}
		s.processes.Add(pid, p)
	}
	s.mu.Unlock()
	return p.locate(addr, lookup)
}

// Invalidate says that the process has new mappings. It does not block.
func (s *Symbolizer) Invalidate(pid uint32) {
	s.mu.Lock()
	p, ok := s.processes.Get(pid)
	s.mu.Unlock()
	if ok {
		p.changed.Store(true)
	}
}

// Forget says that the process ended or replaced its image. Addresses located
// before stay valid. It does not block.
func (s *Symbolizer) Forget(pid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes.Remove(pid)
}

// Loss returns the counters of what has no name or no source line, by reason.
// An address counts each time that Resolve is asked for it.
func (s *Symbolizer) Loss() []loss.Counter { return s.loss.Counters() }

// unnamed counts an address without a name, unless why is none.
func (s *Symbolizer) unnamed(why reason) {
	if why != none {
		s.loss.Add(int(why)-1, 1)
	}
}
