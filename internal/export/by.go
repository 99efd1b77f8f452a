package export

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// A By is what a page has a row for each of: labels, and what memory is for.
type By []column

// A column tells samples apart.
type column struct {
	name  string
	title string // of the column
	of    func(*snapshot.Sample) string
}

// with names what is shown beside a column: the call that made the driver take
// memory, and which of the processes of one name it is.
var with = map[string]string{"cause": "api", "process": "pid"}

// allColumns returns each column once, causes first.
func allColumns() By {
	out := By{{"cause", "WHAT", render.Cause}}
	for i := range snapshot.AllLabels {
		l := &snapshot.AllLabels[i]
		out = append(out, column{l.Name, strings.ToUpper(cmp.Or(l.Title, l.Name)), func(s *snapshot.Sample) string { return l.Get(&s.Labels) }})
	}
	return out
}

// ByNames returns what ParseBy takes.
func ByNames() (names []string) {
	for _, c := range allColumns() {
		names = append(names, c.name)
	}
	return names
}

// ParseBy returns the columns with names, in their order.
func ParseBy(names ...string) (By, error) {
	all := allColumns()
	var out By
	for _, name := range names {
		if all.index(name) < 0 {
			return nil, fmt.Errorf("cannot group by %q: use %s", name, strings.Join(ByNames(), ", "))
		}
		for _, n := range []string{name, with[name]} {
			if n != "" && out.index(n) < 0 {
				out = append(out, all[all.index(n)])
			}
		}
	}
	return out, nil
}

func (by By) index(name string) int {
	return slices.IndexFunc(by, func(c column) bool { return c.name == name })
}

// causeBy is what ParseBy returns for "cause".
var causeBy, _ = ParseBy("cause")

// values returns what s is in each column.
func (by By) values(s *snapshot.Sample) []string {
	out := make([]string, len(by))
	for i, c := range by {
		out[i] = c.of(s)
	}
	return out
}

// A section is memory that adds up to one total: what a process holds on a GPU, or
// of one of the classes beside that.
type section struct {
	process, gpu string
	pid          int
	class        string // "" for what it holds on a GPU
}

// sectionOf returns the section that a sample is in. What is a column does not make
// another section.
func (by By) sectionOf(s *snapshot.Sample) section {
	x := section{process: s.Process, pid: s.PID, gpu: s.GPU}
	if !render.OnGPU(s.Kind) {
		x.class = render.Class(s.Kind)
	}
	if by.index("process") >= 0 || by.index("pid") >= 0 {
		x.process, x.pid = "", 0
	}
	if by.index("gpu") >= 0 {
		x.gpu = ""
	}
	return x
}

// title names the section.
func (x section) title() string {
	var words []string
	switch {
	case x.process == "" && x.pid == 0 && x.gpu != "":
		words = append(words, "GPU "+x.gpu)
	case x.process != "" || x.pid != 0:
		words = append(words, x.process)
		if x.pid != 0 {
			words[0] += fmt.Sprintf(" (%d)", x.pid)
		}
		if x.gpu != "" {
			words[0] += " on GPU " + x.gpu
		}
	}
	switch {
	case x.class != "":
		words = append(words, x.class+" memory")
	case x.gpu == "":
		words = append(words, "GPU memory")
	}
	return strings.Join(words, ", ")
}

// account returns the section's account, an empty one if it has none of its own.
func (x section) account(accounts []snapshot.Account) *snapshot.Account {
	for i := range accounts {
		if a := &accounts[i]; x.class == "" && a.PID == x.pid && a.GPU == x.gpu {
			return a
		}
	}
	return &snapshot.Account{}
}

// write writes a table for each section of the samples, with a row for what is the
// same in all columns, the largest first, and under each row the n stacks that hold
// most of it. What the section's account says of its total and its lines is beside
// them.
func (by By) write(page *render.Page, samples []*snapshot.Sample, accounts []snapshot.Account, n int) {
	sections := by.sections(samples)
	ordered := slices.SortedFunc(maps.Keys(sections), func(a, b section) int {
		return cmp.Or(
			strings.Compare(a.class, b.class),
			cmp.Compare(sections[b].InuseBytes, sections[a].InuseBytes),
			cmp.Compare(a.pid, b.pid),
			strings.Compare(a.process, b.process),
			strings.Compare(a.gpu, b.gpu),
		)
	})
	for _, x := range ordered {
		account := x.account(accounts)
		page.Heading("%s: %s%s", x.title(), bytefmt.Format(sections[x].InuseBytes), beside(account))
		by.table(page, sections[x], n)
		for _, l := range account.Lines {
			if l.Note != "" {
				page.Line("  %s: %s", l.Name, l.Note)
			}
		}
	}
}

