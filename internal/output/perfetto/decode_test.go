package perfetto

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// What follows decodes by Perfetto's published schema, and shares nothing with what
// encodes. A field that is not in the schema's part that is known here is an error.

// A field is one of a message: a number or bytes.
type field struct {
	number  int
	value   uint64
	content []byte
}

// fields decodes a message.
func fields(b []byte) (out []field, err error) {
	varint := func() (v uint64) {
		for shift := 0; ; shift += 7 {
			if len(b) == 0 || shift > 63 {
				err = io.ErrUnexpectedEOF
				return 0
			}
			x := b[0]
			b = b[1:]
			v |= uint64(x&0x7f) << shift
			if x < 0x80 {
				return v
			}
		}
	}
	for len(b) > 0 && err == nil {
		tag := varint()
		f := field{number: int(tag >> 3)}
		switch tag & 7 {
		case 0:
			f.value = varint()
		case 2:
			n := varint()
			if n > uint64(len(b)) {
				return nil, io.ErrUnexpectedEOF
			}
			f.content, b = b[:n], b[n:]
		default:
			return nil, fmt.Errorf("wire type %d", tag&7)
		}
		out = append(out, f)
	}
	return out, err
}

type track struct {
	uuid, parent uint64
	name         string
	pid          uint64 // of a process
	start        uint64
	counter      bool
	points       []point
	events       []*traceEvent
}

type traceEvent struct {
	time, kind uint64
	name       string
	args       []string
}

type decoded struct {
	tracks []*track
	byID   map[uint64]*track
	clocks []string
	begin  uint64 // time of the first packet
}

