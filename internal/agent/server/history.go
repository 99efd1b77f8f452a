package server

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
)

const (
	// historyEvery is how often what is held is noted, and historyRest how many times as
	// long as that took nothing is: it never takes more than a hundredth of a processor.
	historyEvery = time.Second
	historyRest  = 100
	// For fineFor each note is kept. Then one of each coarse part is, of when most was held
	// in it, for coarseFor.
	fineFor   = time.Hour
	coarse    = time.Minute
	coarseFor = 48 * time.Hour
	maxFine   = int(fineFor / historyEvery)
	maxCoarse = int(coarseFor / coarse)
	// maxSeries bounds what is told apart: those beyond are one of each GPU.
	maxSeries = 256
)

var foldedSeries = loss.Of("http_history_owners_full", "notes of the live timeline in which an owner's memory is shown as that of others because there were too many owners")

// A series is what the timeline tells apart: whose memory on a GPU it is.
type series struct {
	GPU   string `json:"gpu"`   // label
	Owner string `json:"owner"` // "" where it is not known
}

// othersOf is the owner of what found no room.
const othersOf = state.OtherOwners

// A note is what was held at a moment. The zero note is none.
type note struct {
	at    time.Time
	bytes []int64 // by series, 0 for those after
}

func (n *note) total() (sum int64) {
	for _, b := range n.bytes {
		sum += b
	}
	return sum
}

// A history is what was held over time, for as long as there is room.
type history struct {
	mu           sync.Mutex
	series       []series
	index        map[series]int
	fine, coarse []note
	rests        map[string]int64 // see state.GPUTotals.Residual, by label, where it is known
	folded       uint64
}

// take notes the totals of a moment.
func (h *history) take(t *state.Totals) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := note{at: t.Meta.Start.Add(t.Meta.Duration)}
	for i := range t.Groups {
		g := &t.Groups[i]
		if !render.OnGPU(g.Kind.String()) || g.LiveBytes == 0 {
			continue
		}
		at := h.of(series{web.Clean(g.GPU), web.Clean(g.Owner)})
		if at >= len(n.bytes) {
			n.bytes = append(n.bytes, make([]int64, at+1-len(n.bytes))...)
		}
		n.bytes[at] += g.LiveBytes
	}
	h.rests = map[string]int64{}
	for i := range t.GPUs {
		if g := &t.GPUs[i]; g.ResidualKnown {
			h.rests[g.GPU] = g.Residual
		}
	}
	if last := len(h.fine) - 1; last >= 0 && !n.at.After(h.fine[last].at) {
		return
	}
	h.fine = append(h.fine, n)
	first := 0
	for first < len(h.fine) && (len(h.fine)-first > maxFine || n.at.Sub(h.fine[first].at) > fineFor) {
		h.older(h.fine[first])
		first++
	}
	h.fine = slices.Delete(h.fine, 0, first)
}

// follow goes on where another history, of which nothing more is taken, ended.
func (h *history) follow(o *history) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h.series, h.index, h.fine, h.coarse = slices.Clone(o.series), maps.Clone(o.index), slices.Clone(o.fine), slices.Clone(o.coarse)
}

// older takes a note that is no longer kept with those around it.
func (h *history) older(n note) {
	if last := len(h.coarse) - 1; last >= 0 && h.coarse[last].at.Truncate(coarse).Equal(n.at.Truncate(coarse)) {
		if n.total() > h.coarse[last].total() {
			h.coarse[last] = n
		}
		return
	}
	h.coarse = append(h.coarse, n)
	if len(h.coarse) > maxCoarse {
		h.coarse = slices.Delete(h.coarse, 0, 1)
	}
}

// of returns the index of a series.
func (h *history) of(s series) int {
	if h.index == nil {
		h.index = map[series]int{}
	}
	i, ok := h.index[s]
	if ok {
		return i
	}
	if len(h.series) >= maxSeries && s.Owner != othersOf {
		h.folded++
		return h.of(series{s.GPU, othersOf})
	}
	i = len(h.series)
	h.series = append(h.series, s)
	h.index[s] = i
	return i
}

// A historyDocument is the JSON of what was held over time.
type historyDocument struct {
	Now    int64         `json:"now_ms"` // of the latest point, in milliseconds since 1970
	Series []series      `json:"series"`
	Points []historyNote `json:"points"` // in order
}

type historyNote struct {
	At    int64   `json:"ms"`
	Bytes []int64 `json:"bytes"` // by series, 0 for those after
}

// rest returns what of a GPU's memory nobody traced holds, as NVML said last, and whether
// that is known.
func (h *history) rest(label string) (bytes int64, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	bytes, known = h.rests[label]
	return bytes, known
}

// since returns what was noted after a moment, in milliseconds since 1970.
func (h *history) since(after int64) *historyDocument {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := &historyDocument{Series: slices.Clone(h.series), Points: []historyNote{}}
	for _, notes := range [][]note{h.coarse, h.fine} {
		for _, n := range notes {
			if ms := n.at.UnixMilli(); ms > after {
				out.Points = append(out.Points, historyNote{ms, n.bytes})
				out.Now = ms
			}
		}
	}
	return out
}

// remember notes what is held, until ctx ends.
func (s *Server) remember(ctx context.Context) {
	wait := time.Duration(0)
	for {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		begun := time.Now()
		s.history.take(s.opts.Source.Totals())
		took := time.Since(begun)
		wait = max(clock.Until(historyEvery), historyRest*took)
	}
}

// historyAPI answers with what was held over time, and with ?after= what came since.
func (s *Server) historyAPI(w http.ResponseWriter, r *http.Request) error {
	p, err := paramsOf(r, "after")
	if err != nil {
		return err
	}
	after := int64(-1 << 62)
	if text, ok := p["after"]; ok {
		if after, err = strconv.ParseInt(text, 10, 64); err != nil || strconv.FormatInt(after, 10) != text {
			return badRequest("after is a time in milliseconds since 1970")
		}
	}
	d := s.history.since(after)
	body, err := s.looks.alone(r.Context(), func() ([]byte, error) {
		return packed(func(w io.Writer) error { return json.NewEncoder(w).Encode(d) })
	})
	if err != nil {
		return err
	}
	return sendPacked(w, r, jsonType, body)
}
