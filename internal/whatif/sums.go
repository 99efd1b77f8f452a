package whatif

import (
	"math"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/whatif/allocator"
)

// reduction is PyTorch's function that sums. If it sums many rows into one, several blocks of threads do
// that at once, and each puts its part into a workspace. Before that, resized asks for the result.
const reduction, resized = "at::native::gpu_reduce_kernel", "at::meta::resize_reduction"

// What follows is as in ATen/native/cuda/Reduce.cuh, for sums of rows: a block of threads has 4 rows of
// threads, for 128 results. The rows are divided among blocks if each thread has manyRows of them. Then
// each has fewRows left, or more: there are no more blocks than the GPU runs at once.
const (
	threadRows, blockResults = 4, 128
	fewRows, manyRows        = 16, 256
	// manyBlocks is how many the H100 and the H200 run: 132 multiprocessors have 2048 threads each, and
	// a block has 128.
	manyBlocks = 132 * 2048 / 128
)

// A sum is what a sum of rows asks for beside its result.
type sum struct {
	input  curve
	result uint32 // units
	wide   uint32 // how many results there are in 4 bytes
	// flags: it is the memory by which blocks of threads wait for each other.
	flags bool
	// guessed: no recording has such memory for this sum.
	guessed bool
}

// workspace returns its size in bytes for an input of so many bytes, 0 for none.
func (s *sum) workspace(input uint64) uint64 {
	row := uint64(s.result) * unit
	perThread, grid := up(up(input, row), threadRows), uint64(s.result)*uint64(s.wide)
	if perThread < manyRows || grid > manyBlocks {
		return 0
	}
	blocks := max(min(up(manyBlocks, grid), up(perThread, fewRows)), up(perThread, manyRows))
	switch {
	case blocks < 2:
		return 0
	case s.flags:
		return 4 * grid
	}
	return row * uint64(s.wide) * blockResults * blocks
}

// explains reports whether the workspace may be for an input, both of which are blocks.
func (s *sum) explains(input, workspace block) bool {
	low, high := input.request()
	least, most := workspace.request()
	return s.workspace(high) >= least && s.workspace(low) <= most
}

// most returns the bytes of the largest input that explains a workspace, 0 if there is none or no limit.
func (s *sum) most(workspace block) float64 {
	blocks := uint64(workspace.units) / (uint64(s.result) * uint64(s.wide) * blockResults)
	input := blocks * fewRows * threadRows * uint64(s.result) * unit
	if more := input + 2*fewRows*threadRows*uint64(s.result)*unit; !s.explains(block{units: uint32(input / unit)}, workspace) || s.workspace(more) == s.workspace(input) {
		return 0
	}
	return float64(input)
}

// up returns a/b, rounded up.
func up(a, b uint64) uint64 { return (a + b - 1) / b }

// A sumKey is what sums at one place of a program have in common: the stack that asks for the result, as
// numbered has it, and the units of the result.
type sumKey struct {
	stack  int32
	result uint32
}

// An addend says what a sum adds up: the latest tensor of a stack.
type addend struct {
	stack int32
	wide  uint32 // as sum.wide
}

// A seenSum is a request for the result of a sum.
type seenSum struct {
	sumKey
	request   int
	workspace int32    // the tensor, -1 for none
	before    []uint32 // the latest tensors, until the next call
}

// nearSum is among how many tensors before a result its input is looked for, and guessedSum among how
// many where no workspace shows whether it was found.
const nearSum, guessedSum = 64, 24

// stack returns the stack of a tensor.
func (x *Run) stack(tensor uint32) Site {
	if s := x.site(tensor); int(s) < len(x.Sites) {
		return x.Sites[s]
	}
	return Site{}
}

// ofSum reports whether a request is for a workspace of a sum or its flags.
func (x *Run) ofSum(request int) bool {
	q := &x.Requests[request]
	return q.Op == allocator.Make && x.stack(q.Tensor).SumWorkspace
}

// eachSum calls f with each result of a sum. The numbers are those of stacks, by site.
func (x *Run) eachSum(numbers []int32, f func(s *seenSum)) {
	var made []uint32 // and not freed, the last ones
	for i := range x.Requests {
		q := &x.Requests[i]
		switch q.Op {
		case allocator.Free:
			if k := slices.Index(made, q.Tensor); k >= 0 {
				made = slices.Delete(made, k, k+1)
			}
			continue
		case allocator.Empty:
			continue
		}
		if x.stack(q.Tensor).SumResult {
			s := seenSum{sumKey{numbers[x.site(q.Tensor)], q.Units}, i, -1, made}
			if i+2 < len(x.Requests) && x.ofSum(i+1) && x.ofSum(i+2) {
				s.workspace = int32(x.Requests[i+1].Tensor)
			}
			f(&s)
		}
		if len(made) == nearSum {
			made = slices.Delete(made, 0, 1)
		}
		made = append(made, q.Tensor)
	}
}

// A lesson is one explanation of the sums with a key.
type lesson struct {
	sumKey
	addend
}

