// Package top shows in a terminal what package live follows.
package top

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/render"

	"github.com/gpumemtrace/gpumemtrace/internal/live"

	tea "charm.land/bubbletea/v2"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// Options are how a view behaves.
type Options struct {
	Interval time.Duration // from one snapshot to the next
	// At is the moment of a recording at which the view begins.
	At time.Duration
	// Plain: there are no colours, whatever the terminal can.
	Plain bool
}

// A Model is the view: its data, and where the user is in it.
type Model struct {
	source live.Source
	opts   Options
	span   time.Duration // of a recording, 0 without
	past   []int64       // see Source.Span

	tracker *live.Tracker
	status  *live.Status // nil before the first
	shown   *live.Status // the rows of status that are shown
	err     error

	width, height int
	waiting       bool // a snapshot is on its way
	again         bool // another snapshot is due when it comes
	at            time.Duration
	paused        bool // a live view stands still, a recording does not go on by itself

	path   []level // the pages that were opened; never empty
	filter string
	typing bool     // the filter
	text   []string // a page of text that is shown instead, nil for none
	top    int      // its first line that is shown
	native bool     // native frames are shown, beside Python frames too

	rows     []snapshot.Allocation // live, of the stack that was opened
	older    int                   // how many older ones there are
	rowsOf   *live.ID
	rowsAt   time.Duration // of the status that they are of
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
	chosen    any // identifies the row, nil before the user chose one
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
	// A snapshotMsg is a snapshot that came.
	snapshotMsg struct {
		snapshot *live.Snapshot
		before   *live.Snapshot // of a window earlier, of a recording when the last one was of another time
		err      error
		of       *live.ID // the stack whose live allocations it has
		jump     bool
	}
	tickMsg time.Time
)

// Init asks for the first snapshot.
func (m *Model) Init() tea.Cmd { return tea.Batch(m.request(true), m.tick()) }

func (m *Model) tick() tea.Cmd {
	return tea.Tick(m.opts.Interval, func(t time.Time) tea.Msg { return tickMsg(t) })
}

// allocationsEvery is how often the live allocations of a stack are read again: the
// collection of events waits while all live allocations are read.
const allocationsEvery = 5 * time.Second

// request asks for a snapshot, at once or when the one that is on its way has come. jump says
// that it does not follow the last one.
func (m *Model) request(jump bool) tea.Cmd {
	if m.waiting {
		m.again = true
		return nil
	}
	m.waiting = true
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
		msg := snapshotMsg{of: of, jump: jump}
		if and {
			msg.before, msg.err = source.Snapshot(before)
		}
		if msg.err == nil {
			msg.snapshot, msg.err = source.Snapshot(q)
		}
		return msg
	}
}

func (m *Model) here() *level { return &m.path[len(m.path)-1] }

// Update handles a message.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tickMsg:
		return m, tea.Batch(m.tick(), m.tock())
	case snapshotMsg:
		return m, m.receive(&msg)
	case tea.KeyPressMsg:
		return m, m.key(msg)
	case tea.MouseClickMsg:
		return m, m.click(msg.Mouse())
	case tea.MouseWheelMsg:
		m.wheel(msg.Mouse())
	case tea.PasteMsg:
		if m.typing {
			m.setFilter(m.filter + render.Plain(msg.Content))
		}
	}
	return m, nil
}

// tock does what is due at each interval.
func (m *Model) tock() tea.Cmd {
	switch {
	case m.paused, m.status != nil && m.status.Ended != "":
		return nil
	case m.span > 0:
		if m.waiting {
			return nil // the recording plays more slowly
		}
		m.at = min(m.at+m.opts.Interval, m.span)
		m.paused = m.at == m.span
	case m.waiting:
		return nil
	}
	return m.request(false)
}

// receive shows a snapshot that came.
func (m *Model) receive(msg *snapshotMsg) tea.Cmd {
	m.waiting = false
	m.err = msg.err
	if msg.err == nil {
		if m.span > 0 || !m.paused || m.status == nil {
			m.track(msg)
		}
		if msg.of != nil {
			m.rows, m.older, m.rowsOf, m.rowsAt = msg.snapshot.Snapshot.Live, msg.snapshot.Older, msg.of, msg.snapshot.Snapshot.Meta.Duration
			slices.Reverse(m.rows) // the youngest first
		}
		m.show()
	}
	if m.again {
		m.again = false
		return m.request(m.span > 0)
	}
	return nil
}

// track compares a snapshot with those before.
func (m *Model) track(msg *snapshotMsg) {
	if msg.jump {
		m.tracker.Forget()
	}
	if msg.before != nil {
		m.tracker.Add(msg.before)
	}
	m.status = m.tracker.Add(msg.snapshot)
}

// show selects the rows that are shown.
func (m *Model) show() tea.Cmd {
	if m.status == nil {
		return nil
	}
	h := m.here()
	m.shown = m.status.Select(&h.Scope, strings.ToLower(m.filter), h.by, h.reverse)
	for l := range numLists {
		m.follow(l)
	}
	return nil
}

func pidText(pid int) string { return strconv.Itoa(pid) }
