package push

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
)

func oneProcess(t *testing.T, name string) *process {
	t.Helper()
	w := newWorld()
	c, _ := collecting(w, Options{})
	a := w.start(7, name)
	gone := w.alloc(a, 500)
	w.pass(time.Minute)
	collected(c)
	w.free(a, gone)
	w.alloc(a, 1000)
	w.pass(time.Minute)
	return collected(c)[0]
}

// sent returns what a request of one process has.
func sent(t *testing.T, x *process) pprofile.Profiles {
	t.Helper()
	e := newOTLP("1\n2")
	e.add(x)
	z, err := gzip.NewReader(bytes.NewReader(e.body()))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	request := pprofileotlp.NewExportRequest()
	if err := request.UnmarshalProto(body); err != nil {
		t.Fatal(err)
	}
	return request.Profiles()
}

// Each value is a profile of its own: what was allocated lasts as long as the interval, and what is
// held is of its end.
func TestProfiles(t *testing.T) {
	x := oneProcess(t, "train")
	p := sent(t, x)
	var names []string
	for _, one := range p.ResourceProfiles().At(0).ScopeProfiles().At(0).Profiles().All() {
		name := p.Dictionary().StringTable().At(int(one.SampleType().TypeStrindex()))
		names = append(names, name)
		begin, lasts := x.end, int64(0)
		if strings.HasPrefix(name, "alloc_") {
			begin, lasts = x.begin, x.end.Sub(x.begin).Nanoseconds()
		}
		if one.Time().AsTime() != begin.UTC() || int64(one.DurationNano()) != lasts {
			t.Errorf("%s: from %v for %d ns, want %v for %d", name, one.Time(), one.DurationNano(), begin, lasts)
		}
	}
	if want := []string{"alloc_objects", "alloc_space", "peak_space", "inuse_objects", "inuse_space"}; !slices.Equal(names, want) {
		t.Errorf("profiles of %q, want %q", names, want)
	}
}

// A sample leads to the functions of its stack, and says what it is of.
func TestSample(t *testing.T) {
	p := sent(t, oneProcess(t, "train"))
	d := p.Dictionary()
	text := func(i int32) string { return d.StringTable().At(int(i)) }
	attribute := func(i int32) string {
		a := d.AttributeTable().At(int(i))
		return text(a.KeyStrindex()) + "=" + a.Value().AsString()
	}
	resource := p.ResourceProfiles().At(0)
	scope := resource.ScopeProfiles().At(0)
	inuse := scope.Profiles().At(4)
	sample := inuse.Samples().At(0)
	got := []string{fmt.Sprint(sample.Values().AsRaw()), text(inuse.SampleType().UnitStrindex()), text(inuse.PeriodType().TypeStrindex())}
	for _, l := range d.StackTable().At(int(sample.StackIndex())).LocationIndices().All() {
		location := d.LocationTable().At(int(l))
		line := location.Lines().At(0)
		function, mapping := d.FunctionTable().At(int(line.FunctionIndex())), d.MappingTable().At(int(location.MappingIndex()))
		got = append(got, fmt.Sprintf("%x %s %s:%d of %s %x-%x", location.Address(), text(function.NameStrindex()), text(function.FilenameStrindex()), line.Line(), text(mapping.FilenameStrindex()), mapping.MemoryStart(), mapping.MemoryLimit()))
		for _, a := range slices.Concat(location.AttributeIndices().AsRaw(), mapping.AttributeIndices().AsRaw()) {
			got = append(got, attribute(a))
		}
	}
	for _, a := range sample.AttributeIndices().All() {
		got = append(got, attribute(a))
	}
	for _, attributes := range []pcommon.Map{resource.Resource().Attributes(), scope.Scope().Attributes()} {
		for name, value := range attributes.All() {
			got = append(got, name+"="+value.AsString())
		}
	}
	want := []string{
		"[1000]", "bytes", "space",
		"0 cuMemAlloc_v2 :0 of  0-0",
		"401000 allocate a.c:3 of /bin/train 400000-800000", "profile.frame.type=native", "process.executable.build_id.gnu=ab",
		"0 train train.py:7 of  0-0", "profile.frame.type=cpython",
		"gpumemtrace.kind=device", "gpumemtrace.api=cuMemAlloc_v2", "gpumemtrace.gpu=cuda:0", "gpumemtrace.owner=application",
		"process.pid=7", "process.executable.name=train", "service.name=train",
		"pprof.scope.default_sample_type=inuse_space", `pprof.scope.sample_type_order=["alloc_objects","alloc_space","peak_space","inuse_objects","inuse_space","host_space"]`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// Names are what a traced program likes them to be. What is sent is valid, and text.
func TestHostileNames(t *testing.T) {
	p := sent(t, oneProcess(t, "\x1b]0;evil\x07\xff<script>\u202e"+strings.Repeat("n", 10_000)))
	texts := p.Dictionary().StringTable().AsRaw()
	for _, v := range p.ResourceProfiles().At(0).Resource().Attributes().All() {
		texts = append(texts, v.AsString())
	}
	for _, text := range texts {
		if !utf8.ValidString(text) || strings.ContainsAny(text, "\x1b\x07\u202e") {
			t.Errorf("%q", text)
		}
	}
}
