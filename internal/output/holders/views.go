package holders

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A By is what a report has a row for each of.
type By string

// The views of a reading.
const (
	Path      By = "path"
	Parameter By = "parameter"
	Shape     By = "shape"
	Retainer  By = "retainer"
)

// Names returns the names of all views, the default one first.
func Names() []string {
	return []string{string(Path), string(Parameter), string(Shape), string(Retainer)}
}

// ParseBy returns the view with a name.
func ParseBy(name string) (By, error) {
	if !slices.Contains(Names(), name) {
		return "", fmt.Errorf("cannot show holders by %q: use %s", name, strings.Join(Names(), ", "))
	}
	return By(name), nil
}

// A view says what a table has.
type view struct {
	title   string
	figures []table.Column
	order   []int // figures that rows are sorted by, and that add up to the total, but for retainers
	keys    []table.Column
	name    int // the key that says what a sum is of
	// rows are of some storages. exact: every path has a row of its own, and else those
	// that are alike have one.
	rows func(storages []*holder.Storage, r *holder.Reading, exact bool) []row
}

// A row has a value for each key and each figure.
type row struct {
	keys    []string
	figures []int64
	below   string // a line under it, "" for none
}

var views = map[By]*view{
	Path: {
		title:   "By path",
		figures: []table.Column{table.SomeBytes("BYTES").As("bytes"), table.SomeCount("STORAGES").As("storages")},
		order:   []int{0},
		keys:    []table.Column{table.Text("ROLE").As("role"), table.Ending("HOLDER").As("holder")},
		name:    1,
		rows:    byPath,
	},
	Parameter: {
		title: "By parameter",
		figures: []table.Column{table.SomeBytes("PARAMETER").As("parameter_bytes"), table.SomeBytes("GRADIENT").As("gradient_bytes"),
			table.SomeBytes("OPTIMIZER STATE").As("optimizer_state_bytes"), table.SomeBytes("OTHER").As("other_bytes")},
		order: []int{figureParameter, figureGradient, figureState, figureOther},
		keys:  []table.Column{table.Text("SHAPE").As("shape"), table.Text("DTYPE").As("dtype"), table.Ending("NAME").As("parameter")},
		name:  2,
		rows:  byParameter,
	},
	Shape: {
		title:   "By shape",
		figures: []table.Column{table.SomeCount("COUNT").As("storages"), table.SomeBytes("BYTES").As("bytes")},
		order:   []int{1},
		keys:    []table.Column{table.Text("SHAPE").As("shape"), table.Text("DTYPE").As("dtype"), table.Text("CLASS").As("class")},
		rows:    byShape,
	},
	Retainer: {
		title: "What would be freed",
		figures: []table.Column{table.SomeBytes("FREED WITH IT").As("retained_bytes"), table.SomeBytes("AUTOGRAD GRAPHS").As("graph_bytes"),
			table.SomeCount("STORAGES").As("storages"), table.SomeCount("ITEMS").As("items")},
		order: []int{0},
		keys:  []table.Column{table.Text("CLASS").As("class"), table.Ending("HOLDER").As("holder")},
		rows:  byRetainer,
	},
}

// An identity is the keys of a row, of which no view has more.
type identity [3]string

func identityOf(keys []string) (id identity) {
	copy(id[:], keys)
	return id
}

// A sum adds up rows with the same keys.
type sum struct {
	rows  map[identity]*row
	width int
}

func newSum(figures int) *sum { return &sum{make(map[identity]*row), figures} }

// row returns the one with some keys, a new one if need be.
func (s *sum) row(keys ...string) *row {
	id := identityOf(keys)
	if s.rows[id] == nil {
		s.rows[id] = &row{keys: slices.Clone(keys), figures: make([]int64, s.width)}
	}
	return s.rows[id]
}

// sorted returns the rows, the largest first.
func (s *sum) sorted(figure ...int) []row {
	out := make([]row, 0, len(s.rows))
	for _, r := range s.rows {
		out = append(out, *r)
	}
	sortRows(out, figure...)
	return out
}

// sortRows sorts by the sum of some figures, the largest first: growth before what shrank.
func sortRows(rows []row, figures ...int) {
	of := func(r *row) (n int64) {
		for _, i := range figures {
			n += r.figures[i]
		}
		return n
	}
	abs := func(n int64) int64 { return max(n, -n) }
	sorting.Stable(rows, func(a, b row) int {
		x, y := of(&a), of(&b)
		return cmp.Or(cmp.Compare(abs(y), abs(x)), cmp.Compare(y, x), slices.Compare(a.keys, b.keys))
	})
}

