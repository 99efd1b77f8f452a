package push

import (
	"bytes"
	"compress/gzip"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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
