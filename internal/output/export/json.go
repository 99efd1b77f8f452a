package export

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// JSONVersion changes when a reader of a snapshot as JSON would have to: of the JSON output, of
// top --json and of what an agent sends to top. New keys do not change it.
const JSONVersion = 3

// JSON writes the whole snapshot as one object:
//
//	schema_version  JSONVersion
//	meta            version, command_line, target, driver, stack_mode,
//	                start (RFC 3339), duration_ns, events
//	processes       [pid, name, exited, who it belongs to as far as it is
//	                known (user, command, namespace, pod, pod_uid, container,
//	                container_id, service, job, rank, local_rank, world_size),
//	                parent_pid, and parent_ended of one that outlived a parent
//	                of the same program, counts, and bytes by class: of
//	                allocations that were traced, and physical_bytes of all
//	                that the driver handed out]
//	mappings        [start, limit, offset (0x hex), path, build_id]
//	locations       [address (0x hex), mapping (index, null for none),
//	                lines: [function, system, file, line, reason], innermost
//	                inlined function first]
//	samples         [stack (indexes into locations, leaf first), labels, values]
//	accounts        [pid, process, gpu, total, what the driver says, lines]
//	allocators      [pid, process, gpu, segments: [class, counts and bytes]]
//	windows         [pid, process, gpu, windows, steps, peak, rows: [stack
//	                (indexes into locations), what was allocated, how long it
//	                lived]], only where tensors were traced in windows: then
//	                meta has tensor_windows too
//	heaps           [pid, process, begin, end, reading], only where heaps were read
//	live            [sample (index), address or handle (0x hex), size_bytes, time]
//	loss            [name, help, value], those of value 0 too
//	notes           [string]
//
// Addresses are strings: JSON's numbers are exact to 2^53 only. Each element
// of a list stands on a line of its own and goes out as it is made.
func JSON(w io.Writer, s *snapshot.Snapshot, _ Options) error { return writeJSON(w, s, "\n", nil) }

// LiveJSON writes the same object on one line. Its key "now" has what only a live view knows.
func LiveJSON(w io.Writer, s *snapshot.Snapshot, now any) error { return writeJSON(w, s, "", now) }

// writeJSON begins each key and each element of a list with newline.
func writeJSON(w io.Writer, s *snapshot.Snapshot, newline string, now any) error {
	for i := range s.Live {
		if n := s.Live[i].Sample; n < 0 || n >= len(s.Samples) {
			return fmt.Errorf("write json: live allocation %d belongs to sample %d of %d", i, n, len(s.Samples))
		}
	}
	out := render.NewJSONWriter(w, newline, "")
	ids := index(s)

	out.Field("schema_version", JSONVersion)
	if now != nil {
		out.Field("now", now)
	}
	out.Field("meta", s.Meta)
	render.List(out, "processes", s.Processes, func(p *snapshot.Process) { out.Value(p) })
	render.List(out, "mappings", ids.mappings, func(m **snapshot.Mapping) {
		out.Value(jsonMapping{jsonAddress((*m).Start), jsonAddress((*m).Limit), jsonAddress((*m).Offset), (*m).Path, (*m).BuildID})
	})
	render.List(out, "locations", ids.locations, func(l **snapshot.Location) {
		loc := jsonLocation{Address: jsonAddress((*l).Address), Lines: (*l).Lines}
		if (*l).Mapping != nil {
			loc.Mapping = new(ids.mapping[(*l).Mapping.Key()])
		}
		out.Value(loc)
	})
	render.List(out, "samples", s.Samples, func(sample *snapshot.Sample) { writeSample(out, sample, ids) })
	render.List(out, "accounts", s.Accounts, func(a *snapshot.Account) { out.Value(a) })
	render.List(out, "allocators", s.Allocators, func(a *snapshot.Allocator) { out.Value(a) })
	render.List(out, "live", s.Live, func(a *snapshot.Allocation) { writeLive(out, a) })
	if len(s.Heaps) > 0 {
		render.List(out, "heaps", s.Heaps, func(h *snapshot.Heap) { out.Value(h) })
	}
	if s.Meta.Windows != nil {
		render.List(out, "windows", s.Windowed, func(x *snapshot.Windowed) { writeWindowed(out, x, ids) })
	}
	render.List(out, "loss", s.Loss, func(c *loss.Counter) { out.Value(c) })
	render.List(out, "notes", s.Notes, func(n *string) { out.Value(n) })
	return out.Close()
}

type jsonMapping struct {
	Start   jsonAddress `json:"start"`
	Limit   jsonAddress `json:"limit"`
	Offset  jsonAddress `json:"offset"`
	Path    string      `json:"path"`
	BuildID string      `json:"build_id,omitempty"`
}

type jsonLocation struct {
	Address jsonAddress     `json:"address,omitempty"`
	Mapping *int            `json:"mapping"`
	Lines   []snapshot.Line `json:"lines"`
}

// A jsonAddress is text in JSON: "0x7f00".
type jsonAddress uint64

// MarshalText returns "0x" and hexadecimal digits.
func (a jsonAddress) MarshalText() ([]byte, error) {
	return []byte(hex(uint64(a))), nil
}

