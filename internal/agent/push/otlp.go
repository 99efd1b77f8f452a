package push

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/pprof/profile"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// attributeNames are OpenTelemetry's for the labels that it has a name for. The others
// have their own.
var attributeNames = map[string]string{
	labelService:   "service.name",
	labelProcess:   "process.executable.name",
	labelPID:       "process.pid",
	"node":         "host.name",
	"namespace":    "k8s.namespace.name",
	"pod":          "k8s.pod.name",
	"container":    "k8s.container.name",
	"container_id": "container.id",
}

// A message is one of protobuf. Its methods append a field, which has a number in
// opentelemetry/proto/profiles/v1development/profiles.proto.
type message []byte

// number appends a number. 0 is the same as no field.
func (m message) number(field protowire.Number, v uint64) message {
	if v == 0 {
		return m
	}
	return protowire.AppendVarint(protowire.AppendTag(m, field, protowire.VarintType), v)
}

func (m message) numbers(field protowire.Number, all ...uint64) message {
	if len(all) == 0 {
		return m
	}
	size := 0
	for _, v := range all {
		size += protowire.SizeVarint(v)
	}
	m = protowire.AppendVarint(protowire.AppendTag(m, field, protowire.BytesType), uint64(size))
	for _, v := range all {
		m = protowire.AppendVarint(m, v)
	}
	return m
}

func (m message) bytes(field protowire.Number, b []byte) message {
	return protowire.AppendBytes(protowire.AppendTag(m, field, protowire.BytesType), b)
}

func (m message) text(field protowire.Number, s string) message {
	return protowire.AppendString(protowire.AppendTag(m, field, protowire.BytesType), s)
}

// value returns a value of OpenTelemetry's.
func value(s string) message { return message(nil).text(1, s) }

// The tables of the dictionary.
const (
	mappingTable protowire.Number = iota + 1
	locationTable
	functionTable
	linkTable
	stringTable
	attributeTable
	stackTable
	tables // one more than there are
)

// otlp makes an ExportProfilesServiceRequest, gzip-compressed. Each value is a profile of
// its own, under the name and unit that pprof has for it, as OpenTelemetry's conventions
// have it: those allocated in the interval last as long, the others are of its end.
type otlp struct {
	version    string
	resources  message
	dictionary message
	indexes    [tables]map[string]uint64 // of entries
}

func newOTLP(version string) *otlp {
	e := &otlp{version: version}
	for table := mappingTable; table < tables; table++ {
		e.indexes[table] = map[string]uint64{}
		e.entry(table, nil) // the first of each is that of none
	}
	return e
}

// size returns that of the request, in bytes.
func (e *otlp) size() int { return len(e.resources) + len(e.dictionary) }

// entry returns the index of an entry of a table, which has it once.
func (e *otlp) entry(table protowire.Number, entry message) uint64 {
	i, ok := e.indexes[table][string(entry)]
	if !ok {
		i = uint64(len(e.indexes[table]))
		e.indexes[table][string(entry)] = i
		e.dictionary = e.dictionary.bytes(table, entry)
	}
	return i
}

func (e *otlp) text(s string) uint64 {
	if i, ok := e.indexes[stringTable][s]; ok {
		return i
	}
	return e.entry(stringTable, message(s))
}

func (e *otlp) attribute(name, text string) uint64 {
	return e.entry(attributeTable, make(message, 0, 64).number(1, e.text(name)).bytes(2, value(text)))
}

func (e *otlp) mapping(p *profile.Mapping) uint64 {
	if p == nil {
		return 0
	}
	m := message(nil).number(1, p.Start).number(2, p.Limit).number(3, p.Offset).number(4, e.text(p.File))
	if p.BuildID != "" {
		m = m.numbers(5, e.attribute("process.executable.build_id.gnu", p.BuildID))
	}
	return e.entry(mappingTable, m)
}

func (e *otlp) function(f *profile.Function) uint64 {
	return e.entry(functionTable, make(message, 0, 32).number(1, e.text(f.Name)).number(2, e.text(f.SystemName)).number(3, e.text(f.Filename)))
}

