package live

import (
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
)

// A wire is what a Snapshot has beside what every snapshot has as JSON, on its way from one
// gpumemtrace to another.
type wire struct {
	Sites []string             `json:"sites"` // as SiteText writes them
	GPUs  []snapshot.GPUMemory `json:"gpus"`
	Older int                  `json:"live_left_out"`
	Cost  *Cost                `json:"own_cost"`
	Ended string               `json:"ended"`
}

// SiteText returns the text that stands for a call site in a request.
func SiteText(k *ledger.SiteKey) string {
	var b []byte
	for i, n := range [...]uint64{uint64(k.Proc.PID), k.Proc.Start, k.Stack, uint64(k.API), uint64(k.Outer), uint64(k.Kind), uint64(uint32(k.Device)), k.Ctx} {
		if i > 0 {
			b = append(b, '-')
		}
		b = strconv.AppendUint(b, n, 16)
	}
	return string(b)
}

var errSite = errors.New("not a call site")

// ParseSite is the reverse of SiteText.
func ParseSite(text string) (*ledger.SiteKey, error) {
	var n [8]uint64
	rest := text
	for i, bits := range [...]int{32, 64, 64, 16, 16, 8, 32, 64} {
		part, after, more := strings.Cut(rest, "-")
		v, err := strconv.ParseUint(part, 16, bits)
		if err != nil || more != (i < len(n)-1) {
			return nil, errSite
		}
		n[i], rest = v, after
	}
	k := &ledger.SiteKey{Proc: event.Process{PID: uint32(n[0]), Start: n[1]}, Stack: n[2], API: uint16(n[3]), Outer: uint16(n[4]), Kind: event.Kind(n[5]), Device: int32(uint32(n[6])), Ctx: n[7]}
	if SiteText(k) != text {
		return nil, errSite
	}
	return k, nil
}

// Write writes l for ReadSnapshot.
func (l *Snapshot) Write(w io.Writer) error {
	rest := wire{GPUs: l.Snapshot.GPUs, Older: l.Older, Cost: l.Cost, Ended: l.Ended}
	for i := range l.Sites {
		rest.Sites = append(rest.Sites, SiteText(&l.Sites[i]))
	}
	return export.LiveJSON(w, l.Snapshot, &rest)
}

// ReadSnapshot reads what Write wrote. An error says that it is something else.
func ReadSnapshot(r io.Reader) (*Snapshot, error) {
	var rest wire
	s, err := export.ReadJSON(r, &rest)
	if err != nil {
		return nil, err
	}
	s.GPUs = rest.GPUs
	l := &Snapshot{Snapshot: s, Older: max(rest.Older, 0), Cost: rest.Cost, Ended: rest.Ended}
	for _, text := range rest.Sites[:min(len(rest.Sites), len(s.Samples))] {
		key, err := ParseSite(text)
		if err != nil {
			return nil, err
		}
		l.Sites = append(l.Sites, *key)
	}
	return l, nil
}
