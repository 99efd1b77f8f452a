package live

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// WireVersion changes when Read would have to. New keys do not change it.
const WireVersion = 1

// A wire is a snapshot on its way from one gpumemtrace to another, as one JSON object. What
// many samples share is there once, and samples have its index.
type wire struct {
	Version   int                   `json:"wire_version"`
	Meta      snapshot.Meta         `json:"meta"`
	Mappings  []snapshot.Mapping    `json:"mappings"`
	Locations []wireLocation        `json:"locations"`
	Stacks    [][]int               `json:"stacks"` // locations, leaf first
	Labels    []string              `json:"labels"` // the order of a sample's labels
	Values    []string              `json:"values"` // the order of a sample's values
	Samples   []wireSample          `json:"samples"`
	Processes []snapshot.Process    `json:"processes"`
	Accounts  []snapshot.Account    `json:"accounts"`
	GPUs      []snapshot.GPUMemory  `json:"gpus"`
	Live      []snapshot.Allocation `json:"live"`
	Older     int                   `json:"live_left_out"`
	Loss      []loss.Counter        `json:"loss"`
	Notes     []string              `json:"notes"`
	Cost      *Cost                 `json:"own_cost"`
	Ended     string                `json:"ended"`
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

// Write writes l for ReadSnapshot, without what no view shows: training steps, where memory
// lies, allocators.
func (l *Snapshot) Write(w io.Writer) error {
	s := l.Snapshot
	out := wire{Version: WireVersion, Meta: s.Meta, Samples: make([]wireSample, len(s.Samples)), Processes: slices.Clone(s.Processes), Accounts: slices.Clone(s.Accounts),
		GPUs: s.GPUs, Live: s.Live, Older: l.Older, Loss: s.Loss, Notes: s.Notes, Cost: l.Cost, Ended: l.Ended}
	for i := range out.Processes {
		p := &out.Processes[i]
		p.Name = valid(p.Name)
		for _, field := range p.Who.Fields() {
			*field = valid(*field)
		}
	}
	for i := range out.Accounts {
		out.Accounts[i].Process = valid(out.Accounts[i].Process)
	}
	labels := slices.DeleteFunc(slices.Clone(snapshot.AllLabels[:]), func(l snapshot.Label) bool { return l.OfProcess() }) // which Processes have
	for i := range labels {
		out.Labels = append(out.Labels, labels[i].Name)
	}
	for i := range snapshot.AllValues {
		out.Values = append(out.Values, snapshot.AllValues[i].Name)
	}
	t := wireTables{&out, render.Index[*snapshot.Mapping]{}, render.Index[*snapshot.Location]{}, render.Index[wireStack]{}}
	for i := range s.Samples {
		x := &s.Samples[i]
		one := wireSample{Stack: t.stack(x.Stack), Labels: make([]string, len(labels)), Values: make([]int64, len(snapshot.AllValues))}
		if i < len(l.Sites) {
			one.Site = SiteText(&l.Sites[i])
		}
		for j := range labels {
			one.Labels[j] = valid(labels[j].Get(&x.Labels))
		}
		for j := range snapshot.AllValues {
			one.Values[j] = *snapshot.AllValues[j].Of(&x.Values)
		}
		out.Samples[i] = one
	}
	if err := json.NewEncoder(w).Encode(&out); err != nil {
		return fmt.Errorf("write a snapshot: %w", err)
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
	mappings  render.Index[*snapshot.Mapping]
	locations render.Index[*snapshot.Location]
	stacks    render.Index[wireStack]
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
	i, fresh := t.stacks.Number(key)
	if fresh {
		of := make([]int, len(stack))
		for j, l := range stack {
			of[j] = t.location(l)
		}
		t.Stacks = append(t.Stacks, of)
	}
	return i
}

func (t *wireTables) location(l *snapshot.Location) int {
	i, fresh := t.locations.Number(l)
	if fresh {
		one := wireLocation{Address: l.Address, Mapping: -1, Lines: make([]snapshot.Line, len(l.Lines))}
		for j, line := range l.Lines {
			line.Function, line.System, line.File = valid(line.Function), valid(line.System), valid(line.File)
			one.Lines[j] = line
		}
		if l.Mapping != nil {
			one.Mapping = t.mapping(l.Mapping)
		}
		t.Locations = append(t.Locations, one)
	}
	return i
}

func (t *wireTables) mapping(m *snapshot.Mapping) int {
	i, fresh := t.mappings.Number(m)
	if fresh {
		one := *m
		one.Path = valid(m.Path)
		t.Mappings = append(t.Mappings, one)
	}
	return i
}

// ReadSnapshot reads what Write wrote. An error says that it is something else.
func ReadSnapshot(r io.Reader) (*Snapshot, error) {
	var in wire
	if err := json.NewDecoder(r).Decode(&in); err != nil {
		return nil, fmt.Errorf("read a snapshot: %w", err)
	}
	if in.Version != WireVersion {
		return nil, fmt.Errorf("read a snapshot: version %d, this gpumemtrace knows %d", in.Version, WireVersion)
	}
	l, ok := in.snapshot()
	if !ok {
		return nil, errors.New("read a snapshot: it refers to what is not in it")
	}
	return l, nil
}

// snapshot returns the snapshot, and whether everything that it refers to is there.
func (in *wire) snapshot() (*Snapshot, bool) {
	s := &snapshot.Snapshot{Meta: in.Meta, Processes: in.Processes, Accounts: in.Accounts, GPUs: in.GPUs, Loss: in.Loss, Notes: in.Notes, Live: in.Live,
		Samples: make([]snapshot.Sample, len(in.Samples))}
	l := &Snapshot{Snapshot: s, Older: max(in.Older, 0), Cost: in.Cost, Ended: in.Ended}
	for i := range in.Mappings {
		s.Mappings = append(s.Mappings, &in.Mappings[i])
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
		if !in.label(x, &s.Samples[i]) {
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
	}
	return l, true
}

// label sets the labels and values of a sample, by their names.
func (in *wire) label(x *wireSample, to *snapshot.Sample) bool {
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
