package unwind

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A toldCode is what Python says of a code object (testdata/codes.py).
type toldCode struct {
	id         codeID
	name, file string
	traced     int
	lines      []int
}

func (c *toldCode) UnmarshalJSON(b []byte) error {
	var name, file string
	if err := json.Unmarshal(b, &[]any{&c.id.object, &c.id.check, &name, &file, &c.traced, &c.lines}); err != nil {
		return err
	}
	for from, to := range map[string]*string{name: &c.name, file: &c.file} {
		plain, err := hex.DecodeString(from)
		if err != nil {
			return err
		}
		*to = string(plain)
	}
	return nil
}

// startCodes runs a Python that has told of its code objects.
func startCodes(t testing.TB, python string) (processMemory, []toldCode) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "codes.json")
	p := startTarget(t, python, "testdata/codes.py", path)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var told []toldCode
	if err := json.Unmarshal(b, &told); err != nil {
		t.Fatal(err)
	}
	if len(told) < 1000 {
		t.Fatalf("told of %d code objects", len(told))
	}
	return processMemory(p.pid), told
}

// Each name, file and line of thousands of code objects is what Python says.
func TestCodesOfPythons(t *testing.T) {
	pythons := installedPythons()
	if len(pythons) == 0 {
		skip(t, "no CPython")
	}
	for _, python := range pythons {
		t.Run(python, func(t *testing.T) {
			minor := pythonMinor(t, python)
			layout, ok := codeLayouts[0x0300|uint16(minor)]
			if !ok {
				t.Fatalf("the layout of CPython 3.%d is not known", minor)
			}
			m, told := startCodes(t, python)
			instructions, wrong := 0, 0
			for told := range slices.Chunk(told, 500) {
				var frames []pythonFrame
				var want []namedFrame
				for _, c := range told {
					for i, line := range c.lines {
						frames = append(frames, pythonFrame{codeID: c.id, at: int32(i)})
						f := namedFrame{Frame: Frame{Kind: Python, Function: c.name, File: c.file, Line: max(line, 0)}}
						if i < c.traced {
							f = namedFrame{hidden: true}
						}
						want = append(want, f)
					}
				}
				for i, got := range nameFrames(m, &layout, nothingKept, frames) {
					instructions++
					if got != want[i] {
						if wrong++; wrong < 20 {
							t.Errorf("%#x at %d: %+v, want %+v", frames[i].object, frames[i].at, got, want[i])
						}
					}
				}
			}
			t.Logf("%d code objects, %d instructions, %d wrong", len(told), instructions, wrong)
		})
	}
}

// A fakeMemory has pages. A change may come before each step.
type fakeMemory struct {
	pages  map[uint64]*[page]byte
	steps  int
	before func(step int, m *fakeMemory)
	most   int // bytes wanted at one step
}

func (m *fakeMemory) put(at uint64, b []byte) {
	for i, c := range b {
		at := at + uint64(i)
		if m.pages[at/page] == nil {
			m.pages[at/page] = new([page]byte)
		}
		m.pages[at/page][at%page] = c
	}
}

// unmap takes the page at an address away.
func (m *fakeMemory) unmap(at uint64) { delete(m.pages, at/page) }

// bytes returns what is at an address, with zeros where there is no page.
func (m *fakeMemory) bytes(at, size uint64) []byte {
	out := make([]byte, size)
	for i := range out {
		if p := m.pages[(at+uint64(i))/page]; p != nil {
			out[i] = p[(at+uint64(i))%page]
		}
	}
	return out
}

func (m *fakeMemory) put32(at uint64, v uint32) { m.put(at, binary.NativeEndian.AppendUint32(nil, v)) }
func (m *fakeMemory) put64(at uint64, v uint64) { m.put(at, binary.NativeEndian.AppendUint64(nil, v)) }

