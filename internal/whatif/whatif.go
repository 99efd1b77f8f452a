package whatif

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/output/table"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/whatif/allocator"
)

// A Setting is one or several of PYTORCH_CUDA_ALLOC_CONF, as a user writes them.
type Setting struct {
	Name string
	allocator.Settings
}

// ParseSetting parses "NAME:VALUE", or several with commas.
func ParseSetting(text string) (Setting, error) {
	s := Setting{Name: text}
	for _, one := range split(text) {
		name, value, ok := strings.Cut(one, ":")
		if !ok {
			return s, fmt.Errorf("%q: want NAME:VALUE, such as max_split_size_mb:128", one)
		}
		if err := s.Set(strings.TrimSpace(name), strings.TrimSpace(value)); err != nil {
			return s, err
		}
	}
	return s, nil
}

// split splits at commas, but for those in brackets.
func split(text string) (out []string) {
	depth, from := 0, 0
	for i, r := range text {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth == 0 {
				out, from = append(out, text[from:i]), i+1
			}
		}
	}
	return append(out, text[from:])
}

// tried are the settings that every prediction has.
var tried = []string{
	"expandable_segments:True", "max_split_size_mb:64", "max_split_size_mb:128", "max_split_size_mb:512", "roundup_power2_divisions:4",
}

// enough is the part of a run's tensors that must come to lie where PyTorch placed them
// for a prediction.
const enough = 0.99

// A Row is how a run would have gone under one setting. Sizes are in bytes.
type Row struct {
	Setting string `json:"setting"`
	Peak    uint64 `json:"peak_reserved_bytes"`
	// Low and High are between which peaks the run may go, as far as allocator.Run.Spread shows, 0
	// if that was not asked for.
	Low  uint64 `json:"peak_low_bytes,omitempty"`
	High uint64 `json:"peak_high_bytes,omitempty"`
	// Cached is the part of Peak that was in no tensor.
	Cached uint64 `json:"cached_at_peak_bytes"`
	// Unused is the part of Cached in empty segments, of the run itself. The rest lies beside tensors.
	Unused   uint64 `json:"cached_in_empty_segments_bytes,omitempty"`
	Segments int    `json:"cuda_requests"`
	// Served says whether the requests would have been served that failed in the run:
	// "yes", "no", "perhaps", "" where none failed.
	Served string `json:"served,omitempty"`
}

// A Prediction is what other settings would have changed in one process on one GPU.
type Prediction struct {
	PID     uint32 `json:"pid"`
	Process string `json:"process"` // comm
	Device  int32  `json:"device"`  // CUDA ordinal inside the process
	GPU     string `json:"gpu"`     // as snapshot.Labels.GPU, "" if not known
	Own     string `json:"own_setting"`
	Tensors int    `json:"tensors"`
	// Same is how many tensors come to lie where PyTorch placed them when the run is
	// repeated under Own.
	Same    int `json:"same_address"`
	Streams int `json:"streams"`
	// Elsewhere says of the other tensors how PyTorch differed, "" for none.
	Elsewhere string `json:"elsewhere,omitempty"`
	// Reason says why Rows are missing, "" if they are not.
	Reason string `json:"reason,omitempty"`
	// Rows begin with what the run itself did.
	Rows []Row `json:"rows"`
	// Lacked is the size of the first request that failed in the run, 0 for none.
	Lacked uint64 `json:"failed_request_bytes,omitempty"`

	// Before is what PyTorch had reserved when a snapshot's history began, in bytes: no setting changes it.
	Before uint64 `json:"reserved_before_bytes,omitempty"`

	// Pools are its private pools.
	Pools int `json:"private_pools,omitempty"`

	// Workspaces is the most that cuDNN's workspaces for convolutions had at one moment.
	Workspaces uint64 `json:"cudnn_workspace_bytes,omitempty"`

	title string  // of its page
	own   Setting // that Own names
}

// Options are what the user asks for.
type Options struct {
	// Own is the run's own setting. Without a name it is found among PyTorch's default
	// and expandable segments.
	Own Setting
	// More are settings to try besides the usual ones.
	More  []Setting
	Width int
	Color bool
}

// uncached holds no more than tensors need.
var uncached = allocator.Settings{NoCaching: true}

// spreadRequests bounds the requests of a run of which the range is computed, which takes up to five
// times as long as the prediction.
const spreadRequests = 4 << 20