// decode decodes a trace, and checks what Perfetto wants of one.
func decode(t *testing.T, b []byte) *decoded {
	t.Helper()
	d := &decoded{byID: map[uint64]*track{}}
	must := func(b []byte) []field {
		t.Helper()
		out, err := fields(b)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	text := func(b []byte) string {
		t.Helper()
		if !utf8.Valid(b) || len(b) > 256 || bytes.ContainsFunc(b, func(r rune) bool { return r < ' ' }) {
			t.Errorf("text %q", b)
		}
		return string(b)
	}
	for _, p := range must(b) {
		if p.number != 1 { // Trace.packet
			t.Fatalf("field %d of a trace", p.number)
		}
		var time, clock, sequence uint64
		for _, f := range must(p.content) {
			switch f.number {
			case 8:
				time = f.value
			case 10:
				sequence = f.value
			case 58:
				clock = f.value
			case 6:
				d.begin = cmp.Or(d.begin, time)
				d.clocks = append(d.clocks, clocksOf(t, must, f.content))
			case 60:
				d.track(t, must, text, f.content)
			case 11:
				if clock != 3 || time == 0 {
					t.Fatalf("an event of clock %d, time %d", clock, time)
				}
				d.event(t, must, text, time, f.content)
			default:
				t.Fatalf("field %d of a packet", f.number)
			}
		}
		if sequence == 0 {
			t.Fatal("a packet of no sequence")
		}
		if len(d.clocks) == 0 {
			t.Fatal("a packet before the clocks")
		}
	}
	for _, x := range d.tracks {
		slices.SortStableFunc(x.events, func(a, b *traceEvent) int { return cmp.Compare(a.time, b.time) })
		for i := range x.points {
			if i > 0 && x.points[i].time < x.points[i-1].time {
				t.Errorf("track %q goes back in time", x.name)
			}
		}
	}
	return d
}

func clocksOf(t *testing.T, must func([]byte) []field, b []byte) string {
	t.Helper()
	var out []string
	for _, c := range must(b) {
		if c.number != 1 {
			t.Fatalf("field %d of a clock snapshot", c.number)
		}
		var id, time uint64
		for _, f := range must(c.content) {
			switch f.number {
			case 1:
				id = f.value
			case 2:
				time = f.value
			default:
				t.Fatalf("field %d of a clock", f.number)
			}
		}
		out = append(out, fmt.Sprintf("%s %d", map[uint64]string{1: "realtime", 3: "monotonic", 6: "boottime"}[id], time))
	}
	return strings.Join(out, ", ")
}

func (d *decoded) track(t *testing.T, must func([]byte) []field, text func([]byte) string, b []byte) {
	t.Helper()
	x := &track{}
	for _, f := range must(b) {
		switch f.number {
		case 1:
			x.uuid = f.value
		case 2:
			x.name = text(f.content)
		case 5:
			x.parent = f.value
		case 3:
			for _, p := range must(f.content) {
				switch p.number {
				case 1:
					x.pid = p.value
				case 6:
					x.name = text(p.content)
				case 7:
					x.start = p.value
				default:
					t.Fatalf("field %d of a process", p.number)
				}
			}
		case 8:
			x.counter = true
			if c := must(f.content); len(c) != 1 || c[0].number != 3 || c[0].value != 3 { // bytes
				t.Fatalf("counter %+v", c)
			}
		default:
			t.Fatalf("field %d of a track", f.number)
		}
	}
	if x.uuid == 0 || d.byID[x.uuid] != nil || x.parent != 0 && d.byID[x.parent] == nil {
		t.Fatalf("track %+v", x)
	}
	d.byID[x.uuid] = x
	d.tracks = append(d.tracks, x)
}

func (d *decoded) event(t *testing.T, must func([]byte) []field, text func([]byte) string, time uint64, b []byte) {
	t.Helper()
	e := &traceEvent{time: time}
	var on *track
	var value int64
	for _, f := range must(b) {
		switch f.number {
		case 9:
			e.kind = f.value
		case 11:
			on = d.byID[f.value]
		case 23:
			e.name = text(f.content)
		case 30:
			value = int64(f.value)
		case 4:
			e.args = append(e.args, annotation(t, must, text, f.content))
		default:
			t.Fatalf("field %d of an event", f.number)
		}
	}
	if on == nil || on.counter != (e.kind == 4) {
		t.Fatalf("event %+v on track %+v", e, on)
	}
	if on.counter {
		on.points = append(on.points, point{time, value})
		return
	}
	on.events = append(on.events, e)
}

func annotation(t *testing.T, must func([]byte) []field, text func([]byte) string, b []byte) string {
	t.Helper()
	name, value := "", ""
	var all []string
	for _, f := range must(b) {
		switch f.number {
		case 10:
			name = text(f.content)
		case 4:
			value = fmt.Sprint(int64(f.value))
		case 6:
			value = text(f.content)
		case 7:
			value = fmt.Sprintf("%#x", f.value)
		case 12:
			all = append(all, annotation(t, must, text, f.content))
		default:
			t.Fatalf("field %d of an annotation", f.number)
		}
	}
	if name == "" {
		return value
	}
	if all != nil {
		value = strings.Join(all, " < ")
	}
	return name + " = " + value
}

// path returns a track's name below those of its parents.
func (d *decoded) path(x *track) string {
	if x.parent == 0 {
		return x.name
	}
	return d.path(d.byID[x.parent]) + " / " + x.name
}

// high and last are of a counter's values.
func (x *track) high() (high int64) {
	high = math.MinInt64
	for _, p := range x.points {
		high = max(high, p.value)
	}
	return high
}

func (x *track) last() int64 { return x.points[len(x.points)-1].value }

// find returns the track at a path.
func (d *decoded) find(t *testing.T, path string) *track {
	t.Helper()
	for _, x := range d.tracks {
		if d.path(x) == path {
			return x
		}
	}
	t.Fatalf("no track %q", path)
	return nil
}

// write writes all that is in the trace, times from a base on. Of counters with many
// points it writes what they come to.
func (d *decoded) write(w io.Writer, base uint64) {
	kinds := map[uint64]string{1: "begin", 2: "end", 3: "instant"}
	at := func(time uint64) string { return fmt.Sprintf("%.6f", float64(int64(time-base))/1e9) }
	for _, x := range d.tracks {
		fmt.Fprintf(w, "%s", d.path(x))
		if x.pid != 0 {
			fmt.Fprintf(w, " (pid %d)", x.pid)
		}
		fmt.Fprintln(w)
		if len(x.points) > 12 {
			fmt.Fprintf(w, "  %d points, from %d at %s to %d at %s, %d at most\n", len(x.points), x.points[0].value, at(x.points[0].time), x.last(), at(x.points[len(x.points)-1].time), x.high())
		} else {
			for _, p := range x.points {
				fmt.Fprintf(w, "  %s %d\n", at(p.time), p.value)
			}
		}
		for i, e := range x.events {
			if i == 6 {
				fmt.Fprintf(w, "  and %d events more\n", len(x.events)-i)
				break
			}
			fmt.Fprintf(w, "  %s %s %s %s\n", at(e.time), kinds[e.kind], e.name, strings.Join(e.args, "; "))
		}
	}
}