func (m *fakeMemory) read(spans []*span) {
	m.steps++
	if m.before != nil {
		m.before(m.steps, m)
	}
	wanted := 0
	for _, s := range spans {
		wanted += len(s.to)
		if s.ok = true; len(s.to) > maxLineTable {
			continue // it has zeros
		}
		for to, at := s.to, s.at; len(to) > 0 && s.ok; {
			var n int
			if p := m.pages[at/page]; p != nil {
				n = copy(to, p[at%page:])
			}
			s.ok = n > 0
			to, at = to[n:], at+uint64(n)
		}
	}
	m.most = max(m.most, wanted)
}

// Where a fakeMemory has a code object and what it names. The file and the line table
// begin at the end of a page.
const (
	codeAt  = 0x7f0000001000
	typeAt  = 0x7f0000002000
	nameAt  = 0x7f0000003000
	fileAt  = 0x7f0000010000 - textHead - 4
	tableAt = 0x7f0000020000 - bytesHead
)

// ascii, latin, two and four are a string's state: compact, and its kind.
const (
	ascii = 1<<6 | 1<<5 | 1<<2
	latin = 1<<5 | 1<<2
	two   = 1<<5 | 2<<2
	four  = 1<<5 | 4<<2
)

func (m *fakeMemory) putText(l *codeLayout, at uint64, state uint32, characters []byte) {
	kind := int(state >> 2 & 7)
	data := l.compact
	if state == ascii {
		data = l.ascii
	}
	m.put(at, make([]byte, l.compact))
	m.put64(at+objectSize, uint64(len(characters)/max(kind, 1)))
	m.put32(at+textState, state)
	m.put(at+uint64(data), characters)
}

// check returns what the kernel side reports of the function.
func (m *fakeMemory) check(l *codeLayout) uint32 {
	number := func(at uint16) uint32 { return binary.NativeEndian.Uint32(m.bytes(codeAt+uint64(at), 4)) }
	if l.version != 0 {
		return number(l.version)
	}
	h := content(content(content(0, []byte("/f.py")), []byte("f")), m.table(l))
	return 2<<25 + 1<<18 + 0x43<<10 + number(l.first) ^ uint32(h^h>>32)
}

// newFake returns a memory with a function "f" of "/f.py" from line 7 on, and its frame.
func newFake(l *codeLayout) (*fakeMemory, pythonFrame) {
	m := &fakeMemory{pages: make(map[uint64]*[page]byte)}
	m.put(codeAt, make([]byte, l.size()))
	m.put64(codeAt, 3)
	m.put64(codeAt+objectType, typeAt)
	m.put64(typeAt+typeName, typeAt+0x100)
	m.put(typeAt+0x100, []byte(codeType))
	for at, v := range map[uint16]uint32{l.argcount: 2, l.kwonly: 1, l.flags: 0x43, l.first: 7} {
		m.put32(codeAt+uint64(at), v)
	}
	for at, v := range map[uint16]uint64{l.name: nameAt, l.file: fileAt, l.table: tableAt} {
		m.put64(codeAt+uint64(at), v)
	}
	if l.traceable != 0 {
		m.put32(codeAt+uint64(l.traceable), 1)
	}
	if l.version != 0 {
		m.put32(codeAt+uint64(l.version), 1234)
	}
	m.putText(l, nameAt, ascii, []byte("f"))
	m.putText(l, fileAt, ascii, []byte("/f.py"))
	m.putTable([]byte("\x02\x01\x0a\x00"))
	if l.traceable != 0 {
		// Two units of the first line, six of the next.
		m.putTable([]byte("\xe9\x00\xed\x02"))
	}
	return m, pythonFrame{codeID: codeID{codeAt, m.check(l)}, at: 3}
}

func (m *fakeMemory) putTable(b []byte) {
	m.put(tableAt, make([]byte, bytesHead))
	m.put64(tableAt+objectSize, uint64(len(b)))
	m.put(tableAt+bytesHead, b)
}

func nothingKept(codeID) (*codeText, bool) { return nil, false }

func nameOne(m memory, l *codeLayout, f pythonFrame) namedFrame {
	return nameFrames(m, l, nothingKept, []pythonFrame{f})[0]
}

