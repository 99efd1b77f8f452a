package export

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A By is what a page has a row for each of: labels, and what memory is for.
type By []column

// A column tells samples apart.
type column struct {
	name  string
	title string // of the column
	of    func(*snapshot.Sample) string
	all   func(*snapshot.Sample) []string // of a nested one
	parts *parts                          // where a sample has several values beside each other
}

// with names what is shown beside a column: the call that made the driver take
// memory, and which of the processes of one name it is.
var with = map[string]string{"cause": "api", "process": "pid"}

// allColumns returns each column once, causes first.
func allColumns() By {
	out := By{{name: "cause", title: "WHAT", of: render.Cause}}
	for i := range snapshot.AllLabels {
		l := &snapshot.AllLabels[i]
		out = append(out, column{name: l.Name, title: strings.ToUpper(cmp.Or(l.Title, l.Name)), of: func(s *snapshot.Sample) string { return l.Get(&s.Labels) }})
	}
	out = append(out, column{name: "function", title: "FUNCTION"}, column{name: "line", title: "LINE"}, column{name: "size", title: "SIZE", parts: &ofSizes}, column{name: "freed-by", title: "FREED BY", parts: &ofFreers})
	for i := range out {
		if all := nested[out[i].name]; all != nil {
			out[i].all, out[i].of = all, innermost(all)
		}
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

// ParseBy returns the columns with names, in their order. Of nested ones the first has
// totals: with those of two, a stack would be in as many rows as it has pairs of frames.
func ParseBy(names ...string) (By, error) {
	all := allColumns()
	var out By
	for _, name := range names {
		if all.index(name) < 0 {
			return nil, fmt.Errorf("cannot group by %q: use %s", name, strings.Join(ByNames(), ", "))
		}
		for _, n := range []string{name, with[name]} {
			if n == "" || out.index(n) >= 0 {
				continue
			}
			c := all[all.index(n)]
			if i := out.parted(); i >= 0 && c.parts != nil {
				return nil, fmt.Errorf("cannot group by %s and %s together", out[i].name, name)
			}
			if out.nests() {
				c.all = nil
			}
			out = append(out, c)
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

// write writes what is held, as show does it.
func (by By) write(page *render.Page, samples []*snapshot.Sample, accounts []snapshot.Account, n int) {
	by.show(page, samples, accounts, &holdings, n)
}

// show writes a table for each section of the samples, with a row for what is the
// same in all columns, the largest first, and under each row the n stacks that have
// most of it. What the section's account says of its total and its lines is beside
// them.
func (by By) show(page *render.Page, samples []*snapshot.Sample, accounts []snapshot.Account, show *face, n int) {
	sections := by.sections(samples, show.shown)
	for _, x := range by.ordered(sections, show) {
		account := x.account(accounts)
		if show == &turnover {
			account = &snapshot.Account{} // it is about what is held
		}
		page.Heading("%s: %s%s", x.title(), show.says(&sections[x].amount), beside(account))
		by.table(page, sections[x], show, n)
		for _, l := range account.Lines {
			if l.Note != "" {
				page.Line("  %s: %s", l.Name, l.Note)
			}
		}
	}
}

func (by By) table(page *render.Page, all *gathered, show *face, n int) {
	groups := by.groups(all.samples)
	whole := show.of(&all.amount)
	header := []string{">" + show.title, ">OF ALL"}
	if by.nests() {
		header = append(header, ">TOTAL", ">OF ALL")
	}
	header = append(header, show.rest...)
	for _, c := range by {
		title := c.title
		if c.all != nil {
			title = "<" + title // a place, or a path: its end tells most
		}
		header = append(header, title)
	}
	var rows []render.Row
	for _, key := range rowsOf(groups, show) {
		g := groups[key]
		cells := []string{bytefmt.Format(show.of(&g.amount)), bytefmt.Percent(show.of(&g.amount), whole)}
		if by.nests() {
			cells = append(cells, bytefmt.Format(show.of(&g.total)), bytefmt.Percent(show.of(&g.total), whole))
		}
		cells = append(cells, show.cells(g)...)
		rows = append(rows, render.Row{Cells: append(cells, g.values...), Below: g.stacks(g.values, show, n)})
	}
	page.Table(header, rows)
}

// ordered returns the sections, those of GPUs first, the largest first.
func (by By) ordered(sections map[section]*gathered, show *face) []section {
	return slices.SortedFunc(maps.Keys(sections), func(a, b section) int {
		return cmp.Or(
			strings.Compare(a.class, b.class),
			cmp.Compare(show.of(&sections[b].amount), show.of(&sections[a].amount)),
			cmp.Compare(a.pid, b.pid),
			strings.Compare(a.process, b.process),
			strings.Compare(a.gpu, b.gpu),
		)
	})
}

// rowsOf returns the keys of groups, the largest first.
func rowsOf(groups map[string]*gathered, show *face) []string {
	return slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		x, y := groups[a], groups[b]
		return cmp.Or(cmp.Compare(show.of(&y.amount), show.of(&x.amount)), cmp.Compare(show.of(&y.total), show.of(&x.total)),
			cmp.Compare(y.PeakBytes, x.PeakBytes), cmp.Compare(y.total.PeakBytes, x.total.PeakBytes), strings.Compare(a, b))
	})
}

// someObjects is bytefmt.Count, and empty for 0: a remainder has no objects.
func someObjects(n int64) string {
	if n == 0 {
		return ""
	}
	return bytefmt.Count(n)
}

// sections returns the samples that are shown, by section.
func (by By) sections(samples []*snapshot.Sample, shown func(*amount) bool) map[section]*gathered {
	kept := slices.DeleteFunc(slices.Clone(samples), func(s *snapshot.Sample) bool {
		return !shown(&amount{Values: s.Values})
	})
	return gather(kept, by.sectionOf)
}

// groups returns the samples by what they are in each column, with the total of those
// inside of that.
func (by By) groups(samples []*snapshot.Sample) map[string]*gathered {
	out := make(map[string]*gathered)
	row := func(values []string) *gathered {
		key := fmt.Sprintf("%q", values)
		if out[key] == nil {
			out[key] = &gathered{values: values}
		}
		return out[key]
	}
	for _, s := range samples {
		row(by.values(s)).add(s)
		for _, values := range by.within(s) {
			row(values).total.add(s)
		}
	}
	return out
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
	amount
	samples []*snapshot.Sample
	values  []string // in each column, of a row
	total   amount   // of samples inside of those too
}

func (g *gathered) add(s *snapshot.Sample) {
	g.amount.add(s)
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

// stacks returns a line for each of the n stacks that have most of what is shown, those
// that look the same taken together. What the row's cells say is not said again.
func (g *gathered) stacks(cells []string, show *face, n int) (lines []string) {
	held := make(map[string]int64)
	for _, s := range g.samples {
		bytes := show.of(&amount{Values: s.Values})
		if text := below(s.Frames(), cells); bytes != 0 && text != "" {
			held[text] += bytes
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
