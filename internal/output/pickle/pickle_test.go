package pickle

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/pickletest"
)

func written(t *testing.T, write func(*Writer)) []byte {
	t.Helper()
	var b bytes.Buffer
	p := New(&b)
	write(p)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The bytes are those that CPython's pickle.dumps(v, 4) has, but for its frames.
func TestBytes(t *testing.T) {
	for _, test := range []struct {
		name  string
		write func(*Writer)
		want  string
	}{
		{"empty dict", func(p *Writer) { p.Dict(nil, func() {}) }, "8004 7d 2e"},
		{"one item", func(p *Writer) { p.List(nil, func() { p.Int(1) }) }, "8004 5d 28 4b01 65 2e"},
		{"integers", func(p *Writer) {
			p.List(nil, func() {
				for _, v := range []int64{0, 255, 256, 65535, 65536, math.MaxInt32, math.MaxInt32 + 1, -1, math.MinInt32, math.MinInt32 - 1, 1 << 47} {
					p.Int(v)
				}
			})
		}, "8004 5d 28 4b00 4bff 4d0001 4dffff 4a00000100 4affffff7f 8a050000008000 4affffffff 4a00000080 8a05ffffff7fff 8a0700000000008000 65 2e"},
		{"shared", func(p *Writer) {
			p.Dict(nil, func() {
				for range 2 {
					p.String("a")
					p.List(1, func() { p.String("b") })
				}
			})
		}, "8004 7d 28 8c0161 94 5d 28 8c0162 94 65 94 6800 6802 75 2e"},
		{"rest", func(p *Writer) {
			p.List(nil, func() {
				p.Bool(true)
				p.Bool(false)
				p.Pair(0, 7)
			})
		}, "8004 5d 28 88 89 4b00 4b07 86 65 2e"},
	} {
		want := strings.ReplaceAll(test.want, " ", "")
		if got := hex.EncodeToString(written(t, test.write)); got != want {
			t.Errorf("%s:\n%s, want\n%s", test.name, got, want)
		}
	}
}

type listKey string

// everything writes values of all types, and lists and dicts around the sizes at which
// their batches end.
func everything(p *Writer) {
	p.Dict(nil, func() {
		p.String("integers")
		p.List(nil, func() {
			for bit := range 63 {
				for _, v := range []int64{1<<bit - 1, 1 << bit, -1 << bit, -1<<bit - 1} {
					p.Int(v)
				}
			}
			p.Int(math.MaxInt64)
			p.Int(math.MinInt64)
		})
		for _, n := range []int{0, 1, batch - 1, batch, batch + 1, 2*batch + 1} {
			p.String(fmt.Sprintf("list of %d", n))
			p.List(nil, func() {
				for i := range n {
					p.Pair(int64(i), -int64(i))
				}
			})
			p.String(fmt.Sprintf("dict of %d", n))
			p.Dict(nil, func() {
				for i := range n {
					p.String(fmt.Sprint(i))
					p.Bool(i%2 == 0)
				}
			})
		}
		p.String("strings")
		p.List(nil, func() {
			for _, n := range []int{0, 1, 255, 256, 70_000} {
				for range 2 {
					p.String(strings.Repeat("x", n))
				}
			}
			p.String("\x00\x1b[31m ☃ \U0001f600 \ufffd")
		})
		p.String("shared")
		p.List(nil, func() {
			for range 3 {
				p.List(listKey("strings"), func() { // no string
					p.Dict(7, func() { p.String("strings"); p.Bool(true) })
				})
				p.Dict(7, func() { panic("it was written already") })
			}
		})
	})
}

func TestDecode(t *testing.T) {
	v, err := pickletest.Decode(written(t, everything))
	if err != nil {
		t.Fatal(err)
	}
	all := v.(*pickletest.Dict).Items
	integers := all["integers"].(*pickletest.List).Items
	if len(integers) != 63*4+2 || integers[0] != int64(0) || integers[253] != int64(math.MinInt64) || integers[251] != int64(-1<<62-1) {
		t.Errorf("integers are %v", integers)
	}
	for _, n := range []int{0, 1, batch - 1, batch, batch + 1, 2*batch + 1} {
		list := all[fmt.Sprintf("list of %d", n)].(*pickletest.List).Items
		dict := all[fmt.Sprintf("dict of %d", n)].(*pickletest.Dict).Items
		if len(list) != n || len(dict) != n {
			t.Errorf("a list of %d has %d items, a dict %d", n, len(list), len(dict))
		}
		for i := range list {
			if want := (pickletest.Tuple{int64(i), -int64(i)}); !reflect.DeepEqual(list[i], want) || dict[fmt.Sprint(i)] != (i%2 == 0) {
				t.Fatalf("item %d of %d is %v, %v", i, n, list[i], dict[fmt.Sprint(i)])
			}
		}
	}
	shared := all["shared"].(*pickletest.List).Items
	first := shared[0].(*pickletest.List)
	if len(shared) != 6 || shared[2] != shared[0] || shared[3] != first.Items[0] {
		t.Errorf("what is shared was read as %v", shared)
	}
}

// Python reads the same as the decoder of the tests.
func TestPython(t *testing.T) {
	b := written(t, everything)
	cmd := exec.Command("python3", "-c", `
import json, pickle, sys
v = pickle.load(sys.stdin.buffer)
assert v["shared"][0] is v["shared"][2] and v["shared"][1] is v["shared"][0][0]
json.dump(v, sys.stdout)`)
	cmd.Stdin = bytes.NewReader(b)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(out))
	d.UseNumber()
	var python any
	if err := d.Decode(&python); err != nil {
		t.Fatal(err)
	}
	ours, err := pickletest.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if ours := pickletest.Plain(ours); fmt.Sprint(python) != fmt.Sprint(ours) {
		t.Error("Python reads something else")
	}
}

// The tests' decoder holds a pickle to what the viewer knows.
func TestDecoder(t *testing.T) {
	for name, s := range map[string]string{
		"protocol 5":        "\x80\x05}.",
		"frame":             "\x80\x04\x95\x02\x00\x00\x00\x00\x00\x00\x00}.",
		"global":            "\x80\x04cos\nsystem\n.",
		"integer too long":  "\x80\x04\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00.",
		"batch too large":   "\x80\x04](" + strings.Repeat("N", batch+1) + "e.",
		"key twice":         "\x80\x04}(\x8c\x01aN\x8c\x01aNu.",
		"not UTF-8":         "\x80\x04\x8c\x01\xff.",
		"not remembered":    "\x80\x04h\x00.",
		"something is left": "\x80\x04}..",
		"cut short":         "\x80\x04}",
	} {
		if v, err := pickletest.Decode([]byte(s)); err == nil {
			t.Errorf("%s was read as %v", name, v)
		}
	}
}

type full struct{ room int }

var errFull = errors.New("no space")

func (f *full) Write(b []byte) (int, error) {
	if f.room -= len(b); f.room < 0 {
		return 0, errFull
	}
	return len(b), nil
}

func TestError(t *testing.T) {
	for _, room := range []int{0, 100, 100_000} {
		p := New(&full{room})
		everything(p)
		if err := p.Close(); !errors.Is(err, errFull) {
			t.Errorf("with room for %d bytes: %v", room, err)
		}
	}
}