// eachLayout runs a test with a memory of its own for each version's layout.
func eachLayout(t *testing.T, test func(t *testing.T, l *codeLayout)) {
	for version, l := range codeLayouts {
		t.Run(fmt.Sprintf("3.%d", version&0xff), func(t *testing.T) { test(t, &l) })
	}
}

func TestNameFrames(t *testing.T) {
	eachLayout(t, func(t *testing.T, l *codeLayout) {
		m, f := newFake(l)
		want := Frame{Kind: Python, Function: "f", File: "/f.py", Line: 8}
		if got := nameOne(m, l, f); got != (namedFrame{Frame: want}) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		// A function that has not begun is on the line of its def, or hidden.
		f.at = -1
		want.Line = 7
		if got := nameOne(m, l, f); got.hidden != (l.traceable != 0) || !got.hidden && got.Frame != want {
			t.Errorf("not begun: %+v", got)
		}
	})
}

// Strings of every kind, and strings that are none.
func TestNameTexts(t *testing.T) {
	l := codeLayouts[0x030c]
	long := strings.Repeat("n", maxCodeName)
	for _, tt := range []struct {
		state      uint32
		characters string
		want       string
	}{
		{ascii, "name", "name"},
		{ascii, "a\x00\x1b", "a\x00\x1b"},
		{ascii, long, long},
		{ascii, long + "n", long + "..."},
		{latin, "\xfcx", "\u00fcx"},
		{two, "\x2d\x4e\x87\x65", "\u4e2d\u6587"},
		{two, "\x00\xd8\xff\xdc\x80\xdc", "\ufffd\xff\x80"},
		{four, "\x00\x00\x02\x00\xff\xff\xff\xff", "\U00020000\ufffd"},
		{ascii, "", ""},              // no name
		{1<<6 | 1<<2, "name", ""},    // not compact
		{1 << 5, "name", ""},         // no kind
		{1<<5 | 3<<2, "namena", ""},  // no kind
		{1<<5 | 7<<2, "namenam", ""}, // no kind
		{ascii&^(1<<2) | 2<<2, "name", ""},
	} {
		m, f := newFake(&l)
		m.putText(&l, nameAt, tt.state, []byte(tt.characters))
		if tt.want == "" {
			if got := nameOne(m, &l, f); got.Frame != unnamed(errCodeStrange) {
				t.Errorf("state %#x, %q: %+v, want no name", tt.state, tt.characters, got)
			}
			continue
		}
		if got := nameOne(m, &l, f); got.Function != tt.want {
			t.Errorf("state %#x, %q: %q, want %q: %s", tt.state, tt.characters, got.Function, tt.want, got.Reason)
		}
	}
}