// learn returns what sums add up: tensors whose sizes explain the workspaces of all sums with one key, and
// that others had none. It leaves out sums of which no run has a workspace.
func learn(runs []Measured, numbers [][]int32) map[sumKey]addend {
	out, votes := map[sumKey]addend{}, map[lesson]int{} // -1 if it is wrong
	for i, m := range runs {
		blocks := m.Run.blocks()
		m.Run.eachSum(numbers[i], func(s *seenSum) {
			var workspace block
			if s.workspace >= 0 {
				out[s.sumKey] = addend{}
				workspace = blocks[s.workspace]
			}
			var seen []int32
			for _, t := range slices.Backward(s.before) {
				stack := numbers[i][m.Run.site(t)]
				if slices.Contains(seen, stack) {
					continue
				}
				seen = append(seen, stack)
				for wide := uint32(1); wide <= 2; wide++ {
					is, l := sum{result: s.result, wide: wide}, lesson{s.sumKey, addend{stack, wide}}
					if n := votes[l]; n < 0 || !is.explains(blocks[t], workspace) {
						votes[l] = -1
					} else {
						votes[l] = n + 1
					}
				}
			}
		})
	}
	for l, n := range votes {
		best, ok := out[l.sumKey]
		most := votes[lesson{l.sumKey, best}]
		if ok && n > 0 && (n > most || n == most && (l.addend.stack < best.stack || l.addend.stack == best.stack && l.wide < best.wide)) {
			out[l.sumKey] = l.addend
		}
	}
	return out
}

// addSums gives the workspaces of sums the sizes that PyTorch would ask for, and adds those for which the
// highest run has too few rows. The numbers are those of its stacks, by site.
func (f *Fit) addSums(learned map[sumKey]addend, numbers []int32) {
	counts := map[uint64]int{} // of sums, by rows that their inputs may have
	f.base.eachSum(numbers, func(s *seenSum) {
		var seen []uint64
		for _, t := range f.inputs(s) {
			if rows := f.rows(s, t); !slices.Contains(seen, rows) {
				seen = append(seen, rows)
				counts[rows]++
			}
		}
	})
	f.sums = make([]*sum, len(f.sizes))
	blocks := f.base.blocks()
	var after []int // the requests after which a workspace is added
	f.base.eachSum(numbers, func(s *seenSum) {
		if c := f.sizes[f.base.Requests[s.request].Tensor]; c[1] != 0 || c[2] != 0 {
			return // the rows become larger, and not more
		}
		is, input := &sum{result: s.result, wide: 1}, int32(-1)
		if a := learned[s.sumKey]; a.wide > 0 {
			is.wide = a.wide
			for _, t := range s.before {
				if numbers[f.base.site(t)] == a.stack {
					input = int32(t)
				}
			}
		}
		if input < 0 {
			// Most sums of a step are of as many rows.
			is.guessed = s.workspace < 0
			most := 0
			for _, t := range f.inputs(s) {
				if n := counts[f.rows(s, t)]; n >= most && (is.guessed || is.explains(blocks[t], blocks[s.workspace])) {
					input, most = int32(t), n
				}
			}
		}
		switch {
		case input >= 0:
			is.input = f.sizes[input]
		case s.workspace >= 0:
			is.input[1] = is.most(blocks[s.workspace]) / f.at
		}
		if is.input == (curve{}) {
			return
		}
		flags := *is
		flags.flags = true
		if s.workspace >= 0 {
			f.sums[s.workspace], f.sums[s.workspace+1] = is, &flags
			return
		}
		f.sums = append(f.sums, is, &flags)
		after = append(after, s.request)
	})
	f.insert(after)
}

// inputs returns which tensors a sum may add up: those before it that grow as the number does and consist
// of such rows.
func (f *Fit) inputs(s *seenSum) (out []uint32) {
	if s.result == 1 {
		return nil // anything consists of such rows
	}
	row := float64(s.result) * unit
	for _, t := range s.before[max(0, len(s.before)-guessedSum):] {
		if c := f.sizes[t]; c[0] == 0 && c[1] > 0 && c[2] == 0 && math.Mod(c[1]*f.at, row) == 0 {
			out = append(out, t)
		}
	}
	return out
}

// rows stands for how many rows a sum has, for each of the number, if it adds up a tensor.
func (f *Fit) rows(s *seenSum, tensor uint32) uint64 {
	return math.Float64bits(f.sizes[tensor][1] / (float64(s.result) * unit))
}

// insert adds workspaces of sums to the highest run, each of two tensors, after some requests.
func (f *Fit) insert(after []int) {
	if len(after) == 0 {
		return
	}
	x := *f.base
	site := uint32(len(x.Sites))
	x.Sites = append(slices.Clone(x.Sites), Site{Key: reduction, Text: reduction, SumWorkspace: true})
	x.Stacks, x.Addresses = slices.Clone(x.Stacks), slices.Clone(x.Addresses)
	x.Requests, x.Reserved = nil, nil
	from := 0
	for _, i := range after {
		to := i + 1
		x.Requests, x.Reserved = append(x.Requests, f.base.Requests[from:to]...), append(x.Reserved, f.base.Reserved[from:to]...)
		from = to
		q, held := f.base.Requests[i], f.base.Reserved[i]
		q.Units, q.Flags = 0, 0
		for k := range 4 { // the workspace, the flags, and their ends
			q.Tensor = uint32(len(x.Addresses) + min(k, 3-k))
			if k == 2 {
				q.Op = allocator.Free
			}
			x.Requests, x.Reserved = append(x.Requests, q), append(x.Reserved, held)
		}
		x.Stacks, x.Addresses = append(x.Stacks, site, site), append(x.Addresses, 0, 0)
		f.sizes, f.spare = append(f.sizes, curve{}, curve{}), append(f.spare, 0, 0)
	}
	x.Requests, x.Reserved = append(x.Requests, f.base.Requests[from:]...), append(x.Reserved, f.base.Reserved[from:]...)
	f.base = &x
}
