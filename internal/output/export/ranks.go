package export

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// maxRankColumns is how many ranks have a column each. Of more, the least and the most are shown.
const maxRankColumns = 4

// Split returns the processes of a snapshot that hold memory on a GPU, each as a snapshot: the
// ranks of a job that was recorded as a whole. Their names have the rank, where the command line
// or the environment tells it, and else the GPU on which each holds most; they are in that order.
func Split(s *snapshot.Snapshot) (ranks []Side) {
	type process struct {
		gpu  string // that it holds most on
		rank string
	}
	byPID := map[int]process{}
	for pid, samples := range gather(onGPU(s), func(x *snapshot.Sample) int { return x.PID }) {
		gpus := gather(samples.samples, func(x *snapshot.Sample) string { return x.GPU })
		var p process
		for _, gpu := range slices.Sorted(maps.Keys(gpus)) {
			if most := gpus[p.gpu]; most == nil || gpus[gpu].InuseBytes > most.InuseBytes {
				p.gpu = gpu
			}
		}
		for _, x := range samples.samples {
			if x.Who != nil && p.rank == "" {
				p.rank = cmp.Or(x.Who.Rank, rankOf(x.Who.Command))
			}
		}
		if samples.InuseBytes > 0 {
			byPID[pid] = p
		}
	}
	number := func(text string) int { n, _ := strconv.Atoi(text); return n }
	pids := slices.SortedFunc(maps.Keys(byPID), func(a, b int) int {
		x, y := byPID[a], byPID[b]
		return cmp.Or(cmp.Compare(number(x.rank), number(y.rank)), cmp.Compare(number(x.gpu), number(y.gpu)), strings.Compare(x.gpu, y.gpu), cmp.Compare(a, b))
	})
	at := map[int]int{}
	for i, pid := range pids {
		at[pid] = i
		name := fmt.Sprintf("pid %d", pid)
		if rank := byPID[pid].rank; rank != "" {
			name = fmt.Sprintf("rank %s (%d)", rank, pid)
		}
		ranks = append(ranks, Side{&snapshot.Snapshot{Meta: s.Meta}, name})
	}
	for i := range s.Samples {
		if rank, ok := at[s.Samples[i].PID]; ok {
			ranks[rank].Samples = append(ranks[rank].Samples, s.Samples[i])
		}
	}
	return ranks
}

// launched finds the rank on this machine that torch.distributed.launch gives to a program.
var launched = regexp.MustCompile(`(?:^|\s)--local[-_]rank[= ](\d+)(?:\s|$)`)

// rankOf returns the rank that a command line tells, "" for none.
func rankOf(command string) string {
	if m := launched.FindStringSubmatch(command); m != nil {
		return m[1]
	}
	return ""
}

// contents returns what ranks hold.
func contents(ranks []Side) []*snapshot.Snapshot {
	out := make([]*snapshot.Snapshot, len(ranks))
	for i := range ranks {
		out[i] = ranks[i].Snapshot
	}
	return out
}

// Ranks writes what the ranks of a job hold alike, and in what they differ: the rows of o.By, or
// the lines of the program. There are at least two. The text when says at which moment, and
// begins with a comma or a space. The commands come next, if the ranks differ.
func Ranks(w io.Writer, ranks []Side, when string, o Options, next ...Command) error {
	by := o.By
	if by == nil {
		by = lineBy
	}
	rows := tally(by, Align(contents(ranks)...)...)[""]
	total := &tallied{sums: sumTallied(rows, len(ranks))}
	alike := slices.DeleteFunc(slices.Clone(rows), (*tallied).differs)
	different := differences(rows, func(t *tallied) int64 {
		least, most := t.spread()
		return t.sums[most].InuseBytes - t.sums[least].InuseBytes
	})

	page := render.NewPage(w, o.Width, o.Color)
	least, most := total.spread()
	if total.sums[least].InuseBytes == total.sums[most].InuseBytes {
		page.Line("%d ranks hold %s each on GPUs%s.", len(ranks), bytefmt.Format(total.sums[most].InuseBytes), when)
	} else {
		page.Line("%d ranks hold %s to %s on GPUs%s: %s the least, %s the most.", len(ranks),
			bytefmt.Format(total.sums[least].InuseBytes), bytefmt.Format(total.sums[most].InuseBytes), when, ranks[least].Name, ranks[most].Name)
	}
	if text := onMoreGPUs(ranks); text != "" {
		page.Line("%s", text)
	}
	same := sumTallied(alike, 1)[0].InuseBytes
	page.Line("%s of each is the same in all: %d of %d rows, by %s.", bytefmt.Format(same), len(alike), len(alike)+len(different), strings.Join(by.names(), " and "))
	if len(different) == 0 {
		page.Line("No row differs.")
		return page.Flush("write the comparison of ranks")
	}
	page.Heading("What differs")
	shown := different[:o.top(len(different))]
	columns, cells := rankColumns(ranks)
	t := table.New(append(columns, by.columns()...)...)
	t.Add(append(cells(total), "all")...)
	for _, x := range shown {
		t.Add(append(cells(x), table.Texts(x.values)...)...)
	}
	t.Text(page)
	if rest := len(different) - len(shown); rest > 0 {
		page.Line("  and %d more (-n -1)", rest)
	}
	if len(next) > 0 {
		nextCommands(page, next)
	}
	return page.Flush("write the comparison of ranks")
}

