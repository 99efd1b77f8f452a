package snapshot

import "time"

// Steps are the training steps of one process on one GPU, as far as they were seen: a
// step is from one call of an optimizer's step to the next, or from one clipping of gradients
// to the next if the optimizer makes no tensors.
type Steps struct {
	PID     int
	Process string // comm
	GPU     string // as Labels.GPU
	// Begun: such a call was seen. Seen are the steps since, and Unsure how many
	// times a step was left out because it might have been several, or none.
	Begun        bool
	Seen, Unsure int64
	Last         []Step // the latest ones, in order
	Total        Moved  // of all Seen
	// Grew are the stacks that held more when the last step ended than Over steps
	// before, the largest growth first; not all, if there are many. Gained is by how
	// much those that grew did, and Grown less what the others shrank by.
	Over          int64
	Gained, Grown int64
	Grew          []Growth
}

// A Step is one training step.
type Step struct {
	Number int64 // from 1 on
	Begin  time.Time
	Took   time.Duration
	Moved
}

// Moved counts tensors that began and that ended.
type Moved struct {
	AllocBytes, AllocObjects int64
	FreedBytes, FreedObjects int64
	PeakBytes                int64 // the most that was in use at a time
	InuseBytes               int64 // at the end
}

// A Growth is by how many bytes the tensors of a stack became more.
type Growth struct {
	Bytes int64
	// Sample has the stack and the labels of its tensors.
	Sample *Sample
}

// Net is by how much what is in use grew.
func (m *Moved) Net() int64 { return m.AllocBytes - m.FreedBytes }

// Add adds a tensor of so many bytes, or takes it away (negative), after which inuse
// are in use.
func (m *Moved) Add(bytes, inuse int64) {
	if bytes > 0 {
		m.AllocBytes, m.AllocObjects = m.AllocBytes+bytes, m.AllocObjects+1
	} else {
		m.FreedBytes, m.FreedObjects = m.FreedBytes-bytes, m.FreedObjects+1
	}
	m.PeakBytes, m.InuseBytes = max(m.PeakBytes, inuse), inuse
}

// Sum adds what came after.
func (m *Moved) Sum(after *Moved) {
	m.AllocBytes, m.AllocObjects = m.AllocBytes+after.AllocBytes, m.AllocObjects+after.AllocObjects
	m.FreedBytes, m.FreedObjects = m.FreedBytes+after.FreedBytes, m.FreedObjects+after.FreedObjects
	m.PeakBytes, m.InuseBytes = max(m.PeakBytes, after.PeakBytes), after.InuseBytes
}
