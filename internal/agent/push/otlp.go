package push

import (
	"strconv"
	"strings"

	"github.com/google/pprof/profile"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Field numbers of opentelemetry/proto/profiles/v1development/profiles.proto and
// opentelemetry/proto/common/v1/common.proto.
const (
	exportResources  = 1 // ExportProfilesServiceRequest.resource_profiles
	exportDictionary = 2 // ExportProfilesServiceRequest.dictionary

	dictMappings   = 1 // ProfilesDictionary.mapping_table
	dictLocations  = 2
	dictFunctions  = 3
	dictLinks      = 4
	dictStrings    = 5
	dictAttributes = 6
	dictStacks     = 7

	resourceIs     = 1 // ResourceProfiles.resource
	resourceScopes = 2
	attributes     = 1 // Resource.attributes

	scopeIs         = 1 // ScopeProfiles.scope
	scopeProfiles   = 2
	scopeName       = 1 // InstrumentationScope.name
	scopeVersion    = 2
	scopeAttributes = 3

	profileType       = 1 // Profile.sample_type
	profileSamples    = 2
	profileTime       = 3
	profileDuration   = 4
	profilePeriodType = 5
	profilePeriod     = 6
	profileID         = 7

	valueType = 1 // ValueType.type_strindex
	valueUnit = 2

	sampleStack      = 1 // Sample.stack_index
	sampleAttributes = 2
	sampleValues     = 4

	mappingStart      = 1 // Mapping.memory_start
	mappingLimit      = 2
	mappingOffset     = 3
	mappingFile       = 4
	mappingAttributes = 5

	stackLocations = 1 // Stack.location_indices

	locationMapping    = 1 // Location.mapping_index
	locationAddress    = 2
	locationLines      = 3
	locationAttributes = 4

	lineFunction = 1 // Line.function_index
	lineLine     = 2

	functionName   = 1 // Function.name_strindex
	functionSystem = 2
	functionFile   = 3

	attributeKey   = 1 // KeyValueAndUnit.key_strindex, KeyValue.key
	attributeValue = 2
	valueString    = 1 // AnyValue.string_value
	valueInt       = 3
	valueArray     = 5
	arrayValues    = 1 // ArrayValue.values
)

// attributeNames are OpenTelemetry's for the labels that it has a name for. The others
// keep theirs.
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
	version    string
	resources  message
	mappings   table
	locations  table
	functions  table
	strings    table
	attributes table
	stacks     table
	// Room for a message of each table, while it is made.
	one struct{ location, line, function, mapping, attribute, value message }
}

func newOTLP(version string) *otlp {
	e := &otlp{version: version}
	for _, t := range e.tables() {
		t.index(nil) // the first of each is that of none
	}
	return e
}

func (e *otlp) tables() map[protowire.Number]*table {
	return map[protowire.Number]*table{dictMappings: &e.mappings, dictLocations: &e.locations, dictFunctions: &e.functions,
		dictStrings: &e.strings, dictAttributes: &e.attributes, dictStacks: &e.stacks}
}

// A table has one of each entry.
type table struct {
	entries []string
	at      map[string]uint64
	bytes   int
}

func (t *table) index(entry []byte) uint64 {
	if i, ok := t.at[string(entry)]; ok {
		return i
	}
	if t.at == nil {
		t.at = map[string]uint64{}
	}
	i, own := uint64(len(t.entries)), string(entry)
	t.at[own], t.entries, t.bytes = i, append(t.entries, own), t.bytes+len(own)+4
	return i
}

func (e *otlp) text(s string) uint64 {
	if i, ok := e.strings.at[s]; ok {
		return i
	}
	return e.strings.index([]byte(s))
}

func (e *otlp) attribute(name, value string) uint64 {
	a, v := &e.one.attribute, &e.one.value
	*a, *v = (*a)[:0], (*v)[:0]
	a.number(attributeKey, e.text(name))
	v.text(valueString, value)
	a.bytes(attributeValue, *v)
	return e.attributes.index(*a)
}

