package live

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// WireVersion changes when Read would have to. New keys do not change it.
const WireVersion = 1

// A wire is a Look on its way from one gpumemtrace to another, as one JSON object. What
// many samples share is there once, and goes by its index.
type wire struct {
	Version   int                  `json:"wire_version"`
	Meta      snapshot.Meta        `json:"meta"`
	Mappings  []wireMapping        `json:"mappings"`
	Locations []wireLocation       `json:"locations"`
	Stacks    [][]int              `json:"stacks"` // locations, leaf first
	Labels    []string             `json:"labels"` // the order of a sample's
	Values    []string             `json:"values"` // likewise
	Samples   []wireSample         `json:"samples"`
	Processes []snapshot.Process   `json:"processes"`
	Accounts  []snapshot.Account   `json:"accounts"`
	GPUs      []snapshot.GPUMemory `json:"gpus"`
	Live      []wireAllocation     `json:"live"`
	Older     int                  `json:"live_left_out"`
	Loss      []loss.Counter       `json:"loss"`
	Notes     []string             `json:"notes"`
	Cost      *wireCost            `json:"own_cost"`
	Ended     string               `json:"ended"`
}

type wireMapping struct {
	Start    uint64 `json:"start"`
	Limit    uint64 `json:"limit"`
	Offset   uint64 `json:"offset"`
	Path     string `json:"path"`
	BuildID  string `json:"build_id"`
	HasLines bool   `json:"has_lines"`
}

type wireLocation struct {
	Address uint64          `json:"address,omitempty"`
	Mapping int             `json:"mapping"` // -1 for none
	Lines   []snapshot.Line `json:"lines"`
}

type wireSample struct {
	Stack  int      `json:"stack"`
	Site   string   `json:"site,omitempty"` // as SiteText writes it
	Labels []string `json:"labels"`
	Values []int64  `json:"values"`
}

type wireAllocation struct {
	Sample  int       `json:"sample"`
	Address uint64    `json:"address,omitempty"`
	Handle  uint64    `json:"handle,omitempty"`
	Size    int64     `json:"size"`
	Time    time.Time `json:"time"`
}

type wireCost struct {
	CPU    time.Duration `json:"cpu_ns"`
	Memory int64         `json:"memory_bytes"`
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

// Write writes l for Read. What it leaves out no view shows: training steps, where memory
// lies, allocators.
func (l *Look) Write(w io.Writer) error {
	s := l.Snapshot
	out := wire{Version: WireVersion, Meta: s.Meta, Samples: make([]wireSample, len(s.Samples)), Processes: slices.Clone(s.Processes), Accounts: slices.Clone(s.Accounts),
		GPUs: s.GPUs, Older: l.Older, Loss: s.Loss, Notes: s.Notes, Ended: l.Ended}
	for i := range out.Processes {
		out.Processes[i].Name = valid(out.Processes[i].Name)
	}
	for i := range out.Accounts {
		out.Accounts[i].Process = valid(out.Accounts[i].Process)
	}
	if l.Cost != nil {
		out.Cost = &wireCost{l.Cost.CPU, l.Cost.Memory}
	}
	for i := range snapshot.AllLabels {
		out.Labels = append(out.Labels, snapshot.AllLabels[i].Name)
	}
	for i := range snapshot.AllValues {
		out.Values = append(out.Values, snapshot.AllValues[i].Name)
	}
	t := wireTables{wire: &out, mappings: map[*snapshot.Mapping]int{}, locations: map[*snapshot.Location]int{}, stacks: map[wireStack]int{}}
	for i := range s.Samples {
		x := &s.Samples[i]
		one := wireSample{Stack: t.stack(x.Stack), Labels: make([]string, len(snapshot.AllLabels)), Values: make([]int64, len(snapshot.AllValues))}
		if i < len(l.Sites) {
			one.Site = SiteText(&l.Sites[i])
		}
		for j := range snapshot.AllLabels {
			one.Labels[j] = valid(snapshot.AllLabels[j].Get(&x.Labels))
		}
		for j := range snapshot.AllValues {
			one.Values[j] = *snapshot.AllValues[j].Of(&x.Values)
		}
		out.Samples[i] = one
	}
	for _, a := range s.Live {
		out.Live = append(out.Live, wireAllocation{a.Sample, a.Address, a.Handle, a.Size, a.Time})
	}
	if err := json.NewEncoder(w).Encode(&out); err != nil {
		return fmt.Errorf("write a look: %w", err)
	}
	return nil
}

// valid returns a name as JSON can carry it: one that is no UTF-8 looks as it is shown.
func valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return render.Clean(s)
}

type wireTables struct {
	*wire
	mappings  map[*snapshot.Mapping]int
	locations map[*snapshot.Location]int
	stacks    map[wireStack]int
}

// A wireStack is which slice a stack is: samples share them.
type wireStack struct {
	first **snapshot.Location
	n     int
}

func (t *wireTables) stack(stack []*snapshot.Location) int {
	key := wireStack{n: len(stack)}
	if len(stack) > 0 {
		key.first = &stack[0]
	}
	i, ok := t.stacks[key]
	if !ok {
		i = len(t.Stacks)
		t.stacks[key] = i
		of := make([]int, len(stack))
		for j, l := range stack {
			of[j] = t.location(l)
		}
		t.Stacks = append(t.Stacks, of)
	}
	return i
}

