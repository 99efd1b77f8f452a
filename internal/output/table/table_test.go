package table_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// text returns what t writes to a page, between two headings.
func text(t *testing.T, x *table.Table, width int) string {
	t.Helper()
	var b strings.Builder
	p := render.NewPage(&b, width, false)
	p.Heading("First")
	x.Text(p)
	p.Heading("Second")
	p.Warn("lost: %d", 3)
	if err := p.Flush("write page"); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestText(t *testing.T) {
	x := table.New(table.Bytes("BYTES"), table.Text("EMPTY"), table.Text("KIND"))
	x.AddAbove([]string{"a line that is too long", "another"}, 1<<30, nil, "device")
	x.Add(2, "", "\x1b[31m")
	want := strings.Join([]string{
		`First`,
		`     BYTES  KIND`,
		`  1.00 GiB  device`,
		`      a line that is to…`,
		`      another`,
		`       2 B  \x1b[31m`,
		``,
		`Second`,
		`lost: 3`,
		``,
	}, "\n")
	if got := text(t, x, 24); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// A column loses its beginning, or its end, whichever tells less: the widest column first.
func TestNarrow(t *testing.T) {
	for _, c := range []struct {
		line table.Column
		want []string
	}{
		{table.Ending("LINE"), []string{
			`     BYTES  KIND    MODULE       LINE`,
			`  1.00 GiB  device  Net/Block    …ear.py:134`,
			`       2 B  device  …k/Linéaire  main t.py:7`,
		}},
		{table.Beginning("LINE"), []string{
			`     BYTES  KIND    MODULE       LINE`,
			`  1.00 GiB  device  Net/Block    Linear.for…`,
			`       2 B  device  …k/Linéaire  main t.py:7`,
		}},
	} {
		x := table.New(table.Bytes("BYTES"), table.Text("KIND"), table.Ending("MODULE"), c.line)
		x.Add(1<<30, "device", "Net/Block", "Linear.forward linear.py:134")
		x.Add(2, "device", "Net/Block/Linéaire", "main t.py:7")
		if got, want := text(t, x, 44), strings.Join(c.want, "\n"); !strings.Contains(got, "\n"+want+"\n") {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	}
}

// A page for a program or a file has whole rows.
func TestWhole(t *testing.T) {
	long := strings.Repeat("word ", 60)
	x := table.New(table.Text("A"), table.Ending("B"))
	x.AddAbove([]string{long}, long, long)
	lines := strings.Split(text(t, x, render.Whole), "\n")
	if render.Width(lines[2]) < 600 || render.Width(lines[3]) < 300 || strings.Contains(lines[2]+lines[3], "…") {
		t.Errorf("%q", lines)
	}
}

// Numbers are written as their columns say, and for other programs as numbers.
func TestCells(t *testing.T) {
	x := table.New(table.SomeBytes("SOME").As("some"), table.SignedBytes("SIGNED").As("signed"), table.SignedCount("COUNT").As("count"),
		table.Share("SHARE").As("share"), table.TextRight("TOOK").As("took"), table.Text("TEXT").As("text"))
	x.Add(0, 1<<20, int64(-3), table.Part{Of: 1, Whole: 8}, 1500*time.Millisecond, "=<a>\n")
	x.Add(1<<10, 0, 3, nil, nil, nil)
	if got, want := text(t, x, 80), "      SOME     SIGNED  COUNT  SHARE  TOOK  TEXT\n"+
		"            +1.00 MiB     -3  12.5%  1.5s  =<a>\\x0a\n"+
		"  1.00 KiB        0 B     +3\n"; !strings.Contains(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	x.Columns, x.Rows = append(x.Columns[:3], x.Columns[4:]...), x.Rows[:1]
	x.Rows[0].Cells = append(x.Rows[0].Cells[:3], x.Rows[0].Cells[4:]...)
	x.Add(nil, nil, nil, time.Unix(7, 5), "'")
	for format, want := range map[table.Format]string{
		table.FormatCSV:  "some,signed,count,took,text\n0,1048576,-3,1.500000000,'=<a>\\x0a\n,,,7.000000005,'\n",
		table.FormatJSON: "[\n" + `{"some":0,"signed":1048576,"count":-3,"took":1.500000000,"text":"=<a>\n"},` + "\n" + `{"some":null,"signed":null,"count":null,"took":7.000000005,"text":"'"}` + "\n]\n",
	} {
		var b strings.Builder
		if err := x.Write(&b, format); err != nil || b.String() != want {
			t.Errorf("%s: got %v and\n%s\nwant\n%s", format, err, b.String(), want)
		}
		if err := x.Write(failing{}, format); !errors.Is(err, errFull) {
			t.Errorf("%s: got %v, want %v", format, err, errFull)
		}
	}
}

func TestCell(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "a=b": "a=b", "=1+1": "'=1+1", "+1": "'+1", "-x": "'-x", "@SUM": "'@SUM",
		"\t=1": `\x09=1`, "\r=1": `\x0d=1`, "'": "'",
	} {
		if got := table.Cell(in); got != want {
			t.Errorf("Cell(%q) = %q, want %q", in, got, want)
		}
	}
}

type failing struct{}

var errFull = errors.New("disk full")

func (failing) Write([]byte) (int, error) { return 0, errFull }