func (by By) table(page *render.Page, all *gathered, n int) {
	groups := by.groups(all.samples)
	keys := slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		x, y := groups[a], groups[b]
		return cmp.Or(cmp.Compare(y.InuseBytes, x.InuseBytes), cmp.Compare(y.PeakBytes, x.PeakBytes), strings.Compare(a, b))
	})
	header := []string{">IN USE", ">OF ALL", ">OBJECTS", ">EACH", ">AT PEAK"}
	for _, c := range by {
		header = append(header, c.title)
	}
	rows := make([]render.Row, len(keys))
	for i, key := range keys {
		g := groups[key]
		values := by.values(g.samples[0])
		rows[i] = render.Row{
			Cells: append([]string{bytefmt.Format(g.InuseBytes), bytefmt.Percent(g.InuseBytes, all.InuseBytes),
				someObjects(g.InuseObjects), g.each(), bytefmt.Format(g.PeakBytes)}, values...),
			Below: g.stacks(values, n),
		}
	}
	page.Table(header, rows)
}

// someObjects is bytefmt.Count, and empty for 0: a remainder has no objects.
func someObjects(n int64) string {
	if n == 0 {
		return ""
	}
	return bytefmt.Count(n)
}

// sections returns the samples by section, those left out that neither hold anything
// nor did at the peak.
func (by By) sections(samples []*snapshot.Sample) map[section]*gathered {
	held := slices.DeleteFunc(slices.Clone(samples), func(s *snapshot.Sample) bool {
		return s.InuseBytes == 0 && s.InuseObjects == 0 && s.PeakBytes == 0
	})
	return gather(held, by.sectionOf)
}

// groups returns the samples by what they are in each column.
func (by By) groups(samples []*snapshot.Sample) map[string]*gathered {
	return gather(samples, func(s *snapshot.Sample) string { return fmt.Sprintf("%q", by.values(s)) })
}

func gather[K comparable](samples []*snapshot.Sample, key func(*snapshot.Sample) K) map[K]*gathered {
	out := make(map[K]*gathered)
	for _, s := range samples {
		k := key(s)
		if out[k] == nil {
			out[k] = &gathered{}
		}
		out[k].add(s)
	}
	return out
}

// gathered are samples and what they add up to.
type gathered struct {
	snapshot.Values
	samples []*snapshot.Sample
}

func (g *gathered) add(s *snapshot.Sample) {
	g.Add(&s.Values)
	g.samples = append(g.samples, s)
}

// each returns the size of an object, with a "~" if it is an average: the objects of
// one stack are known only together.
func (g *gathered) each() string {
	var objects, bytes int64
	equal := true
	for _, s := range g.samples {
		if s.InuseObjects > 0 { // a remainder has none
			objects, bytes = objects+s.InuseObjects, bytes+s.InuseBytes
			equal = equal && s.InuseBytes*objects == bytes*s.InuseObjects
		}
	}
	switch {
	case objects == 0:
		return ""
	case equal && bytes%objects == 0:
		return bytefmt.Format(bytes / objects)
	}
	return "~" + bytefmt.Format(bytes/objects)
}

// stacks returns a line for each of the n stacks that hold most, those that look
// the same taken together. What the row's cells say is not said again.
func (g *gathered) stacks(cells []string, n int) (lines []string) {
	held := make(map[string]int64)
	for _, s := range g.samples {
		if text := below(s.Frames(), cells); s.InuseBytes != 0 && text != "" {
			held[text] += s.InuseBytes
		}
	}
	texts := slices.SortedFunc(maps.Keys(held), func(a, b string) int {
		return cmp.Or(cmp.Compare(held[b], held[a]), strings.Compare(a, b))
	})
	shown := min(n, len(texts))
	for _, text := range texts[:shown] {
		lines = append(lines, fmt.Sprintf("%8s  %s", bytefmt.Format(held[text]), text))
	}
	if rest := texts[shown:]; n > 0 && len(rest) > 0 {
		var bytes int64
		for _, text := range rest {
			bytes += held[text]
		}
		lines = append(lines, fmt.Sprintf("%8s  under %d more", bytefmt.Format(bytes), len(rest)))
	}
	return lines
}

// below returns the frames that tell most of those that cells do not name: a cause
// in brackets, the call.
func below(frames []*snapshot.Location, cells []string) string {
	name := func() string { return frames[0].Lines[0].Function }
	if len(frames) > 1 && slices.ContainsFunc(cells, func(cell string) bool { return name() == "["+cell+"]" }) {
		frames = frames[1:]
	}
	if !slices.Contains(cells, strings.Trim(name(), "[]")) {
		return render.Telling(frames, 4)
	}
	_, rest, _ := strings.Cut(render.Telling(frames, 4), " < ")
	return rest
}

// pointers returns where samples are.
func pointers(samples []snapshot.Sample) []*snapshot.Sample {
	out := make([]*snapshot.Sample, len(samples))
	for i := range samples {
		out[i] = &samples[i]
	}
	return out
}