// Predict returns what other settings would have changed in a run.
func Predict(x *Run, o Options) *Prediction {
	p := &Prediction{PID: x.Process.PID, Process: x.Name, Device: x.Device, GPU: x.GPU, title: x.title(fmt.Sprintf("%s (%d)", x.Name, x.Process.PID))}
	own := o.Own
	if s, err := ParseSetting(x.Settings); own.Name == "" && x.Settings != "" && err == nil {
		own = s
	}
	own.Memory = x.Memory
	x.blocked()
	check := x.Check(own.Settings)
	if own.Name == "" {
		own.Name = "PyTorch's default"
		expandable := Setting{"expandable_segments:True", allocator.Settings{Expandable: true, Memory: x.Memory}}
		plain := expandable
		plain.PlainPrivate = true
		for _, s := range []Setting{expandable, plain} {
			if check.Same == check.Made || s.PlainPrivate && len(x.poolIDs) == 0 {
				continue
			}
			if c := x.Check(s.Settings); c.Same > check.Same {
				own, check = s, c
			} else {
				check = x.Check(own.Settings) // the requests have its streams
			}
		}
	}
	for i := range x.Held {
		p.Before += x.Held[i].Size
	}
	p.own, p.Own, p.Tensors, p.Same, p.Streams, p.Pools = own, own.Name, check.Made, check.Same, check.Streams, check.Pools
	is := Row{Setting: own.Name + " (this run)", Peak: x.peak(), Segments: check.Segments}
	if check.Peak <= is.Peak { // else what was repeated is not the run
		is.Cached = check.Peak - check.Allocated
	}
	p.Rows = append(p.Rows, is)
	p.Elsewhere, p.Workspaces = elsewhere(&check), x.workspaces()
	switch {
	case x.Partial != "":
		p.Reason = x.Partial
	case float64(check.Same) < enough*float64(check.Made):
		p.Reason = "too few tensors came to lie where PyTorch placed them: the run had settings that are not known (try --own), or its allocator differs. " + p.Elsewhere
		p.Reason = strings.TrimSuffix(p.Reason, ".")
	}
	x.refine()
	low, high := x.limits()
	if len(x.Lacked) > 0 {
		p.Lacked = x.Lacked[0].Wanted
		p.Rows[0].Served = "no"
	}
	add := func(name string, s allocator.Settings, emptied int) {
		r := x.Play(s, emptied)
		row := Row{Setting: name, Peak: r.Peak, Cached: r.Peak - r.Allocated, Segments: r.Segments}
		if len(x.Lacked) > 0 {
			row.Served, row.Peak, row.Cached = x.served(s, emptied, low, high)
		} else if row.Low, row.High = r.Peak, r.Peak; emptied < 0 && len(x.Requests) <= spreadRequests {
			row.Low, row.High = x.Spread(s, r.Peak)
		}
		p.Rows = append(p.Rows, row)
	}
	if p.Reason == "" {
		for _, text := range tried {
			s, err := ParseSetting(text)
			s.Memory, s.PlainPrivate = x.Memory, own.PlainPrivate
			if err == nil && s.Settings == own.Settings {
				if !s.Expandable {
					continue
				}
				s = Setting{"expandable_segments:False", allocator.Settings{Memory: x.Memory}}
			}
			add(s.Name, s.Settings, -1)
		}
		for _, s := range o.More {
			add(s.Name, s.Settings, -1)
		}
		own := own.Settings
		r := x.Play(own, -1)
		x.Run.Follow(own, -1, func(i int, a *allocator.Allocator) {
			if i == r.PeakAt {
				p.Rows[0].Unused = a.Unused()
			}
		})
		add("empty_cache() before the peak", own, r.ReachedAt)
	}
	if x.Partial == "" {
		add("no caching", uncached, -1)
		row := Row{Setting: "a perfect allocator", Peak: x.Play(uncached, -1).Peak, Low: p.Rows[len(p.Rows)-1].Low, High: p.Rows[len(p.Rows)-1].High}
		if len(x.Lacked) > 0 {
			row.Served = verdict(row.Peak <= low, row.Peak <= high)
		}
		p.Rows = append(p.Rows, row)
	}
	return p
}

