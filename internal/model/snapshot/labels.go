package snapshot

import (
	"fmt"
	"strconv"
	"strings"
)

// Labels tell samples of one stack apart. Empty strings are absent.
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
	// Category is what a tensor is for: "parameter", "activation", ...
	Category string
	Process  string // comm
	PID      int
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
	{Name: "category", Title: "category", Column: 9, Guessed: true, text: func(l *Labels) *string { return &l.Category }},
	{Name: "process", Title: "process", Column: 2, text: func(l *Labels) *string { return &l.Process }},
	{Name: "pid", Title: "pid", Column: 1, PerRun: true, number: func(l *Labels) *int { return &l.PID }},
}

// Numeric tells whether the label is a number, which outputs with types write
// as one.
func (l *Label) Numeric() bool { return l.number != nil }

// Get returns the label as text, "" when it is absent.
func (l *Label) Get(from *Labels) string {
	if l.text != nil {
		return *l.text(from)
	}
	if n := *l.number(from); n != 0 {
		return strconv.Itoa(n)
	}
	return ""
}

// Set is the reverse of Get. It fails if the label is a number and s is none.
func (l *Label) Set(to *Labels, s string) (err error) {
	if l.text != nil {
		*l.text(to) = s
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

// Several tells whether s has more than one process, which labels that are
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