// What is not proven to be the code object that ran has no name.
func TestNamesAreProven(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(l *codeLayout, m *fakeMemory, f *pythonFrame)
		want   error
	}{
		"freed":              {func(_ *codeLayout, m *fakeMemory, _ *pythonFrame) { m.put64(codeAt, 0) }, errCodeReplaced},
		"in a list of freed": {func(_ *codeLayout, m *fakeMemory, _ *pythonFrame) { m.put64(codeAt, codeAt+0x100) }, errCodeReplaced},
		"another checksum":   {func(_ *codeLayout, _ *fakeMemory, f *pythonFrame) { f.check++ }, errCodeReplaced},
		"no checksum":        {func(_ *codeLayout, _ *fakeMemory, f *pythonFrame) { f.check = 0 }, errCodeReplaced},
		"another type":       {func(_ *codeLayout, m *fakeMemory, _ *pythonFrame) { m.put(typeAt+0x100, []byte("codec")) }, errCodeReplaced},
		"no type":            {func(_ *codeLayout, m *fakeMemory, _ *pythonFrame) { m.put64(codeAt+objectType, 0) }, errCodeUnread},
		"unmapped":           {func(_ *codeLayout, m *fakeMemory, _ *pythonFrame) { m.unmap(codeAt) }, errCodeUnread},
		"name unmapped":      {func(_ *codeLayout, m *fakeMemory, _ *pythonFrame) { m.unmap(nameAt) }, errCodeUnread},
		"file unmapped":      {func(l *codeLayout, m *fakeMemory, _ *pythonFrame) { m.unmap(fileAt + uint64(l.ascii)) }, errCodeUnread},
		"file from afar":     {func(l *codeLayout, m *fakeMemory, _ *pythonFrame) { m.put64(codeAt+uint64(l.file), 1<<64-8) }, errCodeUnread},
		"table unmapped":     {func(_ *codeLayout, m *fakeMemory, _ *pythonFrame) { m.unmap(tableAt + bytesHead) }, errCodeUnread},
		"table too long":     {func(_ *codeLayout, m *fakeMemory, _ *pythonFrame) { m.put64(tableAt+objectSize, maxLineTable+1) }, errCodeStrange},
		"table negative":     {func(_ *codeLayout, m *fakeMemory, _ *pythonFrame) { m.put64(tableAt+objectSize, 1<<64-1) }, errCodeStrange},
		"line of no table": {func(l *codeLayout, m *fakeMemory, f *pythonFrame) {
			m.put32(codeAt+uint64(l.first), 1<<31)
			f.check = m.check(l)
		}, errCodeStrange},
	} {
		t.Run(name, func(t *testing.T) {
			eachLayout(t, func(t *testing.T, l *codeLayout) {
				m, f := newFake(l)
				tt.change(l, m, &f)
				if got := nameOne(m, l, f); got.Frame != unnamed(tt.want) {
					t.Errorf("%+v, want %v", got, tt.want)
				}
			})
		})
	}
	for _, version := range []uint16{0x030a, 0x030b, 0x030c, 0x030d, 0x030e} { // tables that say where they end
		l := codeLayouts[version]
		m, f := newFake(&l)
		f.at = 8
		if got := nameOne(m, &l, f); got.Frame != unnamed(errCodeReplaced) {
			t.Errorf("%#x, behind the table: %+v", version, got)
		}
	}
}

// An object that is freed or replaced while it is read has no name either.
func TestNamesOfChangingCode(t *testing.T) {
	eachLayout(t, func(t *testing.T, l *codeLayout) {
		for name, change := range map[string]func(m *fakeMemory){
			"freed":        func(m *fakeMemory) { m.put64(codeAt, 0) },
			"other name":   func(m *fakeMemory) { m.put64(codeAt+uint64(l.name), fileAt) },
			"other file":   func(m *fakeMemory) { m.put64(codeAt+uint64(l.file), nameAt) },
			"other lines":  func(m *fakeMemory) { m.put64(codeAt+uint64(l.table), nameAt) },
			"other object": func(m *fakeMemory) { m.put32(codeAt+uint64(l.first), 8) },
			"another type": func(m *fakeMemory) { m.put64(codeAt+objectType, fileAt) },
		} {
			for step := 2; step <= 4; step++ {
				m, f := newFake(l)
				m.before = func(at int, m *fakeMemory) {
					if at == step {
						change(m)
					}
				}
				if got := nameOne(m, l, f); got.Frame != unnamed(errCodeReplaced) {
					t.Errorf("%s before step %d: %+v", name, step, got)
				}
			}
		}
		// References come and go.
		m, f := newFake(l)
		m.before = func(at int, m *fakeMemory) { m.put64(codeAt, uint64(at)) }
		if got := nameOne(m, l, f); got.Function != "f" {
			t.Errorf("%+v", got)
		}
	})
}