// elsewhere says what PyTorch did with tensors that come to lie elsewhere, and what does that.
func elsewhere(c *allocator.Check) string {
	var parts []string
	for _, part := range []struct {
		n    int
		text string
	}{
		{c.Passed, "for %s PyTorch passed over a free block, as it does with blocks that another stream still uses (record_stream) and in other pools"},
		{c.Kept, "for %s it used a free block that these settings keep for other sizes"},
		{c.Taken, "%s lie in memory that was not free by then, as when segments are of another allocator or the ends of tensors are missing"},
	} {
		if part.n > 0 {
			parts = append(parts, fmt.Sprintf(part.text, bytefmt.Count(int64(part.n))))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "Of the others, " + strings.Join(parts, "; ") + "."
}

// peak returns the most that PyTorch held, in bytes.
func (x *Run) peak() uint64 {
	if len(x.Reserved) == 0 {
		return 0
	}
	return uint64(slices.Max(x.Reserved)) * unit
}

// limits returns between which sizes the memory lay that CUDA could provide: as much as
// PyTorch held, and less than it was refused.
func (x *Run) limits() (low, high uint64) {
	low, high = x.peak(), ^uint64(0)
	for _, r := range slices.Concat(x.Refused, x.Lacked) {
		high = min(high, max(low, r.Reserved+r.Wanted-1))
	}
	return low, high
}

// limit limits PyTorch to so many bytes in the way that the run was limited: by the GPU, or by
// the program.
func (x *Run) limit(s *allocator.Settings, bytes uint64) {
	if x.Lacked[0].Own {
		s.Fraction = bytes
	} else {
		s.Limit = bytes
	}
}

// served says whether all requests would have been served, and returns the peak and what
// of it was cached.
func (x *Run) served(s allocator.Settings, emptied int, low, high uint64) (answer string, peak, cached uint64) {
	x.limit(&s, low)
	a := x.Play(s, emptied)
	x.limit(&s, high)
	b := a
	if a.Failed >= 0 {
		b = x.Play(s, emptied)
	}
	return verdict(a.Failed < 0, b.Failed < 0), b.Peak, b.Peak - b.Allocated
}

// Follow calls reserved with what PyTorch would have reserved under a setting, in bytes, and
// when: in nanoseconds since the trace began.
func (x *Run) Follow(s Setting, reserved func(time uint64, bytes int64)) {
	s.Memory = x.Memory
	if len(x.Lacked) > 0 {
		low, high := x.limits()
		if x.limit(&s.Settings, low); x.Play(s.Settings, -1).Failed >= 0 {
			x.limit(&s.Settings, high)
		}
	}
	x.Run.Follow(s.Settings, -1, func(i int, a *allocator.Allocator) { reserved(uint64(x.Times[i])*tick, int64(a.Reserved)) })
}

func verdict(surely, perhaps bool) string {
	switch {
	case surely:
		return "yes"
	case perhaps:
		return "perhaps"
	}
	return "no"
}

// worthwhile is the part of the peak that a setting must save to be worth naming.
const worthwhile = 0.02

// best returns the setting of PYTORCH_CUDA_ALLOC_CONF that helps most, nil for none.
func (p *Prediction) best() *Row {
	return p.least(func(r *Row) bool {
		if p.Lacked > 0 {
			return r.Served == "yes"
		}
		return float64(max(r.Peak, r.High)) <= (1-worthwhile)*float64(p.Rows[0].Peak)
	})
}

// least returns the setting of PYTORCH_CUDA_ALLOC_CONF with the lowest peak of those that helps accepts, nil for none.
func (p *Prediction) least(helps func(*Row) bool) (least *Row) {
	for i := range p.Rows[1:] {
		if r := &p.Rows[1+i]; strings.Contains(r.Setting, ":") && helps(r) && (least == nil || r.Peak < least.Peak) {
			least = r
		}
	}
	return least
}

// Best returns the setting that would have helped most, "" for none.
func (p *Prediction) Best() string {
	if p.Reason == "" {
		if r := p.best(); r != nil {
			return r.Setting
		}
	}
	return ""
}

// Helps reports whether another setting would have helped.
func (p *Prediction) Helps() bool { return p.Best() != "" }

// Saves is how much less PyTorch would have reserved at the peak with the best setting, in bytes, 0 if none
// helps.
func (p *Prediction) Saves() uint64 {
	if !p.Helps() {
		return 0
	}
	own, best := p.Rows[0].Peak, p.best().Peak
	return max(own, best) - best
}

// Answer says in a sentence what would have helped.
func (p *Prediction) Answer() string {
	own := p.Rows[0]
	size := func(n uint64) string { return bytefmt.Format(int64(n)) }
	switch best := p.best(); {
	case p.Reason != "":
		return "No prediction: " + p.Reason + "."
	case p.Lacked > 0 && best != nil:
		peak := fmt.Sprintf("and the peak would have been %s instead of %s", size(best.Peak), size(own.Peak))
		if size(best.Peak) == size(own.Peak) {
			peak = "at the same peak of " + size(own.Peak)
		}
		return fmt.Sprintf("With %s the request of %s that failed would have been served, %s.", best.Setting, size(p.Lacked), peak)
	case p.Lacked > 0:
		return fmt.Sprintf("No setting tried would surely have served the request of %s that failed: tensors alone need %s.", size(p.Lacked), size(p.Rows[len(p.Rows)-1].Peak))
	case best != nil:
		return fmt.Sprintf("With %s PyTorch would have reserved %s at the peak instead of %s.", best.Setting, size(best.Peak), size(own.Peak))
	}
	most := ""
	if r := p.least(func(r *Row) bool { return r.Peak < own.Peak }); r != nil {
		most = fmt.Sprintf(": %s would save most, %s", r.Setting, size(own.Peak-r.Peak))
	}
	return fmt.Sprintf("No setting that was tried would save as much as 2 %% of the %s that PyTorch reserved at the peak%s.", size(own.Peak), most)
}

// Most says how much the best setting could save at most, "" if that is not known.
func (p *Prediction) Most() string {
	if p.Reason != "" {
		return ""
	}
	size := func(n uint64) string { return bytefmt.Format(int64(n)) }
	own, floor := p.Rows[0], p.Rows[len(p.Rows)-1].Peak
	with := ""
	if p.Lacked > 0 {
		with = fmt.Sprintf(", with the request of %s that failed", size(p.Lacked))
	}
	saves := "anything"
	if floor < own.Peak {
		saves = "more than " + size(own.Peak-floor)
	}
	cached := size(own.Cached) + " was cached, not in tensors"
	switch {
	case own.Unused > 0 && own.Unused < own.Cached:
		cached += fmt.Sprintf(": %s was lost to fragmentation, beside tensors, and %s lay in empty segments", size(own.Cached-own.Unused), size(own.Unused))
	case own.Unused > 0:
		cached += ", in empty segments"
	case own.Cached > 0:
		cached += ", and lost to fragmentation, beside tensors"
	}
	return fmt.Sprintf("Of the %s that PyTorch reserved at the peak, %s. No setting can save %s: the program asked for %s at some moment%s.", size(own.Peak), cached, saves, size(floor), with)
}

// spread writes between which sizes a peak may be, if they differ by more than 2 %.
func spread(low, high uint64) string {
	if high-low <= high/50 {
		return ""
	}
	return fmt.Sprintf("%s to %s", bytefmt.Format(int64(low)), bytefmt.Format(int64(high)))
}

// whySpread says what spread is about.
const whySpread = "PEAK MAY BE shows how far a peak can differ, where that is more than 2 %. It depends on where CUDA places segments, and on how much smaller requests are than the blocks that served them."

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// cached writes how much of a peak was cached.
func cached(n, peak uint64) string {
	return fmt.Sprintf("%s (%s)", bytefmt.Format(int64(n)), bytefmt.Percent(int64(n), int64(peak)))
}

// Write writes predictions as text.
func Write(w io.Writer, predictions []*Prediction, o Options) error {
	page := render.NewPage(w, o.Width, o.Color)
	for _, p := range predictions {
		page.Heading("%s", p.title)
		page.Line("%s", p.Answer())
		if best := p.Best(); best != "" {
			if _, err := ParseSetting(best); err == nil {
				page.Line("To use it, start the program with PYTORCH_CUDA_ALLOC_CONF=%s instead of the value that it may have.", best)
			}
		}
		if cost := p.Most(); cost != "" {
			page.Line("%s", cost)
		}
		more := ""
		if p.Reason == "" {
			more = prefixed(" ", p.Elsewhere)
		}
		switch {
		case p.Reason != "": // they were not told apart well
		case p.Pools > 0:
			more += fmt.Sprintf(" Its tensors are of %d streams and %d private pools.", p.Streams, p.Pools)
		case p.Streams > 1:
			more += fmt.Sprintf(" Its tensors are of %d streams.", p.Streams)
		}
		if p.Before > 0 {
			page.Line("The history begins when PyTorch had reserved %s. Those segments stay as they are in every prediction, so another setting may save more.", bytefmt.Format(int64(p.Before)))
		}
		page.Line("Check: the run repeated under its own settings placed %d of %d allocations where PyTorch placed them.%s", p.Same, p.Tensors, more)
		if text := doubt(p.Workspaces, p.Rows[0].Peak, "under another setting"); text != "" && p.Reason == "" {
			page.Warn("%s", text)
		}
		t := table.New(table.Ending("SETTING"), table.Bytes("PEAK RESERVED"), table.Ending("PEAK MAY BE"), table.SignedBytes("CHANGE"), table.TextRight("CACHED AT PEAK"), table.SomeCount("CUDA REQUESTS"), table.Text("FAILED REQUEST SERVED"))
		if slices.ContainsFunc(p.Rows, func(r Row) bool { return spread(r.Low, r.High) != "" }) {
			page.Line("%s", whySpread)
		}
		for i := range p.Rows {
			r := &p.Rows[i]
			var change any
			if i > 0 {
				change = int64(r.Peak) - int64(p.Rows[0].Peak)
			}
			t.Add(r.Setting, int64(r.Peak), spread(r.Low, r.High), change, cached(r.Cached, r.Peak), r.Segments, r.Served)
		}
		t.Text(page)
	}
	return page.Flush("write prediction")
}

// WriteJSON writes predictions for programs.
func WriteJSON(w io.Writer, predictions []*Prediction) error {
	return render.WriteJSON(w, struct {
		SchemaVersion int           `json:"schema_version"`
		Predictions   []*Prediction `json:"predictions"`
	}{1, predictions})
}
