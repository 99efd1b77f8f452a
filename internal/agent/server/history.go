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
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
)

const (
	// historyEvery is the time between two notes. The pause after a note is at least
	// historyRest times as long as the note took, so notes take at most a hundredth of a
	// processor.
	historyEvery = time.Second
	historyRest  = 100
	// Each note is kept for fineFor. After that, one note of each coarse interval, with the
	// most memory, is kept for coarseFor.
	fineFor   = time.Hour
	coarse    = time.Minute
	coarseFor = 48 * time.Hour
	maxFine   = int(fineFor / historyEvery)
	maxCoarse = int(coarseFor / coarse)
	// maxSeries bounds the series. Further owners share one series for each GPU.
	maxSeries = 256
)

// A series is one line of the timeline: the memory of an owner on a GPU.
type series struct {
	GPU   string `json:"gpu"`   // label
	Owner string `json:"owner"` // "" where it is not known
}

// othersOf is the owner of memory whose own owner found no room.
const othersOf = state.OtherOwners

// A note is the memory held at one moment.
type note struct {
	at    time.Time
	bytes []int64 // by series; later series have 0
	held  []stake // by process; of notes that have the same it is the same slice
}

func (n *note) total() (sum int64) {
	for _, b := range n.bytes {
		sum += b
	}
	return sum
}

// A history is the memory held over time.
type history struct {
	mu           sync.Mutex
	series       []series
	index        map[series]int
	presences    presences
	fine, coarse []note
	lost         *loss.Set
}

// take notes the totals of a moment.
func (h *history) take(t *state.Totals) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := note{at: t.Meta.Start.Add(t.Meta.Duration)}
	for i := range t.Groups {
		g := &t.Groups[i]
		if !snapshot.OnGPU(g.Kind.String()) || g.LiveBytes == 0 {
			continue
		}
		at := h.of(series{web.Clean(g.GPU), web.Clean(g.Owner)})
		if at >= len(n.bytes) {
			n.bytes = append(n.bytes, make([]int64, at+1-len(n.bytes))...)
		}
		n.bytes[at] += g.LiveBytes
	}
	var before note
	if last := len(h.fine) - 1; last >= 0 {
		if before = h.fine[last]; !n.at.After(before.at) {
			return
		}
	}
	if h.presences.full() {
		h.fold(before.at)
	}
	if n.held = h.presences.stakes(t, n.at, before.at); slices.Equal(n.held, before.held) {
		n.held = before.held
	}
	h.fine = append(h.fine, n)
	first := 0
	for first < len(h.fine) && (len(h.fine)-first > maxFine || n.at.Sub(h.fine[first].at) > fineFor) {
		h.older(h.fine[first])
		first++
	}
	h.fine = slices.Delete(h.fine, 0, first)
}

// fold makes room for presences. last is the time of the last note.
func (h *history) fold(last time.Time) {
	folded := h.presences.fold(maxPresences/4, last)
	was, is := []stake(nil), []stake(nil)
	for _, notes := range [][]note{h.coarse, h.fine} {
		for i := range notes {
			n := &notes[i]
			if len(n.held) == 0 {
				continue
			}
			if !sameStakes(was, n.held) {
				was, is = n.held, merged(n.held, folded)
			}
			n.held = is
		}
	}
}

// older adds a note to the coarse notes.
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

// of returns the index of a series, and adds the series if it is new.
func (h *history) of(s series) int {
	if h.index == nil {
		h.index = map[series]int{}
	}
	i, ok := h.index[s]
	if ok {
		return i
	}
	if len(h.series) >= maxSeries && s.Owner != othersOf {
		h.lost.Add(lossSeries, 1)
		return h.of(series{s.GPU, othersOf})
	}
	i = len(h.series)
	h.series = append(h.series, s)
	h.index[s] = i
	return i
}

// A historyDocument is the JSON of a history.
type historyDocument struct {
	Now    int64    `json:"now_ms"` // of the latest point, in milliseconds since 1970
	Series []series `json:"series"`
	// Processes are those of the points, each once for each GPU. PID 0 stands for others.
	Processes []namedPresence `json:"processes"`
	Points    []historyNote   `json:"points"` // in order
	// Recording is the path of the recording that is written, and Since when it begins.
	Recording string `json:"recording,omitempty"`
	Since     int64  `json:"recording_since_ms,omitempty"` // since 1970
}

type historyNote struct {
	At    int64   `json:"ms"`
	Bytes []int64 `json:"bytes"` // by series; later series have 0
	// Held has pairs of the ID of a process, and bytes. It is missing where it is that of
	// the point before.
	Held *[]stake `json:"held,omitempty"`
}

// whose adds the presences of stakes.
func (h *history) whose(held []stake, all map[int64]namedPresence) {
	for _, s := range held {
		if _, known := all[s[0]]; known {
			continue
		}
		if x := h.presences.all[s[0]]; x != nil {
			all[s[0]] = x.named()
		}
	}
}

// since returns the notes after a moment, in milliseconds since 1970.
func (h *history) since(after int64) *historyDocument {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := &historyDocument{Series: append([]series{}, h.series...), Processes: []namedPresence{}, Points: []historyNote{}} // not nil, which JSON has as null
	all := map[int64]namedPresence{}
	var before []stake
	for _, notes := range [][]note{h.coarse, h.fine} {
		for _, n := range notes {
			ms := n.at.UnixMilli()
			if ms <= after {
				continue
			}
			p := historyNote{At: ms, Bytes: n.bytes}
			if len(out.Points) == 0 || !slices.Equal(n.held, before) {
				before = n.held
				held := append([]stake{}, before...) // not nil, which JSON has as null
				p.Held = &held
				h.whose(n.held, all)
			}
			out.Points = append(out.Points, p)
			out.Now = ms
		}
	}
	for _, id := range slices.Sorted(maps.Keys(all)) {
		out.Processes = append(out.Processes, all[id])
	}
	return out
}

// remember adds notes to the history until ctx ends.
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

// historyAPI answers with the history, or with ?after= the part since then.
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
	var since time.Time
	if d.Recording, since = s.opts.Recording(); d.Recording != "" {
		d.Since = since.UnixMilli()
	}
	body, err := s.looks.alone(r.Context(), func() ([]byte, error) {
		return packed(func(w io.Writer) error { return json.NewEncoder(w).Encode(d) })
	})
	if err != nil {
		return err
	}
	return sendPacked(w, r, jsonType, body)
}
