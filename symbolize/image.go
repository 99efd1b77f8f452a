package symbolize

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/lru"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A source is an open file, or memory read like one. ReadAt fails after Close.
type source interface {
	io.ReaderAt
	io.Closer
}

// An image is one program or library that is mapped somewhere.
type image struct {
	s       *Symbolizer
	file    source
	size    int64
	elf     *proc.ELF
	buildID string
	content string // the same for equal files, "" if only the inode identifies the file
	key     proc.FileID
	path    string // as the first process that mapped it names it
	closed  atomic.Bool
	slow    atomic.Int64 // calls of resolve that exceeded the time limit and still run

	mu     sync.Mutex // guards all below
	debug  []*debugFile
	search bool // debug files were looked for in our own file system
	blamed bool // its debug information was counted as too large or malformed
	ours   bool // path is one of our own file system
	syms   *symtab
	lines  *dwarfIndex   // nil if there is none
	goTab  *goTable      // only where symbols were stripped; may be nil
	reason reason        // why syms is nil
	cost   int64         // bytes of syms and lines; 0 while they are not loaded
	took   time.Duration // to load them, until indexes knows
}

// newImage reads the headers of the size bytes of file, which r maps. It does
// not close file on failure.
func newImage(s *Symbolizer, file source, size int64, r *region) (*image, reason) {
	e, err := proc.ReadELF(file, size)
	switch {
	case errors.Is(err, proc.ErrNotELF):
		return nil, notELF
	case err != nil:
		return nil, malformed
	}
	im := &image{s: s, file: file, size: size, elf: e, buildID: e.BuildID(), path: r.Path}
	if im.buildID != "" {
		// A build id is an assertion; the layout makes a false one less likely
		// to pass.
		im.content = fmt.Sprintf("%s/%d/%d/%d", im.buildID, size, len(e.Sections), e.Entry)
	}
	return im, none
}

func (im *image) close() {
	im.closed.Store(true)
	im.file.Close()
	// Resolve may hold the lock during a download.
	go func() {
		im.mu.Lock()
		defer im.mu.Unlock()
		for _, d := range im.debug {
			d.file.Close()
		}
		im.debug = nil
	}()
}

// load makes the indexes if they are not there. im.mu is held.
func (im *image) load() {
	if im.cost != 0 {
		return
	}
	if im.closed.Load() {
		im.reason = fileClosed
		return
	}
	defer func(began time.Time) { im.took += time.Since(began) }(time.Now())
	im.findDebug()
	im.reason = none
	b := &builder{}
	b.add(im.elf.File, im.file)
	for _, d := range im.debug {
		b.add(d.elf.File, d.file)
	}
	if !b.symtab {
		im.goTab = loadGo(im.elf.File)
	}
	switch {
	case b.full:
		im.reason = tooLarge
	case len(b.symbols) == 0 && im.goTab == nil:
		im.reason = stripped
	}
	im.syms = b.build()
	im.lines = im.loadDwarf()
	im.measure()
}

// measure sets cost, which grows as compile units are parsed.
func (im *image) measure() {
	im.cost = 1 + int64(len(im.syms.spans))*16
	if im.lines != nil {
		im.cost += im.lines.size
	}
	if im.goTab != nil {
		im.cost += im.goTab.size
	}
}

func (im *image) unload() {
	im.mu.Lock()
	im.syms, im.lines, im.goTab, im.cost = nil, nil, nil, 0
	im.mu.Unlock()
}

const (
	// maxIndexes bounds the images with indexes in memory.
	maxIndexes = 1 << 10
	// restAfter is how long indexes are kept that nobody uses, or restPerLoad times as long as
	// it took to make them: to make them again takes a twentieth of the time at most.
	restAfter   = 5 * time.Second
	restPerLoad = 20
	// largeIndexes is how many bytes of indexes are returned to the system at once.
	largeIndexes = 4 << 20
)

// indexes bounds the memory of all images' indexes. Names are wanted when new stacks are
// shown, so most of the time no index is of use.
type indexes struct {
	mu    sync.Mutex
	max   int64
	total int64
	costs *lru.Cache[*image, int64]
	took  time.Duration // to make those that are there
	rest  *time.Timer   // calls unloadAll
}

func newIndexes(max int64) *indexes {
	x := &indexes{max: max}
	x.costs = lru.New(maxIndexes, x.forget)
	x.rest = time.AfterFunc(restAfter, x.unloadAll)
	return x
}