// The line tables of one stack are bounded together.
func TestLineTablesAreBounded(t *testing.T) {
	l := codeLayouts[0x030d]
	m, _ := newFake(&l)
	var frames []pythonFrame
	const objects = 2 * maxLineTables / maxLineTable
	for i := range uint64(objects) {
		at, table := codeAt+0x100000*(i+1), tableAt+0x100000*(i+1)
		m.put64(table+objectSize, maxLineTable)
		m.put64(codeAt+uint64(l.table), table)
		m.put(at, m.pages[codeAt/page][codeAt%page:][:l.size()])
		frames = append(frames, pythonFrame{codeID: codeID{at, m.check(&l)}, at: 3})
	}
	strange := 0
	for _, got := range nameFrames(m, &l, nothingKept, frames) {
		if got.Frame == unnamed(errCodeStrange) {
			strange++
		}
	}
	if m.most > maxLineTables+1<<16 || strange != objects/2 {
		t.Errorf("%d bytes at once, %d of %d without lines", m.most, strange, objects)
	}
}

// A traced process may have anything anywhere, and change it at any time. A name that
// comes out is one that was there.
func FuzzNameFrames(f *testing.F) {
	f.Add(uint8(12), []byte{}, int32(3))
	f.Add(uint8(8), []byte("\x00\x00\x05\x01\x10\x03"), int32(-1))
	f.Add(uint8(13), []byte("\x02\x12\xff\xff\x22\x7f"), int32(1<<30))
	f.Fuzz(func(t *testing.T, minor uint8, changes []byte, at int32) {
		l, ok := codeLayouts[0x0300|uint16(minor)]
		if !ok {
			return
		}
		m, frame := newFake(&l)
		frame.at = at
		regions := []uint64{codeAt, typeAt, typeAt + 0x100, nameAt, fileAt, tableAt}
		// Each change is a step, a region, an offset and a value, or no page at all.
		m.before = func(step int, m *fakeMemory) {
			for c := changes; len(c) >= 3; c = c[3:] {
				if int(c[0]&3)+1 != step {
					continue
				}
				to := regions[int(c[0]>>2)%len(regions)] + uint64(c[1])
				if c[0]&0x80 != 0 {
					m.unmap(to)
				} else {
					m.put(to, c[2:3])
				}
			}
		}
		got := nameOne(m, &l, frame)
		const most = 2*4*maxCodeFile + maxLineTables
		switch {
		case m.most > most:
			t.Errorf("reads %d bytes", m.most)
		case got.hidden:
		case (got.Function == "") == (got.Reason == ""):
			t.Errorf("neither name nor reason, or both: %+v", got)
		case len(got.Function) > 4*maxCodeName+3 || len(got.File) > 4*maxCodeFile+3 || got.Line < 0:
			t.Errorf("out of bounds: %d, %d, %d", len(got.Function), len(got.File), got.Line)
		}
	})
}

// Pieces that cannot be read leave the others be, as many as there are.
func TestProcessMemory(t *testing.T) {
	m, told := startCodes(t, installedPythons()[0])
	var spans []*span
	for i := range 3*maxSpans + 7 {
		s := &span{at: told[i%len(told)].id.object, to: make([]byte, 16)}
		if i%5 == 0 || i%maxSpans == 1 {
			s.at = []uint64{0, 1 << 63, 1<<64 - 8, 8}[i%4]
		}
		spans = append(spans, s)
	}
	m.read(spans)
	for i, s := range spans {
		if bad := i%5 == 0 || i%maxSpans == 1; s.ok == bad {
			t.Fatalf("piece %d at %#x: read is %v", i, s.at, s.ok)
		}
	}
	spans = spans[1:2]
	spans[0].ok = false
	processMemory(1 << 30).read(spans) // no such process
	if spans[0].ok {
		t.Error("read from a process that is not there")
	}
}

// BenchmarkNameFrames names a stack of 60 frames, all of different functions.
func BenchmarkNameFrames(b *testing.B) {
	python := systemPython
	m, told := startCodes(b, python)
	layout := codeLayouts[0x0300|uint16(pythonMinor(b, python))]
	var frames []pythonFrame
	for _, c := range told[len(told)-60:] { // the first ones have uncommon names
		frames = append(frames, pythonFrame{codeID: c.id, at: int32(len(c.lines) - 1)})
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, f := range nameFrames(m, &layout, nothingKept, frames) {
			if f.Function == "" {
				b.Fatal(f.Reason)
			}
		}
	}
}
