package push

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"

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

// otlp makes an ExportProfilesServiceRequest, gzip-compressed. Each value is a profile of
// its own, under the name and unit that pprof has for it, as OpenTelemetry's conventions
// have it: those allocated in the interval last as long, the others are of its end.
type otlp struct {
	version string
	all     pprofile.Profiles
	// The indexes of entries of the dictionary's tables, each of which is there once.
	texts      map[string]int32
	attributes map[[2]string]int32
	mappings   map[profile.Mapping]int32
	functions  map[[3]string]int32
	locations  map[string]int32
	stacks     map[string]int32
	size       int // of the request, in bytes, about
}

func newOTLP(version string) *otlp {
	e := &otlp{
		version: version, all: pprofile.NewProfiles(),
		texts: map[string]int32{}, attributes: map[[2]string]int32{}, mappings: map[profile.Mapping]int32{},
		functions: map[[3]string]int32{}, locations: map[string]int32{}, stacks: map[string]int32{},
	}
	d := e.all.Dictionary() // the first of each is that of none
	d.StringTable().Append("")
	d.AttributeTable().AppendEmpty()
	d.MappingTable().AppendEmpty()
	d.FunctionTable().AppendEmpty()
	d.LocationTable().AppendEmpty()
	d.StackTable().AppendEmpty()
	d.LinkTable().AppendEmpty()
	e.texts[""] = 0
	return e
}

// index returns the index of an entry, which add appends to a table of length n if it is new.
func index[K comparable](e *otlp, of map[K]int32, key K, n, size int, add func()) int32 {
	i, ok := of[key]
	if !ok {
		i = int32(n)
		of[key] = i
		e.size += size
		add()
	}
	return i
}

func (e *otlp) text(s string) int32 {
	t := e.all.Dictionary().StringTable()
	return index(e, e.texts, s, t.Len(), len(s)+3, func() { t.Append(s) })
}

func (e *otlp) attribute(name, value string) int32 {
	t := e.all.Dictionary().AttributeTable()
	return index(e, e.attributes, [2]string{name, value}, t.Len(), len(value)+8, func() {
		a := t.AppendEmpty()
		a.SetKeyStrindex(e.text(name))
		a.Value().SetStr(value)
	})
}

func (e *otlp) mapping(p *profile.Mapping) int32 {
	if p == nil {
		return 0
	}
	t := e.all.Dictionary().MappingTable()
	key := profile.Mapping{Start: p.Start, Limit: p.Limit, Offset: p.Offset, File: p.File, BuildID: p.BuildID}
	return index(e, e.mappings, key, t.Len(), 32, func() {
		m := t.AppendEmpty()
		m.SetMemoryStart(p.Start)
		m.SetMemoryLimit(p.Limit)
		m.SetFileOffset(p.Offset)
		m.SetFilenameStrindex(e.text(p.File))
		if p.BuildID != "" {
			m.AttributeIndices().Append(e.attribute("process.executable.build_id.gnu", p.BuildID))
		}
	})
}

func (e *otlp) function(f *profile.Function) int32 {
	t := e.all.Dictionary().FunctionTable()
	return index(e, e.functions, [3]string{f.Name, f.SystemName, f.Filename}, t.Len(), 12, func() {
		fn := t.AppendEmpty()
		fn.SetNameStrindex(e.text(f.Name))
		fn.SetSystemNameStrindex(e.text(f.SystemName))
		fn.SetFilenameStrindex(e.text(f.Filename))
	})
}

func (e *otlp) location(l *profile.Location) int32 {
	mapping := e.mapping(l.Mapping)
	key := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(mapping)), l.Address)
	functions, frame := make([]int32, len(l.Line)), ""
	for i := range l.Line {
		functions[i] = e.function(l.Line[i].Function)
		key = binary.AppendVarint(binary.AppendUvarint(key, uint64(functions[i])), l.Line[i].Line)
		if strings.HasSuffix(l.Line[i].Function.Filename, ".py") {
			frame = "cpython"
		}
	}
	if l.Address != 0 {
		frame = "native"
	}
	t := e.all.Dictionary().LocationTable()
	return index(e, e.locations, string(key), t.Len(), len(key)+10, func() {
		to := t.AppendEmpty()
		to.SetMappingIndex(mapping)
		to.SetAddress(l.Address)
		for i, f := range functions {
			line := to.Lines().AppendEmpty()
			line.SetFunctionIndex(f)
			line.SetLine(l.Line[i].Line)
		}
		if frame != "" {
			to.AttributeIndices().Append(e.attribute("profile.frame.type", frame))
		}
	})
}