func (e *otlp) location(l *profile.Location) uint64 {
	m, frame := make(message, 0, 64).number(1, e.mapping(l.Mapping)).number(2, l.Address), ""
	for i := range l.Line {
		m = m.bytes(3, make(message, 0, 32).number(1, e.function(l.Line[i].Function)).number(2, uint64(l.Line[i].Line)))
		if strings.HasSuffix(l.Line[i].Function.Filename, ".py") {
			frame = "cpython"
		}
	}
	if l.Address != 0 {
		frame = "native"
	}
	if frame != "" {
		m = m.numbers(4, e.attribute("profile.frame.type", frame))
	}
	return e.entry(locationTable, m)
}

func (e *otlp) stack(all []*profile.Location, at map[*profile.Location]uint64) uint64 {
	indexes := make([]uint64, len(all))
	for i, l := range all {
		indexes[i] = at[l]
	}
	return e.entry(stackTable, message(nil).numbers(1, indexes...))
}

// add adds the profiles of a process.
func (e *otlp) add(x *process) {
	p := x.profile
	at := make(map[*profile.Location]uint64, len(p.Location))
	for _, l := range p.Location {
		at[l] = e.location(l)
	}
	samples := make([]message, len(p.Sample)) // without values
	for i, s := range p.Sample {
		var of []uint64
		for j := range snapshot.AllLabels {
			name := snapshot.AllLabels[j].Name
			for _, text := range s.Label[name] {
				of = append(of, e.attribute("gpumemtrace."+name, text))
			}
		}
		samples[i] = slices.Clip(message(nil).number(1, e.stack(s.Location, at)).numbers(2, of...))
	}
	var resource message
	for _, l := range x.labels {
		resource = resource.bytes(1, attribute(l))
	}
	scope := message(nil).bytes(1, e.scope(p))
	for column, t := range p.SampleType {
		var one message
		for i, s := range p.Sample {
			if v := s.Value[column]; v != 0 {
				one = one.bytes(2, samples[i].numbers(4, uint64(v)))
			}
		}
		if one == nil {
			continue
		}
		id := x.id
		id[0] ^= byte(column) // each is another profile
		begin := x.end
		if strings.HasPrefix(t.Type, "alloc_") {
			begin = x.begin
			one = one.number(4, uint64(x.end.Sub(x.begin)))
		}
		one = protowire.AppendFixed64(protowire.AppendTag(one, 3, protowire.Fixed64Type), uint64(begin.UnixNano()))
		one = one.bytes(1, e.valueType(t)).bytes(5, e.valueType(p.PeriodType)).number(6, uint64(p.Period)).bytes(7, id[:])
		scope = scope.bytes(2, one)
	}
	e.resources = e.resources.bytes(1, message(nil).bytes(1, resource).bytes(2, scope))
}

func (e *otlp) valueType(t *profile.ValueType) message {
	return message(nil).number(1, e.text(t.Type)).number(2, e.text(t.Unit))
}

func attribute(l Label) message {
	v := value(l.Value)
	if n, err := strconv.ParseUint(l.Value, 10, 32); err == nil && l.Name == labelPID {
		v = message(nil).number(3, n)
	}
	return keyValue(cmp.Or(attributeNames[l.Name], l.Name), v)
}

func keyValue(key string, v message) message { return message(nil).text(1, key).bytes(2, v) }

// scope names the program that made the profiles, and pprof's attributes of them.
func (e *otlp) scope(p *profile.Profile) message {
	var order message
	for _, t := range p.SampleType {
		order = order.bytes(1, value(t.Type))
	}
	return message(nil).text(1, "gpumemtrace").text(2, e.version).
		bytes(3, keyValue("pprof.scope.default_sample_type", value(p.DefaultSampleType))).
		bytes(3, keyValue("pprof.scope.sample_type_order", message(nil).bytes(5, order)))
}

// body returns the request.
func (e *otlp) body() []byte {
	out, _ := compress(func(w io.Writer) error { // into memory
		_, err := w.Write(e.resources.bytes(2, e.dictionary))
		return err
	})
	return out
}

// compressors are large, and used again.
var compressors = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // which is a level
	return z
}}

// compress returns what write writes as a gzip file.
func compress(write func(io.Writer) error) ([]byte, error) {
	z := compressors.Get().(*gzip.Writer)
	defer compressors.Put(z)
	var b bytes.Buffer
	z.Reset(&b)
	if err := write(z); err != nil {
		return nil, err
	}
	err := z.Close()
	return b.Bytes(), err
}
