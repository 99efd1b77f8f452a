package unwind

import (
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/filememo"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// wheels are folders below Python's packages. A program may load their libraries at any
// time.
var wheels = []string{
	"torch/lib", "nvidia/*/lib", "triton/_C", "jaxlib", "jaxlib/cuda", "jax_plugins/*", "jax_cuda12_plugin", "jax_cuda13_plugin",
}

// Limits on the folders and libraries that are read: a process may make any number.
const (
	maxWaitingPackages = 64
	maxKnownPackages   = 4096
	maxSubfolders      = 256
	maxLibraries       = 1024 // of one folder
)

// restPerWork is how long an analysis ahead pauses, as a multiple of the time that it
// works: nobody waits for it. A low priority of its thread would delay the reader of
// events, because Go's collector waits for every thread.
const (
	restPerWork = 4
	longestRest = 100 * time.Millisecond
)

// ahead analyses libraries before processes load them, and stores their tables. It has one
// goroutine, which analyses one library at a time.
type ahead struct {
	memo    *filememo.Memo
	wanted  chan packages
	dropped atomic.Uint64 // packages that found no room

	mu   sync.Mutex
	seen map[packagesKey]bool
}

// packages are a folder of Python packages, as a process sees it.
type packages struct {
	pid    int
	folder string
	mapped map[proc.FileID]bool // files that have a table already
}

type packagesKey struct {
	root   proc.FileID
	folder string
}

func newAhead(memo *filememo.Memo) *ahead {
	return &ahead{memo: memo, wanted: make(chan packages, maxWaitingPackages), seen: make(map[packagesKey]bool)}
}

// packagesOf returns the folder of Python packages that contains a library of a wheel, ""
// for any other file.
func packagesOf(library string) string {
	for _, folder := range []string{"/site-packages/", "/dist-packages/"} {
		base, rest, found := strings.Cut(library, folder)
		name, _, _ := strings.Cut(rest, "/")
		if found && slices.ContainsFunc(wheels, func(w string) bool { return strings.HasPrefix(w, name+"/") || w == name }) {
			return base + strings.TrimSuffix(folder, "/")
		}
	}
	return ""
}

// request asks for an analysis of the wheels beside the libraries that a process maps. It
// does not block.
func (a *ahead) request(pid int, libraries []string, mapped map[proc.FileID]bool) {
	var folders []string
	for _, l := range libraries {
		if f := packagesOf(l); f != "" && !slices.Contains(folders, f) && len(folders) < maxWaitingPackages {
			folders = append(folders, f)
		}
	}
	for _, f := range folders {
		select {
		case a.wanted <- packages{pid, f, mapped}:
		default:
			a.dropped.Add(1)
		}
	}
}

// run analyses what is requested until ctx ends.
func (a *ahead) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-a.wanted:
			a.analyse(ctx, p)
		}
	}
}

func (a *ahead) analyse(ctx context.Context, p packages) {
	root, err := proc.OpenRoot(p.pid)
	if err != nil {
		return // it has ended
	}
	defer root.Close()
	if !a.markSeen(packagesKey{root.ID, p.folder}) {
		return
	}
	for _, wheel := range wheels {
		for _, folder := range expand(root, p.folder, wheel) {
			names, _ := root.Names(folder, maxLibraries)
			for _, name := range names {
				if ctx.Err() != nil {
					return
				}
				if strings.HasSuffix(name, ".so") || strings.Contains(name, ".so.") {
					a.derive(ctx, root, path.Join(folder, name), p.mapped)
				}
			}
		}
	}
}

// markSeen returns false for packages that were analysed before.
func (a *ahead) markSeen(key packagesKey) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.seen[key] {
		return false
	}
	if len(a.seen) >= maxKnownPackages {
		clear(a.seen)
	}
	a.seen[key] = true
	return true
}

// expand returns the folders that match a wheel's pattern.
func expand(root *proc.Root, base, pattern string) (folders []string) {
	before, after, found := strings.Cut(pattern, "*")
	if !found {
		return []string{path.Join(base, pattern)}
	}
	names, _ := root.Names(path.Join(base, before), maxSubfolders)
	for _, name := range names {
		folders = append(folders, path.Join(base, before, name, after))
	}
	return folders
}

// derive stores the table of a library. Its errors are ignored: they come again when a
// process loads it.
func (a *ahead) derive(ctx context.Context, root *proc.Root, library string, mapped map[proc.FileID]bool) {
	f, err := root.Open(library, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if mapped[f.ID] {
		return
	}
	_, _, _ = a.memo.Derive(filememo.File{ReaderAt: newPaced(ctx, f), Size: f.Size, Owner: f.Owner}, readTable)
}

// paced is a file whose reader pauses after each read, and stops when ctx ends.
type paced struct {
	ctx    context.Context
	file   io.ReaderAt
	worked time.Time // since when
}

func newPaced(ctx context.Context, file io.ReaderAt) *paced {
	return &paced{ctx, file, time.Now()}
}

// ReadAt implements io.ReaderAt, for one goroutine.
func (p *paced) ReadAt(b []byte, off int64) (int, error) {
	n, err := p.file.ReadAt(b, off)
	select {
	case <-p.ctx.Done():
		return 0, fmt.Errorf("stopped: %w", context.Cause(p.ctx))
	case <-time.After(min(restPerWork*time.Since(p.worked), longestRest)):
	}
	p.worked = time.Now()
	return n, err
}