// ids number a snapshot's mappings and locations in the order of their first
// appearance.
type ids struct {
	mappings  []*snapshot.Mapping
	mapping   render.Index[snapshot.Mapping] // by Key
	locations []*snapshot.Location
	location  render.Index[*snapshot.Location]
}

func index(s *snapshot.Snapshot) *ids {
	ids := &ids{mapping: render.Index[snapshot.Mapping]{}, location: render.Index[*snapshot.Location]{}}
	addMapping := func(m *snapshot.Mapping) {
		if _, fresh := ids.mapping.Number(m.Key()); fresh {
			ids.mappings = append(ids.mappings, m)
		}
	}
	for _, m := range s.Mappings {
		addMapping(m)
	}
	add := func(stack []*snapshot.Location) {
		for _, l := range stack {
			if _, fresh := ids.location.Number(l); fresh {
				ids.locations = append(ids.locations, l)
				if l.Mapping != nil {
					addMapping(l.Mapping)
				}
			}
		}
	}
	for i := range s.Samples {
		add(s.Samples[i].Stack)
	}
	for i := range s.Windowed {
		for j := range s.Windowed[i].Rows {
			add(s.Windowed[i].Rows[j].Sample.Stack)
		}
	}
	return ids
}

// writeWindowed writes the tensors of a process that were seen in windows.
func writeWindowed(w *render.JSONWriter, x *snapshot.Windowed, ids *ids) {
	rows := make([]jsonWindowedRow, 0, len(x.Rows))
	for i := range x.Rows {
		r := &x.Rows[i]
		row := jsonWindowedRow{Operator: r.Sample.Operator, Module: r.Sample.Module, ModulePath: r.Sample.ModulePath,
			PeakBytes: r.Sample.PeakBytes, AllocBytes: r.Sample.AllocBytes, AllocObjects: r.Sample.AllocObjects, Lives: &r.Lives, MeanLife: r.MeanLife()}
		for _, l := range r.Sample.Stack {
			row.Stack = append(row.Stack, ids.location[l])
		}
		rows = append(rows, row)
	}
	w.Value(struct {
		*snapshot.Windowed
		Rows []jsonWindowedRow `json:"rows"`
	}{x, rows})
}

type jsonWindowedRow struct {
	Stack        []int  `json:"stack"`
	Operator     string `json:"operator,omitempty"`
	Module       string `json:"module,omitempty"`
	ModulePath   string `json:"module_path,omitempty"`
	PeakBytes    int64  `json:"peak_bytes"`
	AllocBytes   int64  `json:"alloc_bytes"`
	AllocObjects int64  `json:"alloc_objects"`
	*snapshot.Lives
	MeanLife time.Duration `json:"mean_life_ns"`
}

// writeSample writes a sample by the tables of labels and values.
func writeSample(w *render.JSONWriter, s *snapshot.Sample, ids *ids) {
	b := append(w.AvailableBuffer(), `{"stack":[`...)
	for _, l := range s.Stack {
		b = append(strconv.AppendInt(b, int64(ids.location[l]), 10), ',')
	}
	b = append(bytes.TrimSuffix(b, []byte(",")), `],"labels":{`...)
	for i := range snapshot.AllLabels {
		l := &snapshot.AllLabels[i]
		switch text := l.Get(&s.Labels); {
		case l.Numeric():
			b = append(field(b, l.Name), cmp.Or(text, "0")...)
		case text == "", l.OfProcess(): // which the process has
			continue
		case plain(text):
			b = append(append(append(field(b, l.Name), '"'), text...), '"')
		default:
			quoted, _ := render.JSON(text) // of a text it does not fail
			b = append(field(b, l.Name), quoted...)
		}
		b = append(b, ',')
	}
	b = append(bytes.TrimSuffix(b, []byte(",")), `},"values":{`...)
	for i := range snapshot.AllValues {
		v := &snapshot.AllValues[i]
		b = append(strconv.AppendInt(field(b, v.Key), *v.Of(&s.Values), 10), ',')
	}
	b = append(bytes.TrimSuffix(b, []byte(",")), "}}"...)
	w.Write(b)
}

func field(b []byte, name string) []byte {
	return append(append(append(b, '"'), name...), `":`...)
}

// plain reports whether s needs no escape in JSON.
func plain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

// writeLive writes an allocation, of which there may be millions.
func writeLive(w *render.JSONWriter, a *snapshot.Allocation) {
	b := append(w.AvailableBuffer(), `{"sample":`...)
	b = strconv.AppendInt(b, int64(a.Sample), 10)
	name, n := `,"address":"0x`, a.Address
	if a.Handle != 0 {
		name, n = `,"handle":"0x`, a.Handle
	}
	b = append(b, name...)
	b = strconv.AppendUint(b, n, 16)
	b = append(b, `","size_bytes":`...)
	b = strconv.AppendInt(b, a.Size, 10)
	b = append(b, `,"time":"`...)
	b = a.Time.AppendFormat(b, time.RFC3339Nano)
	b = append(b, `"}`...)
	w.Write(b)
}

func hex(v uint64) string { return "0x" + strconv.FormatUint(v, 16) }