// onMoreGPUs says which rank holds most on other GPUs than its own, which is the one that it holds most
// on, "" if all ranks are on as many GPUs. Often it is a context that a wrong device made.
func onMoreGPUs(ranks []Side) string {
	type rank struct {
		name, own, gpu string // gpu is the one with most of those that are not its own
		held, bytes    int64  // on own, and on gpu
		whose          string // what is on gpu
		gpus           int
	}
	var out []rank
	fewest := math.MaxInt
	for i := range ranks {
		gpus := gather(onGPU(ranks[i].Snapshot), func(s *snapshot.Sample) string { return s.GPU })
		maps.DeleteFunc(gpus, func(_ string, g *group) bool { return g.InuseBytes == 0 })
		fewest = min(fewest, len(gpus))
		if len(gpus) < 2 {
			continue
		}
		names := sorting.Largest(gpus, (*group).inuse)
		r := rank{name: ranks[i].Name, own: names[0], gpu: names[1], held: gpus[names[0]].InuseBytes, bytes: gpus[names[1]].InuseBytes, gpus: len(gpus)}
		x := overview{s: ranks[i].Snapshot, shown: inUse}
		r.whose = strings.Join(x.owners(gpus[r.gpu].samples, ownerName), ", ")
		out = append(out, r)
	}
	out = slices.DeleteFunc(out, func(r rank) bool { return r.gpus == fewest })
	if len(out) == 0 {
		return ""
	}
	most := slices.MaxFunc(out, func(a, b rank) int { return cmp.Compare(a.bytes, b.bytes) })
	text := fmt.Sprintf("%s holds %s on GPU %s, too (%s), beside %s on GPU %s", most.name, bytefmt.Format(most.bytes), most.gpu, most.whose, bytefmt.Format(most.held), most.own)
	if len(out) == 1 {
		return text + ". No other rank is on so many GPUs."
	}
	return fmt.Sprintf("%s. In all, %d of %d ranks are on more GPUs than the others.", text, len(out), len(ranks))
}

// rankColumns returns the columns before those of the rows, and a row's cells in them.
func rankColumns(ranks []Side) (columns []table.Column, cells func(*tallied) []any) {
	columns = []table.Column{table.Bytes("DIFFER BY")}
	if len(ranks) <= maxRankColumns {
		for _, r := range ranks {
			columns = append(columns, table.Bytes(strings.ToUpper(r.Name)))
		}
	} else {
		columns = append(columns, table.Bytes("LEAST"), table.Text("RANK"), table.Bytes("MEDIAN"), table.Bytes("MOST"), table.Text("RANK"))
	}
	return columns, func(t *tallied) []any {
		least, most := t.spread()
		low, high := t.sums[least].InuseBytes, t.sums[most].InuseBytes
		held := make([]int64, len(t.sums))
		out := []any{high - low}
		for i := range t.sums {
			held[i] = t.sums[i].InuseBytes
			out = append(out, held[i])
		}
		if len(ranks) <= maxRankColumns {
			return out
		}
		slices.Sort(held)
		return []any{high - low, low, ranks[least].Name, held[len(held)/2], high, ranks[most].Name}
	}
}
