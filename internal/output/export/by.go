package export

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/keyed"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A By is the columns that the rows of a page differ in: labels, and the cause of memory.
type By []column

// A column is a property in which samples differ.
type column struct {
	name  string
	title string // of the column
	of    func(*snapshot.Sample) string
	all   func(*snapshot.Sample) []string // of a nested one
	parts *parts                          // where a sample has several values beside each other
	// among returns all, where values depend on the other samples.
	among func([]*snapshot.Sample) (all func(*snapshot.Sample) []string)
	// ofProcess: all memory of a process has one value.
	ofProcess bool
	beside    bool // it was not asked for
	empty     bool // no sample has a value, and none is made up
}

// with names the columns that are shown beside others: the call that made the driver use
// memory, what tells processes apart, and pods of one name.
var with = map[string][]string{"cause": {"api"}, "process": {"pid", "user", "command"}, "pod": {"namespace"}, "container": {"pod"}, "job": {"service"}, "rank": {"pid"}}

// allColumns returns each column once, causes first.
func allColumns() By {
	out := By{{name: "cause", title: "WHAT", of: snapshot.Cause}}
	for i := range snapshot.AllLabels {
		l := &snapshot.AllLabels[i]
		out = append(out, column{name: l.Name, title: strings.ToUpper(cmp.Or(l.Title, l.Name)), of: func(s *snapshot.Sample) string { return l.Get(&s.Labels) },
			ofProcess: l.OfProcess() || l.Name == "process" || l.Name == "pid"})
	}
	out = append(out, column{name: "line", title: "LINE", among: ownLines}, column{name: "function", title: "FUNCTION"}, column{name: "library-line", title: "LINE"}, column{name: "size", title: "SIZE", parts: &ofSizes}, column{name: "freed-by", title: "FREED BY", parts: &ofFreers},
		column{name: "annotation", title: "ANNOTATION"}, column{name: "compiled", title: "COMPILED"}, column{name: "pattern", title: "PATTERN", of: func(*snapshot.Sample) string { return "" }})
	out[out.index("operator")].of, out[out.index("holder")].of = operator, holderAlike
	for i := range out {
		if all := notCached(nested[out[i].name]); all != nil {
			out[i].all, out[i].of = all, innermost(all)
		}
	}
	return out
}

// ByNames returns the names that ParseBy accepts.
func ByNames() []string { return allColumns().names() }

