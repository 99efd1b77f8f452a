package symbolize

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"

	"github.com/gpumemtrace/gpumemtrace/internal/proc"
)

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
		fs.open.get(im)
		return im, none
	}
	im, reason := newImage(p.s, memory{bytes.NewReader(b)}, int64(len(b)), r)
	if reason != none {
		return nil, reason
	}
	im.content = content
	fs.byBuild[content] = im
	fs.open.put(im, struct{}{})
	return im, none
}

// memory is a file that is all in memory.
type memory struct{ *bytes.Reader }

func (memory) Close() error { return nil }