func (t *wireTables) location(l *snapshot.Location) int {
	i, ok := t.locations[l]
	if !ok {
		one := wireLocation{Address: l.Address, Mapping: -1, Lines: make([]snapshot.Line, len(l.Lines))}
		for j, line := range l.Lines {
			line.Function, line.System, line.File = valid(line.Function), valid(line.System), valid(line.File)
			one.Lines[j] = line
		}
		if l.Mapping != nil {
			one.Mapping = t.mapping(l.Mapping)
		}
		i = len(t.Locations)
		t.locations[l] = i
		t.Locations = append(t.Locations, one)
	}
	return i
}

func (t *wireTables) mapping(m *snapshot.Mapping) int {
	i, ok := t.mappings[m]
	if !ok {
		i = len(t.Mappings)
		t.mappings[m] = i
		t.Mappings = append(t.Mappings, wireMapping{m.Start, m.Limit, m.Offset, valid(m.Path), m.BuildID, m.HasLines})
	}
	return i
}

// ReadLook reads what Write wrote. An error says that it is something else.
func ReadLook(r io.Reader) (*Look, error) {
	var in wire
	if err := json.NewDecoder(r).Decode(&in); err != nil {
		return nil, fmt.Errorf("read a look: %w", err)
	}
	if in.Version != WireVersion {
		return nil, fmt.Errorf("read a look: version %d, this gpumemtrace knows %d", in.Version, WireVersion)
	}
	l, ok := in.look()
	if !ok {
		return nil, errors.New("read a look: it refers to what is not in it")
	}
	return l, nil
}

// look returns what in says, and whether all that it refers to is there.
func (in *wire) look() (*Look, bool) {
	s := &snapshot.Snapshot{Meta: in.Meta, Processes: in.Processes, Accounts: in.Accounts, GPUs: in.GPUs, Loss: in.Loss, Notes: in.Notes,
		Samples: make([]snapshot.Sample, len(in.Samples))}
	l := &Look{Snapshot: s, Older: max(in.Older, 0), Ended: in.Ended}
	if in.Cost != nil {
		l.Cost = &Cost{in.Cost.CPU, in.Cost.Memory}
	}
	for _, m := range in.Mappings {
		s.Mappings = append(s.Mappings, &snapshot.Mapping{Start: m.Start, Limit: m.Limit, Offset: m.Offset, Path: m.Path, BuildID: m.BuildID, HasLines: m.HasLines})
	}
	locations := make([]*snapshot.Location, len(in.Locations))
	for i := range in.Locations {
		x := &in.Locations[i]
		if len(x.Lines) == 0 || x.Mapping < -1 || x.Mapping >= len(s.Mappings) {
			return nil, false
		}
		locations[i] = &snapshot.Location{Address: x.Address, Lines: x.Lines}
		if x.Mapping >= 0 {
			locations[i].Mapping = s.Mappings[x.Mapping]
		}
	}
	stacks := make([][]*snapshot.Location, len(in.Stacks))
	for i, of := range in.Stacks {
		for _, j := range of {
			if j < 0 || j >= len(locations) {
				return nil, false
			}
			stacks[i] = append(stacks[i], locations[j])
		}
	}
	for i := range in.Samples {
		x := &in.Samples[i]
		if x.Stack < 0 || x.Stack >= len(stacks) || len(x.Labels) != len(in.Labels) || len(x.Values) != len(in.Values) {
			return nil, false
		}
		s.Samples[i].Stack = stacks[x.Stack]
		if !in.tell(x, &s.Samples[i]) {
			return nil, false
		}
		if x.Site == "" {
			continue
		}
		key, err := ParseSite(x.Site)
		if err != nil || len(l.Sites) != i { // the first samples have one
			return nil, false
		}
		l.Sites = append(l.Sites, *key)
	}
	for _, a := range in.Live {
		if a.Sample < 0 || a.Sample >= len(s.Samples) {
			return nil, false
		}
		s.Live = append(s.Live, snapshot.Allocation{Sample: a.Sample, Address: a.Address, Handle: a.Handle, Size: a.Size, Time: a.Time})
	}
	return l, true
}

// tell gives a sample its labels and values, by their names.
func (in *wire) tell(x *wireSample, to *snapshot.Sample) bool {
	for i, name := range in.Labels {
		if label := row(snapshot.AllLabels[:], i, func(l *snapshot.Label) bool { return l.Name == name }); label != nil && label.Set(&to.Labels, x.Labels[i]) != nil {
			return false
		}
	}
	for i, name := range in.Values {
		if value := row(snapshot.AllValues[:], i, func(v *snapshot.Value) bool { return v.Name == name }); value != nil {
			*value.Of(&to.Values) = x.Values[i]
		}
	}
	return true
}

// row returns the row of a table that is meant, which is most likely the i-th; nil for
// one that this version does not know.
func row[T any](table []T, i int, is func(*T) bool) *T {
	if i < len(table) && is(&table[i]) {
		return &table[i]
	}
	for j := range table {
		if is(&table[j]) {
			return &table[j]
		}
	}
	return nil
}
