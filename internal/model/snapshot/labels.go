package snapshot

import (
	"fmt"
	"strconv"
	"strings"
)

// Labels distinguish samples of one stack. Empty strings are absent.
type Labels struct {
	Kind    string // event.Kind's name
	API     string // function that was counted, of libcuda by default: "cuMemAlloc_v2"
	Runtime string // runtime call around it, "cudaMalloc"; only with --api both
	GPU     string // index as NVML counts, "unknown", or "" for memory on no GPU
	Owner   string // nearest library above CUDA: "pytorch", "nccl", ...
	// Operator is PyTorch's: "aten::zeros_like", or a node of autograd's graph,
	// "AddmmBackward0".
	Operator string
	// Module are the classes of the PyTorch modules whose forward asked for it,
	// root first: "Net/Linear".
	Module string
	// ModulePath is the path to the module that holds it or whose forward asked for it, in
	// the program's heap: "model.layers[3]".
	ModulePath string
	// Category is what a tensor is for: "parameter", "activation", ...
	Category string
	// CategoryFrom says where Category comes from: "heap" if it was read from the program's
	// heap, "" if it follows from the stack.
	CategoryFrom string
	// Holder is the path to the tensor in the program's heap, "model.layers[3].weight".
	Holder  string
	Process string // comm
	PID     int
	// Who the process belongs to, nil where nothing is known. Samples of a process share it.
	Who *Who
}

// A Label says how outputs name and show one field of Labels.
type Label struct {
	Name string
	// Title is what readable pages call it, "" where they leave it out: a
	// stack's frames show it too.
	Title string
	// Column is its place among a CSV row's labels, from 1; 0 for none.
	Column int
	// PerRun: it is another one in each run of a program. It is shown where
	// several processes are, and runs are compared without it.
	PerRun bool
	// Guessed: it follows from what became of the memory so far. Moments are
	// compared without it.
	Guessed bool
	// One of these is its field.
	text   func(*Labels) *string
	number func(*Labels) *int
	who    func(*Who) *string
	// instead is the label where its field is "".
	instead func(*Who) string
}

// AllLabels has each label once. Every output goes by it.
var AllLabels = [...]Label{
	{Name: "kind", Title: "kind", Column: 4, text: func(l *Labels) *string { return &l.Kind }},
	{Name: "api", Column: 5, text: func(l *Labels) *string { return &l.API }},
	{Name: "runtime", text: func(l *Labels) *string { return &l.Runtime }},
	{Name: "gpu", Title: "GPU", Column: 3, text: func(l *Labels) *string { return &l.GPU }},
	{Name: "owner", Title: "owner", Column: 6, text: func(l *Labels) *string { return &l.Owner }},
	{Name: "operator", Column: 7, text: func(l *Labels) *string { return &l.Operator }},
	{Name: "module", Column: 8, text: func(l *Labels) *string { return &l.Module }},
	{Name: "module_path", Guessed: true, text: func(l *Labels) *string { return &l.ModulePath }},
	{Name: "category", Title: "category", Column: 9, Guessed: true, text: func(l *Labels) *string { return &l.Category }},
	{Name: "category_from", Guessed: true, text: func(l *Labels) *string { return &l.CategoryFrom }},
	{Name: "holder", Guessed: true, text: func(l *Labels) *string { return &l.Holder }},
	{Name: "process", Title: "process", Column: 2, text: func(l *Labels) *string { return &l.Process }},
	{Name: "pid", Title: "pid", Column: 1, PerRun: true, number: func(l *Labels) *int { return &l.PID }},
	{Name: "user", PerRun: true, who: func(w *Who) *string { return &w.User }},
	{Name: "command", PerRun: true, who: func(w *Who) *string { return &w.Command }},
	{Name: "namespace", PerRun: true, who: func(w *Who) *string { return &w.Namespace }},
	{Name: "pod", PerRun: true, who: func(w *Who) *string { return &w.Pod }, instead: (*Who).PodName},
	{Name: "container", PerRun: true, who: func(w *Who) *string { return &w.Container }, instead: (*Who).ContainerName},
	{Name: "service", PerRun: true, who: func(w *Who) *string { return &w.Service }},
	{Name: "job", PerRun: true, who: func(w *Who) *string { return &w.Job }},
	{Name: "rank", Column: 10, PerRun: true, who: func(w *Who) *string { return &w.Rank }},
	{Name: "local_rank", Column: 11, PerRun: true, who: func(w *Who) *string { return &w.LocalRank }},
	{Name: "world_size", Column: 12, PerRun: true, who: func(w *Who) *string { return &w.WorldSize }},
}

// OfProcess reports whether the label is the same for all memory of a process: the process
// has it in its Who.
func (l *Label) OfProcess() bool { return l.who != nil }

// Numeric reports whether the label is a number, which outputs with types write
// as one.
func (l *Label) Numeric() bool { return l.number != nil }

// Get returns the label as text, "" when it is absent.
func (l *Label) Get(from *Labels) string {
	switch {
	case l.text != nil:
		return *l.text(from)
	case l.instead != nil && from.Who != nil:
		return l.instead(from.Who)
	case l.who != nil && from.Who != nil:
		return *l.who(from.Who)
	case l.who != nil:
		return ""
	}
	if n := *l.number(from); n != 0 {
		return strconv.Itoa(n)
	}
	return ""
}

// Set is the reverse of Get, for labels that share no Who. It fails if the label is a number and s is none.
func (l *Label) Set(to *Labels, s string) (err error) {
	switch {
	case l.text != nil:
		*l.text(to) = s
		return nil
	case l.who != nil:
		if to.Who == nil && s != "" {
			to.Who = new(Who)
		}
		if to.Who != nil {
			*l.who(to.Who) = s
			if *to.Who == (Who{}) {
				to.Who = nil
			}
		}
		return nil
	}
	// With the zero, "" is 0 and a sign is no number.
	if *l.number(to), err = strconv.Atoi("0" + s); err != nil {
		return fmt.Errorf("label %s: %q is no number", l.Name, s)
	}
	return nil
}

// Compare orders labels by their texts.
func (l *Labels) Compare(m *Labels) int {
	for i := range AllLabels {
		if c := strings.Compare(AllLabels[i].Get(l), AllLabels[i].Get(m)); c != 0 {
			return c
		}
	}
	return 0
}

// Several reports whether s has more than one process, which labels that are
// PerRun then tell apart.
func (s *Snapshot) Several() bool {
	pids := make(map[int]bool)
	for i := range s.Processes {
		pids[s.Processes[i].PID] = true
	}
	for i := range s.Samples {
		pids[s.Samples[i].PID] = true
	}
	return len(pids) > 1
}