func byPath(storages []*holder.Storage, _ *holder.Reading, exact bool) []row {
	out := newSum(2)
	for _, s := range storages {
		name, role := s.Name(), s.Role.String()
		if !exact {
			name = holder.Alike(name)
		}
		r := out.row(role, name)
		r.figures[0] += size(s.Bytes)
		r.figures[1]++
		if len(s.More) > 0 && (s.Role == holder.NoRole || s.Role == holder.Activation) && r.below == "" {
			r.below = "also held by " + s.More[0]
			if s.Holders > 2 {
				r.below += fmt.Sprintf(" and %d more", s.Holders-2)
			}
		}
	}
	return out.sorted(0)
}

func byShape(storages []*holder.Storage, _ *holder.Reading, _ bool) []row {
	out := newSum(2)
	for _, s := range storages {
		r := out.row(shape(s.Shape), s.DType, s.Class)
		r.figures[0]++
		r.figures[1] += size(s.Bytes)
	}
	return out.sorted(1)
}

func shape(dimensions []int64) string {
	words := make([]string, len(dimensions))
	for i, n := range dimensions {
		words[i] = strconv.FormatInt(n, 10)
	}
	return "(" + strings.Join(words, ", ") + ")"
}

func byRetainer(_ []*holder.Storage, r *holder.Reading, exact bool) []row {
	out := newSum(4)
	all := r.Retainers
	if !exact {
		all = holder.AlikeRetainers(all)
	}
	for i := range all {
		x := &all[i]
		of := out.row(x.Class, x.Holder)
		for i, n := range []int64{size(x.Retained), size(x.Graph), int64(x.Storages), int64(x.Items)} {
			of.figures[i] += n
		}
	}
	return out.sorted(0)
}

// Figures of the view by parameter.
const (
	figureParameter = iota
	figureGradient
	figureState
	figureOther
	parameterFigures
)

// byParameter has a row for each parameter that a module names, with its gradient and what
// optimizers have of it, and one for each of the roles of what is left.
func byParameter(storages []*holder.Storage, _ *holder.Reading, _ bool) []row {
	out := newSum(parameterFigures)
	rows := make(map[string]*row) // by each path to the parameter
	for _, s := range storages {
		if s.Role != holder.Parameter {
			continue
		}
		r := out.row(shape(s.Shape), s.DType, holder.Dotted(s.Name()))
		r.figures[figureParameter] += size(s.Bytes)
		for name := range paths(s) {
			if rows[name] == nil || name == s.Holder {
				rows[name] = r
			}
		}
	}
	rest := newSum(parameterFigures)
	for _, s := range storages {
		switch s.Role {
		case holder.Parameter:
		case holder.Gradient:
			r := parameterOf(s, rows, func(path string) []string { return []string{strings.TrimSuffix(path, ".grad")} })
			if r == nil {
				r = rest.row("", "", "[gradients of other tensors]")
			}
			r.figures[figureGradient] += size(s.Bytes)
		case holder.OptimizerState:
			r := parameterOf(s, rows, holder.Keys)
			if r == nil {
				r = rest.row("", "", "[state of optimizers for no parameter]")
			}
			r.figures[figureState] += size(s.Bytes)
		default:
			rest.row("", "", others[s.Role]).figures[figureOther] += size(s.Bytes)
		}
	}
	all := []int{figureParameter, figureGradient, figureState, figureOther}
	return append(out.sorted(all...), rest.sorted(all...)...)
}

var others = map[holder.Role]string{holder.NoRole: "[other tensors]", holder.Buffer: "[buffers]", holder.Activation: "[activations]"}

// paths yields every path to a storage that is known.
func paths(s *holder.Storage) map[string]bool {
	out := map[string]bool{s.Name(): true}
	for _, m := range s.More {
		out[m] = true
	}
	return out
}

// parameterOf returns the row of the parameter that a path of s names, nil for none.
func parameterOf(s *holder.Storage, rows map[string]*row, names func(string) []string) *row {
	for _, path := range slices.Sorted(maps.Keys(paths(s))) {
		for _, name := range names(path) {
			if r := rows[name]; r != nil {
				return r
			}
		}
	}
	return nil
}

// between returns after less before: what came and what went.
func (v *view) between(before, after []row) (out []row) {
	all := newSum(len(v.figures))
	add := func(rows []row, sign int64) {
		for _, r := range rows {
			to := all.row(r.keys...)
			for i, n := range r.figures {
				to.figures[i] += sign * n
			}
		}
	}
	add(after, 1)
	add(before, -1)
	for _, r := range all.rows {
		if slices.ContainsFunc(r.figures, func(n int64) bool { return n != 0 }) {
			out = append(out, *r)
		}
	}
	return out
}

// negative returns rows of what went.
func negative(rows []row) (out []row) {
	for _, r := range rows {
		r = row{keys: r.keys, figures: slices.Clone(r.figures)}
		for i := range r.figures {
			r.figures[i] = -r.figures[i]
		}
		out = append(out, r)
	}
	return out
}