func (x *indexes) forget(im *image, cost int64) {
	x.total -= cost
	im.unload()
}

func (x *indexes) unloadAll() {
	x.mu.Lock()
	all, bytes := x.costs, x.total
	x.costs, x.total, x.took = lru.New(maxIndexes, x.forget), 0, 0
	x.mu.Unlock()
	for _, im := range all.Keys() {
		im.unload()
	}
	if bytes > largeIndexes {
		debug.FreeOSMemory()
	}
}

// use marks im as used, and unloads others while the total is over the limit. To make its
// indexes took so long since the last call. The caller does not hold im.mu.
func (x *indexes) use(im *image, cost int64, took time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	before, _ := x.costs.Get(im)
	x.total += cost - before
	x.took += took
	x.costs.Add(im, cost)
	for x.total > x.max && x.costs.Len() > 1 {
		x.costs.RemoveOldest()
	}
	x.rest.Reset(max(restAfter, restPerLoad*x.took))
}

// vdsoPath is how maps shows the kernel's own shared object, which is in no
// file.
const (
	vdsoPath = "[vdso]"
	maxVDSO  = 1 << 20
)

// vdso reads the process's vdso out of its memory. Equal ones share an image.
func (p *process) vdso(r *region) (*image, reason) {
	if r.End-r.Start > maxVDSO {
		return nil, tooLarge
	}
	mem, err := proc.OpenMemory(int(p.pid))
	if err != nil {
		return nil, fileGone
	}
	defer mem.Close()
	b := make([]byte, r.End-r.Start)
	if _, err := mem.ReadAt(b, int64(r.Start)); err != nil {
		return nil, fileGone
	}
	sum := sha256.Sum256(b)
	content := vdsoPath + hex.EncodeToString(sum[:])

	fs := p.s.files
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if im := fs.byBuild[content]; im != nil {
		fs.open.Get(im)
		return im, none
	}
	im, reason := newImage(p.s, memory{bytes.NewReader(b)}, int64(len(b)), r)
	if reason != none {
		return nil, reason
	}
	im.content = content
	fs.byBuild[content] = im
	fs.open.Add(im, struct{}{})
	return im, none
}

// memory is a file that is all in memory.
type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }

// files are the open files, at most max of each kind.
type files struct {
	mu       sync.Mutex
	open     *lru.Cache[*image, struct{}]
	perfMaps *lru.Cache[*perfMap, struct{}]
	// Images by the device and inode that maps shows, and by content.
	byFile  map[proc.FileID]*image
	byBuild map[string]*image
}

func newFiles(max int, counts *loss.Set) *files {
	fs := &files{byFile: make(map[proc.FileID]*image), byBuild: make(map[string]*image)}
	fs.open = lru.New(max, func(im *image, _ struct{}) {
		counts.Add(lossFilesClosed, 1)
		fs.drop(im)
	})
	fs.perfMaps = lru.New(max, func(m *perfMap, _ struct{}) { m.file.Close() })
	return fs
}

func (fs *files) drop(im *image) {
	delete(fs.byFile, im.key)
	delete(fs.byBuild, im.content)
	im.close()
}

func (fs *files) close() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, im := range fs.open.Keys() {
		fs.drop(im)
	}
	fs.perfMaps.Purge()
}

// openImage opens the file of r. Programs that several processes map, or that
// have equal copies in several containers, share one image and one descriptor.
func (p *process) openImage(r *region) (*image, reason) {
	fs := p.s.files
	fs.mu.Lock()
	im, ok := fs.byFile[r.File]
	if ok {
		fs.open.Get(im)
	}
	fs.mu.Unlock()
	if ok {
		return im, none
	}
	f, err := proc.OpenMapped(int(p.pid), &r.Mapping)
	switch {
	case errors.Is(err, proc.ErrIrregular):
		return nil, fileIrregular
	case err != nil:
		return nil, fileGone
	}
	im, reason := newImage(p.s, f, f.Size, r)
	if reason != none {
		f.Close()
		return nil, reason
	}
	im.pinDebug(p)

	fs.mu.Lock()
	defer fs.mu.Unlock()
	twin := fs.byFile[r.File]
	if twin == nil && im.content != "" {
		twin = fs.byBuild[im.content]
	}
	if twin != nil {
		im.close()
		fs.open.Get(twin)
		return twin, none
	}
	im.key = r.File
	fs.byFile[r.File] = im
	if im.content != "" {
		fs.byBuild[im.content] = im
	}
	fs.open.Add(im, struct{}{})
	return im, none
}
