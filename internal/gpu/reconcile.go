package gpu

// Names of the lines that no call stack accounts for. They are synthetic
// frames in profiles and rows in tables.
const (
	LineTracked  = "tracked"
	LineRounding = "[driver rounding]"
	LineBefore   = "[allocated before attach]"
	LineContext  = "[cuda context and driver]"
)

// An Account reconciles one process on one GPU over time. The zero value is a
// process attached late whose context's size is not known.
type Account struct {
	// FromStart: the process was traced before its first allocation.
	FromStart bool
	// Context is the expected size in bytes of what CUDA and its modules hold
	// in a process like this, 0 when not known. Used only for a late attach.
	Context int64

	seen      bool
	before    int64 // [allocated before attach]
	residual  int64 // at the last reading
	unmatched uint64
	freed     bool // an unmatched free has not shown in the residual yet
	split     bool // before does not include the context
}

// A Reading is one moment. NVML's figure and Tracked must be of the same state:
// read Tracked before and after NVML, and again if it changed between.
type Reading struct {
	NVML ProcessUse
	// Tracked is the live device memory in bytes as it was asked for, of
	// owned classes alone: no managed, host, imported or graph memory.
	Tracked int64
	// Rounding is what the driver holds beyond that: Rounding.Bytes.
	Rounding int64
	// Unmatched counts the frees of unseen addresses since attach.
	Unmatched uint64
}

// A Line is one part of the process's total.
type Line struct {
	Name     string
	Bytes    int64
	Inferred bool   // an estimate took part in it; the sum is exact all the same
	Note     string // what a reader must know, "" for nothing
}

// A Statement is one reading, split.
type Statement struct {
	// Lines add up to Total. When Total is not Known there are only the lines
	// that do not need it.
	Lines []Line
	Total int64
	Known bool
	// Inferred: NVML's figure was inferred, and with it the last two lines.
	Inferred bool
	// Grew is how much the residual grew (shrank, when negative) since the
	// last known reading, 0 at the first: growth is memory that no traced
	// allocation asked for.
	Grew int64
	// Negative: some line is below zero, because NVML says less than was
	// traced. Reads raced, events were lost, or the device is another one.
	Negative bool
}

// Observe takes the next reading, in order of time.
func (a *Account) Observe(r Reading) Statement {
	s := Statement{Lines: []Line{{Name: LineTracked, Bytes: r.Tracked}, {Name: LineRounding, Bytes: r.Rounding, Inferred: true}}}
	if r.NVML.Known {
		s.Total, s.Known, s.Inferred = r.NVML.Bytes, true, r.NVML.Inferred
		s.Grew = a.advance(s.Total-r.Tracked-r.Rounding, r.Unmatched)
		before := Line{Name: LineBefore, Bytes: a.before, Inferred: s.Inferred || !a.FromStart}
		context := Line{Name: LineContext, Bytes: a.residual - a.before, Inferred: before.Inferred}
		if !a.FromStart {
			if a.split {
				context.Note = "told apart from what was allocated before attach by an expected size"
			} else {
				before.Note = "includes the CUDA context as it was at attach, whose size is not known"
			}
		}
		s.Lines = append(s.Lines, before, context)
	}
	for _, l := range s.Lines {
		s.Negative = s.Negative || l.Bytes < 0
	}
	return s
}

// advance moves the residual and says by how much. What shrinks is taken from
// before-attach if unseen memory was freed, else from context and driver; where
// that is used up, from the other. Only a negative residual leaves a negative
// line.
func (a *Account) advance(residual int64, unmatched uint64) (grew int64) {
	if !a.seen {
		a.open(residual)
		a.seen, a.residual, a.unmatched = true, residual, unmatched
		return 0
	}
	a.freed = a.freed || unmatched > a.unmatched
	grew = residual - a.residual
	if drop := -grew; drop > 0 {
		if !a.freed {
			drop -= max(min(drop, a.residual-a.before), 0)
		}
		a.before -= min(drop, a.before)
		a.freed = false
	}
	a.residual, a.unmatched = residual, max(unmatched, a.unmatched)
	return grew
}

// open splits the first residual. A context expected to be larger than all of
// it is no context of this process: nothing is left for before-attach.
func (a *Account) open(residual int64) {
	switch {
	case a.FromStart:
	case a.Context > 0:
		a.before, a.split = max(residual-a.Context, 0), true
	default:
		a.before = max(residual, 0)
	}
}