func (e *otlp) stack(all []*profile.Location, at map[*profile.Location]int32) int32 {
	indices := make([]int32, len(all))
	var key []byte
	for i, l := range all {
		indices[i] = at[l]
		key = binary.AppendUvarint(key, uint64(indices[i]))
	}
	t := e.all.Dictionary().StackTable()
	return index(e, e.stacks, string(key), t.Len(), len(key)+4, func() { t.AppendEmpty().LocationIndices().FromRaw(indices) })
}

// add adds the profiles of a process.
func (e *otlp) add(x *process) {
	p := x.profile
	locations := make(map[*profile.Location]int32, len(p.Location))
	for _, l := range p.Location {
		locations[l] = e.location(l)
	}
	stacks, attributes := make([]int32, len(p.Sample)), make([][]int32, len(p.Sample))
	for i, s := range p.Sample {
		stacks[i] = e.stack(s.Location, locations)
		for j := range snapshot.AllLabels {
			name := snapshot.AllLabels[j].Name
			for _, value := range s.Label[name] {
				attributes[i] = append(attributes[i], e.attribute("gpumemtrace."+name, value))
			}
		}
	}
	resource := e.all.ResourceProfiles().AppendEmpty()
	for _, l := range x.labels {
		setAttribute(resource.Resource().Attributes(), l)
		e.size += len(l.Name) + len(l.Value) + 16
	}
	scope := resource.ScopeProfiles().AppendEmpty()
	e.describe(scope.Scope(), p)
	for column, t := range p.SampleType {
		one := pprofile.NewProfile()
		for i, s := range p.Sample {
			if s.Value[column] == 0 {
				continue
			}
			to := one.Samples().AppendEmpty()
			to.SetStackIndex(stacks[i])
			to.AttributeIndices().FromRaw(attributes[i])
			to.Values().Append(s.Value[column])
			e.size += 16 + 2*len(attributes[i])
		}
		if one.Samples().Len() == 0 {
			continue
		}
		id := x.id
		id[0] ^= byte(column) // each is another profile
		one.SetProfileID(pprofile.ProfileID(id))
		begin := x.end
		if strings.HasPrefix(t.Type, "alloc_") {
			begin = x.begin
			one.SetDurationNano(uint64(x.end.Sub(x.begin)))
		}
		one.SetTime(pcommon.NewTimestampFromTime(begin))
		e.valueType(one.SampleType(), t)
		e.valueType(one.PeriodType(), p.PeriodType)
		one.SetPeriod(p.Period)
		one.MoveTo(scope.Profiles().AppendEmpty())
	}
}

func (e *otlp) valueType(to pprofile.ValueType, t *profile.ValueType) {
	to.SetTypeStrindex(e.text(t.Type))
	to.SetUnitStrindex(e.text(t.Unit))
}

func setAttribute(to pcommon.Map, l Label) {
	name, ok := attributeNames[l.Name]
	if !ok {
		name = l.Name
	}
	if n, err := strconv.ParseUint(l.Value, 10, 32); err == nil && l.Name == labelPID {
		to.PutInt(name, int64(n))
	} else {
		to.PutStr(name, l.Value)
	}
}

// describe names the program that made the profiles, and pprof's attributes of them.
func (e *otlp) describe(to pcommon.InstrumentationScope, p *profile.Profile) {
	to.SetName("gpumemtrace")
	to.SetVersion(e.version)
	to.Attributes().PutStr("pprof.scope.default_sample_type", p.DefaultSampleType)
	order := to.Attributes().PutEmptySlice("pprof.scope.sample_type_order")
	for _, t := range p.SampleType {
		order.AppendEmpty().SetStr(t.Type)
	}
}

// body returns the request.
func (e *otlp) body() []byte {
	out, _ := compress(func(w io.Writer) error { // into memory
		message, err := pprofileotlp.NewExportRequestFromProfiles(e.all).MarshalProto()
		_, _ = w.Write(message)
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