func (e *otlp) add(x *process) error {
	p := x.profile
	locations := make(map[*profile.Location]uint64, len(p.Location))
	for _, l := range p.Location {
		locations[l] = e.location(l)
	}
	type row struct{ stack, attributes message }
	rows := make([]row, len(p.Sample))
	var stack []uint64
	var m message
	for i, s := range p.Sample {
		stack, m = stack[:0], m[:0]
		for _, l := range s.Location {
			stack = append(stack, locations[l])
		}
		m.packed(stackLocations, stack)
		rows[i].stack.number(sampleStack, e.stacks.index(m))
		var with []uint64
		for j := range snapshot.AllLabels {
			name := snapshot.AllLabels[j].Name
			for _, value := range s.Label[name] {
				with = append(with, e.attribute("gpumemtrace."+name, value))
			}
		}
		rows[i].attributes.packed(sampleAttributes, with)
	}
	var scope message
	scope.bytes(scopeIs, e.scope(p))
	for column, t := range p.SampleType {
		var one message
		one.bytes(profileType, e.valueType(t))
		samples := 0
		for i, s := range p.Sample {
			if s.Value[column] == 0 {
				continue
			}
			samples++
			sample := append(append(message(nil), rows[i].stack...), rows[i].attributes...)
			sample.bytes(sampleValues, protowire.AppendVarint(nil, uint64(s.Value[column])))
			one.bytes(profileSamples, sample)
		}
		if samples == 0 {
			continue
		}
		id := x.id
		id[0] ^= byte(column) // each is another profile
		if allocated.has(t.Type) {
			one.fixed(profileTime, uint64(x.begin.UnixNano()))
			one.number(profileDuration, uint64(x.end.Sub(x.begin)))
		} else {
			one.fixed(profileTime, uint64(x.end.UnixNano()))
		}
		one.bytes(profilePeriodType, e.valueType(p.PeriodType))
		one.number(profilePeriod, uint64(p.Period))
		one.bytes(profileID, id[:])
		scope.bytes(scopeProfiles, one)
	}
	var resource, all message
	for _, l := range x.labels {
		resource.bytes(attributes, resourceAttribute(l))
	}
	all.bytes(resourceIs, resource)
	all.bytes(resourceScopes, scope)
	e.resources.bytes(exportResources, all)
	return nil
}

func resourceAttribute(l Label) (m message) {
	var v message
	name, ok := attributeNames[l.Name]
	if !ok {
		name = l.Name
	}
	if n, err := strconv.ParseUint(l.Value, 10, 32); err == nil && l.Name == labelPID {
		v.number(valueInt, n)
	} else {
		v.text(valueString, l.Value)
	}
	m.text(attributeKey, name)
	m.bytes(attributeValue, v)
	return m
}

// scope says which program made the profiles, and what pprof says of them as a whole.
func (e *otlp) scope(p *profile.Profile) (m message) {
	add := func(name string, v message) {
		var kv message
		kv.text(attributeKey, name)
		kv.bytes(attributeValue, v)
		m.bytes(scopeAttributes, kv)
	}
	m.text(scopeName, "gpumemtrace")
	m.text(scopeVersion, e.version)
	var single, order, array message
	single.text(valueString, p.DefaultSampleType)
	add("pprof.scope.default_sample_type", single)
	for _, t := range p.SampleType {
		var one message
		one.text(valueString, t.Type)
		array.bytes(arrayValues, one)
	}
	order.bytes(valueArray, array)
	add("pprof.scope.sample_type_order", order)
	return m
}

func (e *otlp) valueType(t *profile.ValueType) (m message) {
	m.number(valueType, e.text(t.Type))
	m.number(valueUnit, e.text(t.Unit))
	return m
}

func (e *otlp) location(l *profile.Location) uint64 {
	m, line, function := &e.one.location, &e.one.line, &e.one.function
	*m = (*m)[:0]
	if l.Mapping != nil {
		m.number(locationMapping, e.mapping(l.Mapping))
	}
	m.number(locationAddress, l.Address)
	frame := ""
	for i := range l.Line {
		f := l.Line[i].Function
		*line, *function = (*line)[:0], (*function)[:0]
		function.number(functionName, e.text(f.Name))
		function.number(functionSystem, e.text(f.SystemName))
		function.number(functionFile, e.text(f.Filename))
		line.number(lineFunction, e.functions.index(*function))
		line.number(lineLine, uint64(l.Line[i].Line))
		m.bytes(locationLines, *line)
		if strings.HasSuffix(f.Filename, ".py") {
			frame = "cpython"
		}
	}
	if l.Address != 0 {
		frame = "native"
	}
	if frame != "" {
		m.packed(locationAttributes, []uint64{e.attribute("profile.frame.type", frame)})
	}
	return e.locations.index(*m)
}

func (e *otlp) mapping(p *profile.Mapping) uint64 {
	m := &e.one.mapping
	*m = (*m)[:0]
	m.number(mappingStart, p.Start)
	m.number(mappingLimit, p.Limit)
	m.number(mappingOffset, p.Offset)
	m.number(mappingFile, e.text(p.File))
	if p.BuildID != "" {
		m.packed(mappingAttributes, []uint64{e.attribute("process.executable.build_id.gnu", p.BuildID)})
	}
	return e.mappings.index(*m)
}

func (e *otlp) size() int {
	n := len(e.resources)
	for _, t := range e.tables() {
		n += t.bytes
	}
	return n
}

func (e *otlp) body() []byte {
	var dictionary message
	for field, t := range e.tables() {
		for _, entry := range t.entries {
			dictionary.text(field, entry)
		}
	}
	dictionary.bytes(dictLinks, nil)
	request := e.resources
	request.bytes(exportDictionary, dictionary)
	return compress(request)
}
