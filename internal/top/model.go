// Package top shows Pictures of package live in a terminal.
package top

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/termtext"

	tea "charm.land/bubbletea/v2"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Options are how a view behaves.
type Options struct {
	Interval time.Duration // from one Look to the next
	// At is the moment of a recording at which the view begins.
	At time.Duration
	// Plain: there are no colours, whatever the terminal can.
	Plain bool
}

// A Model is the view: what is shown, and where the user is in it.
type Model struct {
	source live.Source
	opts   Options
	span   time.Duration // of a recording, 0 without
	past   []int64       // see Source.Span

	tracker *live.Tracker
	picture *live.Picture // nil before the first
	part    *live.Part    // of picture, as it is shown
	err     error

	width, height int
	looking       bool // a Look is on its way
	again         bool // another one is due when it comes
	at            time.Duration
	paused        bool // a live view stands still, a recording does not go on by itself

	path   []level // what was opened; never empty
	filter string
	typing bool     // the filter
	text   []string // a page of text that is shown instead, nil for none
	top    int      // its first line that is shown

	rows     []snapshot.Allocation // live, of the stack that was opened
	older    int                   // how many older ones there are
	rowsOf   *live.ID
	rowsAt   time.Duration // of the Picture that they are of
	rowsWhen time.Time
}

// A level is one page: a Scope, and where the user is in its lists.
type level struct {
	live.Scope
	focus   list
	lists   [numLists]cursor
	by      live.Sort
	reverse bool
}

// A list is one of the lists of a page.
type list int

const (
	listGPUs list = iota
	listProcesses
	listOwners
	listStacks
	listLines // of accounts
	listFrames
	listAllocations
	numLists
)

// A cursor is the row that is chosen, and the first that is shown.
type cursor struct {
	at, first int
	chosen    any // what the row is of, nil before the user chose one
}

// NewModel returns the view of a source that has shown nothing yet.
func NewModel(source live.Source, opts Options) *Model {
	m := &Model{source: source, opts: opts, tracker: live.NewTracker(), width: 80, height: 24, at: opts.At, path: []level{{focus: listProcesses}}}
	m.span, m.past = source.Span()
	m.at = min(m.at, m.span)
	m.paused = m.span > 0
	return m
}

// Messages beside those of the terminal.
type (
	// lookMsg is a Look that came.
	lookMsg struct {
		look   *live.Look
		before *live.Look // of a window earlier, of a recording when the last one was of another time
		err    error
		of     *live.ID // whose live allocations it has
		jump   bool
	}
	tickMsg time.Time
)

// Init begins to look.
func (m *Model) Init() tea.Cmd { return tea.Batch(m.look(true), m.tick()) }

func (m *Model) tick() tea.Cmd {
	return tea.Tick(m.opts.Interval, func(t time.Time) tea.Msg { return tickMsg(t) })
}

// allocationsEvery is how often the live allocations of a stack are read again: who
// collects events waits while all that live are gone through.
const allocationsEvery = 5 * time.Second

// look takes a Look, or has it taken when the one that is on its way came. jump says
// that it does not follow the last one.
func (m *Model) look(jump bool) tea.Cmd {
	if m.looking {
		m.again = true
		return nil
	}
	m.looking = true
	q := live.Query{At: m.at}
	var of *live.ID
	if id := m.here().Stack; id != nil && id.HasSite() && (m.rowsOf == nil || *m.rowsOf != *id || jump || time.Since(m.rowsWhen) >= allocationsEvery) {
		of, q.Allocations = id, &id.Site
		m.rowsWhen = time.Now()
	}
	source := m.source
	before := live.Query{At: max(m.at-live.Window*m.opts.Interval, 0)}
	and := jump && m.span > 0 && before.At < q.At
	return func() tea.Msg {
		msg := lookMsg{of: of, jump: jump}
		if and {
			msg.before, msg.err = source.Look(before)
		}
		if msg.err == nil {
			msg.look, msg.err = source.Look(q)
		}
		return msg
	}
}

func (m *Model) here() *level { return &m.path[len(m.path)-1] }

// Update takes a message.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tickMsg:
		return m, tea.Batch(m.tick(), m.tock())
	case lookMsg:
		return m, m.looked(&msg)
	case tea.KeyPressMsg:
		return m, m.key(msg)
	case tea.MouseClickMsg:
		return m, m.click(msg.Mouse())
	case tea.MouseWheelMsg:
		m.wheel(msg.Mouse())
	case tea.PasteMsg:
		if m.typing {
			m.setFilter(m.filter + termtext.Plain(msg.Content))
		}
	}
	return m, nil
}

// tock does what is due once an interval.
func (m *Model) tock() tea.Cmd {
	switch {
	case m.paused, m.picture != nil && m.picture.Ended != "":
		return nil
	case m.span > 0:
		if m.looking {
			return nil // it cannot keep up
		}
		m.at = min(m.at+m.opts.Interval, m.span)
		m.paused = m.at == m.span
	case m.looking:
		return nil
	}
	return m.look(false)
}

// looked takes a Look.
func (m *Model) looked(msg *lookMsg) tea.Cmd {
	m.looking = false
	m.err = msg.err
	if msg.err == nil {
		if m.span > 0 || !m.paused || m.picture == nil {
			m.take(msg)
		}
		if msg.of != nil {
			m.rows, m.older, m.rowsOf, m.rowsAt = msg.look.Snapshot.Live, msg.look.Older, msg.of, msg.look.Snapshot.Meta.Duration
			slices.Reverse(m.rows) // the youngest first
		}
		m.show()
	}
	if m.again {
		m.again = false
		return m.look(m.span > 0)
	}
	return nil
}

// take makes the Picture of a Look.
func (m *Model) take(msg *lookMsg) {
	if msg.jump {
		m.tracker.Forget()
	}
	if msg.before != nil {
		m.tracker.Picture(msg.before)
	}
	m.picture = m.tracker.Picture(msg.look)
}

// show makes the part that is shown.
func (m *Model) show() {
	if m.picture == nil {
		return
	}
	h := m.here()
	m.part = m.picture.Part(&h.Scope, strings.ToLower(m.filter), h.by, h.reverse)
	for l := range numLists {
		m.settle(l)
	}
}

func pidText(pid int) string { return strconv.Itoa(pid) }
