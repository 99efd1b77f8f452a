package symbolize

import (
	"errors"
	"sync"

	"github.com/gpumemtrace/gpumemtrace/internal/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/proc"
)

// files are the open files, at most max of each kind.
type files struct {
	mu       sync.Mutex
	open     *cache[*image, struct{}]
	perfMaps *cache[*perfMap, struct{}]
	// Images by the device and inode that maps shows, and by content.
	byFile  map[proc.FileID]*image
	byBuild map[string]*image
}

func newFiles(max int, counts *loss.Set) *files {
	fs := &files{byFile: make(map[proc.FileID]*image), byBuild: make(map[string]*image)}
	fs.open = newCache(max, func(im *image, _ struct{}) {
		counts.Add(lossFilesClosed, 1)
		fs.drop(im)
	})
	fs.perfMaps = newCache(max, func(m *perfMap, _ struct{}) { m.file.Close() })
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
	fs.open.forget = func(im *image, _ struct{}) { fs.drop(im) }
	fs.open.clear()
	fs.perfMaps.clear()
}

// openImage opens the file of r. Programs that several processes map, or that
// have equal copies in several containers, share one image and one descriptor.
func (p *process) openImage(r *region) (*image, reason) {
	fs := p.s.files
	fs.mu.Lock()
	im, ok := fs.byFile[r.File]
	if ok {
		fs.open.get(im)
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
		fs.open.get(twin)
		return twin, none
	}
	im.key = r.File
	fs.byFile[r.File] = im
	if im.content != "" {
		fs.byBuild[im.content] = im
	}
	fs.open.put(im, struct{}{})
	return im, none
}
