package symbolize

import (
	"errors"
	"io/fs"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// Reading thousands of mappings takes milliseconds. After a first allowance, at most this
// share of the time is spent on it for one process.
const (
	mapsShare     = 10 // one tenth
	mapsAllowance = 200 * time.Millisecond
)

// A process is the mappings of one traced process.
type process struct {
	s   *Symbolizer
	pid uint32

	changed atomic.Bool // it has new mappings

	mu        sync.Mutex // held while files of the process are opened, which it may delay
	regions   []*region  // in order of address
	why       reason     // why the mappings cannot be read
	stale     bool
	allowance time.Duration
	last      time.Time // of reading the mappings
	perf      *perfMap
	perfTried bool
}

// A region is one executable mapping. It outlives its process, and does not
// change once it is pinned.
type region struct {
	proc.Mapping
	mapping *mapping // nil for anonymous memory

	pinned bool
	image  *image // nil if reason is set, and for anonymous memory
	reason reason
	perf   *perfMap // of anonymous memory; may be nil
}

// A mapping is what Locations of one region share.
type mapping struct {
	snapshot.Mapping
	linesSet sync.Once // sets HasLines
}

func (p *process) locate(addr uint64, lookup Lookup) Address {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.changed.Swap(false) {
		p.stale, p.perfTried = true, p.perf != nil
	}
	a := Address{pc: addr, lookup: lookup}
	// A return address may be the first byte after its mapping.
	at := addr
	if lookup == Return {
		at--
	}
	i, ok := p.find(at)
	if !ok || p.stale {
		if p.refresh() {
			i, ok = p.find(at)
		} else {
			p.s.loss.Add(lossStaleMaps, 1)
		}
	}
	if !ok {
		a.reason = noMapping
		if p.why != none {
			a.reason = p.why
		}
		return a
	}
	r := p.regions[i]
	if r.image != nil && r.image.closed.Load() {
		r = &region{Mapping: r.Mapping, mapping: r.mapping}
		p.regions[i] = r
	}
	if !r.pinned {
		p.pin(r)
	}
	a.region = r
	return a
}

func (p *process) find(addr uint64) (int, bool) {
	i := sort.Search(len(p.regions), func(i int) bool { return p.regions[i].End > addr })
	return i, i < len(p.regions) && addr >= p.regions[i].Start
}

// refresh reads the mappings again, unless that took too much time lately.
func (p *process) refresh() bool {
	now := time.Now()
	p.allowance = min(mapsAllowance, p.allowance+now.Sub(p.last)/mapsShare)
	p.last = now
	if p.allowance <= 0 {
		return false
	}
	entries, why := p.readMaps()
	p.allowance -= time.Since(now)
	p.stale = false
	if why != none {
		// What was read before still holds for addresses of that time.
		p.why = why
		return true
	}
	p.why = none
	old := make(map[proc.Mapping]*region, len(p.regions))
	for _, r := range p.regions {
		old[r.Mapping] = r
	}
	p.regions = make([]*region, len(entries))
	for i, e := range entries {
		if p.regions[i] = old[e]; p.regions[i] == nil {
			p.regions[i] = newRegion(e)
		}
	}
	return true
}

func newRegion(m proc.Mapping) *region {
	r := &region{Mapping: m}
	if m.HasFile() || m.Path == vdsoPath {
		r.mapping = &mapping{Mapping: snapshot.Mapping{
			Start: m.Start, Limit: m.End, Offset: m.Offset,
			Path: m.Name(),
		}}
	}
	return r
}

// maxMappings bounds the mappings of one process that are remembered. The kernel's default
// limit on all kinds of mappings together is 65530 (vm.max_map_count).
const maxMappings = 1 << 16

func (p *process) readMaps() (mappings []proc.Mapping, why reason) {
	for m, err := range proc.Mappings(int(p.pid)) {
		switch {
		case errors.Is(err, fs.ErrPermission):
			return nil, mapsDenied
		case err != nil || len(mappings) == maxMappings:
			return nil, processGone
		}
		mappings = append(mappings, m)
	}
	if len(mappings) == 0 {
		return nil, processGone
	}
	return mappings, none
}

// pin opens the files that name the addresses of r.
func (p *process) pin(r *region) {
	r.pinned = true
	switch {
	case r.Path == vdsoPath:
		r.image, r.reason = p.vdso(r)
	case r.HasFile():
		r.image, r.reason = p.openImage(r)
	}
	if r.image != nil {
		if r.mapping.BuildID == "" {
			r.mapping.BuildID = r.image.buildID
		}
		return
	}
	if !r.HasFile() || r.reason == notELF {
		r.perf = p.perfMap()
	}
}

// Program returns the mapping of the program that the process pid runs, nil if
// it is not known: a process may run deleted or unreadable files.
func (s *Symbolizer) Program(pid uint32) *snapshot.Mapping {
	f, path, err := proc.OpenExecutable(int(pid))
	if err != nil {
		return nil
	}
	defer f.Close()
	m := &snapshot.Mapping{Path: path}
	if e, err := f.ELF(); err == nil {
		m.BuildID = e.BuildID()
	}
	for r, err := range proc.Mappings(int(pid)) {
		if err == nil && r.Name() == path {
			m.Start, m.Limit, m.Offset = r.Start, r.End, r.Offset
			break
		}
	}
	return m
}