// ParseBy returns the columns with names, in their order. The first nested column has totals,
// and no other: with two, a stack would be in as many rows as it has pairs of frames.
func ParseBy(names ...string) (By, error) {
	all := allColumns()
	var out By
	for _, name := range names {
		if text := elsewhereSaid[strings.TrimSuffix(name, "s")]; text != "" {
			return nil, fmt.Errorf("cannot group by %q: %s", name, text)
		}
		if all.index(name) < 0 {
			return nil, fmt.Errorf("cannot group by %q%s: use %s", name, nearest(name), strings.Join(ByNames(), ", "))
		}
		for i, n := range append([]string{name}, with[name]...) {
			if at := out.index(n); at >= 0 {
				out[at].beside = out[at].beside && i > 0
				continue
			}
			c := all[all.index(n)]
			c.beside = i > 0
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

// elsewhereSaid names the commands that answer what no grouping does.
var elsewhereSaid = map[string]string{
	"shape": "shapes are a page of their own: give --by shape alone",
	"layer": "the layers of a model are its modules. Trace with --tensors --holders 30s --record RUN, then give --by module_path; without --holders, --by module shows their classes",
}

// nearest suggests a grouping that begins like a name that none has, "" for none.
func nearest(name string) string {
	for _, known := range ByNames() {
		if len(name) >= 4 && strings.HasPrefix(known, name[:4]) {
			return " (did you mean " + known + "?)"
		}
	}
	return ""
}

func (by By) names() (names []string) {
	for _, c := range by {
		names = append(names, c.name)
	}
	return names
}

func (by By) index(name string) int {
	return slices.IndexFunc(by, func(c column) bool { return c.name == name })
}

// causeBy is what ParseBy returns for "cause".
var causeBy, _ = ParseBy("cause")

// values returns the value of s in each column.
func (by By) values(s *snapshot.Sample) []string {
	out := make([]string, len(by))
	for i := range by {
		out[i] = by[i].valueOf(s)
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

// sectionOf returns the section that a sample is in. Sections do not differ in what is a
// column.
func (by By) sectionOf(s *snapshot.Sample) section {
	x := section{process: s.Process, pid: s.PID, gpu: s.GPU}
	if !snapshot.OnGPU(s.Kind) {
		x.class = snapshot.Class(s.Kind)
	}
	if slices.ContainsFunc(by, func(c column) bool { return c.ofProcess }) {
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

// show writes a table for each section of the samples. It has a row for each combination of
// values, the largest rows first, and under each row the n stacks that have most of it. The
// section's account adds notes, and a comparison with the driver's figure.
func (by By) show(page *render.Page, samples []*snapshot.Sample, accounts []snapshot.Account, show *face, rows, n int) {
	sections := by.sections(samples, show.shown)
	for _, x := range by.ordered(sections, show) {
		account := x.account(accounts)
		if show == &turnover || show == &peaks {
			account = &snapshot.Account{} // an account is about memory that is in use
		}
		page.Heading("%s: %s%s", x.title(), show.says(&sections[x].amount), beside(account))
		by.table(page, sections[x], show, rows, n)
		notes(page, account)
	}
}

func notes(page *render.Page, a *snapshot.Account) {
	for _, l := range a.Lines {
		if l.Note != "" {
			page.Line("  %s: %s", l.Name, l.Note)
		}
	}
}

// summary says in a sentence which rows have most of what GPUs hold.
func (by By) summary(page *render.Page, samples []*snapshot.Sample, show *face) {
	const most = 6
	if show == &turnover || by.Parts() {
		return
	}
	asked := slices.DeleteFunc(slices.Clone(by), func(c column) bool { return c.beside })
	if len(asked) > 1 {
		asked[:1].summary(page, samples, show)
		if len(asked.sections(samples, show.shown)) < 2 {
			return // a table has the rest
		}
	}
	rows := gather(samples, func(s *snapshot.Sample) string {
		if !snapshot.OnGPU(s.Kind) {
			return ""
		}
		values := asked.values(s)
		for i := range values {
			values[i] = render.Cut(values[i], 60)
		}
		return strings.Join(values, " ")
	})
	bytes := map[string]int64{}
	for name, g := range rows {
		if name != "" {
			bytes[name] = show.of(&g.amount)
		}
	}
	says := func(name string) string {
		return fmt.Sprintf("%s (%s)", name, bytefmt.Format(bytes[name]))
	}
	if parts := listed(bytes, most, says); len(parts) > 1 {
		page.Line("By %s: %s.", strings.Join(asked.names(), " and "), strings.Join(parts, ", "))
	}
}

func (by By) table(page *render.Page, all *group, show *face, most, n int) {
	groups := by.groups(all.samples)
	whole := show.of(&all.amount)
	t := table.New(table.Bytes(show.title), table.Share("OF ALL"))
	rows := rowsOf(groups, show)
	if n < math.MaxInt && by.index("line") >= 0 { // lines that only called others
		rows = slices.DeleteFunc(rows, func(key string) bool { return show.of(&groups[key].amount) == 0 })
	}
	if slices.ContainsFunc(by[1:], func(c column) bool { return !c.beside }) {
		// Rows with one value in the first column follow each other.
		first := map[string]int64{}
		for _, g := range groups {
			first[g.values[0]] += show.of(&g.amount)
		}
		slices.SortStableFunc(rows, func(a, b string) int {
			x, y := groups[a].values[0], groups[b].values[0]
			return cmp.Or(cmp.Compare(first[y], first[x]), strings.Compare(x, y))
		})
	}
	nests := by.nests() && slices.ContainsFunc(rows, func(key string) bool {
		return show.of(&groups[key].amount) != show.of(&groups[key].total)
	})
	if nests {
		t.Columns = append(t.Columns, table.Bytes("WITH CALLED"), table.Share("OF ALL"))
	}
	counts := by.index("module") >= 0 && slices.ContainsFunc(rows, func(key string) bool { return groups[key].modules() > 0 })
	if counts {
		t.Columns = append(t.Columns, table.SomeCount("MODULES"))
	}
	t.Columns = slices.Concat(t.Columns, show.rest, by.columns())
	shown := rows[:min(most, len(rows))]
	for _, key := range shown {
		g := groups[key]
		cells := []any{show.of(&g.amount), table.Part{Of: show.of(&g.amount), Whole: whole}}
		if nests {
			cells = append(cells, show.of(&g.total), table.Part{Of: show.of(&g.total), Whole: whole})
		}
		if counts {
			cells = append(cells, g.modules())
		}
		t.AddAbove(g.stacks(g.values, show, n), slices.Concat(cells, show.cells(g), table.Texts(g.values))...)
	}
	t.Text(page)
	if rest := rows[len(shown):]; len(rest) > 0 {
		var bytes int64
		for _, key := range rest {
			bytes += show.of(&groups[key].amount)
		}
		page.Line("  and %d more, with %s (-n -1)", len(rest), bytefmt.Format(bytes))
	}
}

// columns returns the columns of pages.
func (by By) columns() (out []table.Column) {
	for _, c := range by {
		kind := table.Text
		switch {
		case c.among != nil, c.name == "command":
			kind = table.Beginning // it begins with the file
		case c.all != nil:
			kind = table.Ending // a line, or a path
		}
		out = append(out, kind(c.title))
	}
	return out
}

// ordered returns the sections, those of GPUs first, the largest first.
func (by By) ordered(sections map[section]*group, show *face) []section {
	return sorting.Keys(sections, func(a, b section) int {
		return cmp.Or(
			strings.Compare(a.class, b.class),
			cmp.Compare(show.of(&sections[b].amount), show.of(&sections[a].amount)),
			cmp.Compare(a.pid, b.pid),
			strings.Compare(a.process, b.process),
			strings.Compare(a.gpu, b.gpu),
		)
	})
}

// rowsOf returns the keys of groups, those with most of the shown figure first.
func rowsOf(groups map[string]*group, show *face) []string {
	return slices.SortedFunc(maps.Keys(groups), func(a, b string) int {
		x, y := groups[a], groups[b]
		return cmp.Or(cmp.Compare(show.of(&y.amount), show.of(&x.amount)), cmp.Compare(show.of(&y.total), show.of(&x.total)),
			cmp.Compare(y.PeakBytes, x.PeakBytes), cmp.Compare(y.total.PeakBytes, x.total.PeakBytes), strings.Compare(a, b))
	})
}

// sections returns the samples that are shown, by section.
func (by By) sections(samples []*snapshot.Sample, shown func(*amount) bool) map[section]*group {
	kept := slices.DeleteFunc(slices.Clone(samples), func(s *snapshot.Sample) bool {
		return !shown(&amount{Values: s.Values})
	})
	return gather(kept, by.sectionOf)
}

// groups returns the samples by their values in all columns, with the total of the samples
// inside of each.
func (by By) groups(samples []*snapshot.Sample) map[string]*group {
	out := make(map[string]*group)
	row := func(values []string) *group {
		key := fmt.Sprintf("%q", values)
		if out[key] == nil {
			out[key] = &group{values: values}
		}
		return out[key]
	}
	for _, s := range samples {
		g := row(by.values(s))
		g.add(s)
		for _, values := range by.within(s) {
			row(values).total.add(s)
		}
	}
	return out
}

func gather[K comparable](samples []*snapshot.Sample, key func(*snapshot.Sample) K) map[K]*group {
	out := make(map[K]*group)
	for _, s := range samples {
		keyed.At(out, key(s)).add(s)
	}
	return out
}

// A group is samples and their sum.
type group struct {
	amount
	samples []*snapshot.Sample
	values  []string // in each column, of a row
	total   amount   // with the samples inside of the row
}

func (g *group) add(s *snapshot.Sample) {
	g.amount.add(s)
	g.samples = append(g.samples, s)
}

// inuse are the bytes that are in use.
func (g *group) inuse() int64 { return g.InuseBytes }

// modules counts the modules that made the samples, where paths to them are known.
func (g *group) modules() int64 {
	return int64(len(gather(slices.DeleteFunc(slices.Clone(g.samples), func(s *snapshot.Sample) bool { return s.Module == "" || s.ModulePath == "" }),
		func(s *snapshot.Sample) string { return s.ModulePath })))
}

// each returns the size of an object of g. The objects of one stack are known only together.
func (g *group) each() string {
	var objects, bytes int64
	equal := true
	for _, s := range g.samples {
		if s.InuseObjects > 0 { // a remainder has none
			objects, bytes = objects+s.InuseObjects, bytes+s.InuseBytes
			equal = equal && s.InuseBytes*objects == bytes*s.InuseObjects
		}
	}
	return each(objects, bytes, equal)
}

// each returns the size of an object, with a "~" if it is an average.
func each(objects, bytes int64, equal bool) string {
	switch {
	case objects == 0:
		return ""
	case equal && bytes%objects == 0:
		return bytefmt.Format(bytes / objects)
	}
	return "~" + bytefmt.Format(bytes/objects)
}

// stacks returns a line for each of the n stacks that have most of the shown figure. Stacks
// that look the same are one. A line does not repeat the row's cells.
func (g *group) stacks(cells []string, show *face, n int) (lines []string) {
	held := make(map[string]int64)
	for _, s := range g.samples {
		bytes := show.of(&amount{Values: s.Values})
		if text := below(s.Frames(), cells); bytes != 0 && text != "" {
			if s.Kind == snapshot.Cached { // the segment: who had tensors in it is not known
				text = "taken for " + text
			}
			held[text] += bytes
		}
	}
	texts := sorting.Largest(held, itself)
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

// below returns the most helpful frames, without those at the leaf that cells name: a cause in brackets,
// the call.
func below(frames []*snapshot.Location, cells []string) string {
	for range 2 {
		if len(frames) > 0 && slices.ContainsFunc(cells, func(cell string) bool {
			return strings.Trim(cell, "[]") == strings.Trim(frames[0].Lines[0].Function, "[]")
		}) {
			frames = frames[1:]
		}
	}
	return render.Brief(frames, 4)
}

// pointers returns a pointer to each sample.
func pointers(samples []snapshot.Sample) []*snapshot.Sample {
	out := make([]*snapshot.Sample, len(samples))
	for i := range samples {
		out[i] = &samples[i]
	}
	return out
}
