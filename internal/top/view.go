package top

import (
	"fmt"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/render"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/output/findings"

	tea "charm.land/bubbletea/v2"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
)

// A screen is the lines that are shown, and the places that can be clicked.
type screen struct {
	lines  []string
	places []place
	slider int // its line, -1 for none
	rows   [numLists]int
}

// View draws the screen.
func (m *Model) View() tea.View {
	v := tea.NewView(strings.Join(m.draw().lines, "\n"))
	v.AltScreen, v.MouseMode = true, tea.MouseModeCellMotion
	v.WindowTitle = "gpumemtrace top"
	return v
}

// draw makes the screen, of m.height lines of at most m.width columns.
func (m *Model) draw() *screen {
	s := &screen{slider: -1}
	if m.width < 20 || m.height < 5 {
		s.lines = []string{render.Shorten("too small", m.width)}
		return s
	}
	if m.text != nil {
		m.drawText(s)
		return s
	}
	m.head(s)
	room := m.height - len(s.lines) - 1
	switch {
	case m.status == nil:
		s.add(render.Fit("Looking ...", m.width, false))
	case m.here().Stack != nil:
		m.drawStack(s, room)
	default:
		m.drawLists(s, room)
	}
	for len(s.lines) < m.height-1 {
		s.add("")
	}
	s.lines = append(s.lines[:m.height-1], m.foot())
	return s
}

func (s *screen) add(lines ...string) { s.lines = append(s.lines, lines...) }

// head writes the title and the figures of all processes.
func (m *Model) head(s *screen) {
	state := "live"
	switch {
	case m.status != nil && m.status.Ended != "":
		state = "ended"
	case m.span > 0 && !m.paused:
		state = "playing"
	case m.span > 0:
		state = "recording"
	case m.paused:
		state = "paused"
	}
	title := "gpumemtrace top"
	if p := m.status; p != nil {
		title += "  " + render.Plain(p.Meta.Target) + "  " + elapsed(p.Elapsed)
		if p.Meta.Driver != "" {
			title += "  driver " + render.Plain(p.Meta.Driver)
		}
	}
	s.add(styleBold.Styled(render.Fit(title, m.width-len(state)-1, false)) + " " + styleHeader.Styled(state))
	if m.span > 0 {
		s.slider = len(s.lines)
		s.add(m.slider())
	}
	if p := m.status; p != nil {
		s.add(m.summary(p)...)
	}
	if m.err != nil {
		s.add(styleWarn.Styled(render.Fit(render.Plain(m.err.Error()), m.width, false)))
	}
	if trail := m.trail(); trail != "" {
		s.add(styleBold.Styled(render.Fit(trail, m.width, false)))
	}
}

// summary returns figures and losses.
func (m *Model) summary(p *live.Status) (lines []string) {
	for _, l := range m.facts(p) {
		lines = append(lines, render.Fit(l, m.width, false))
	}
	if wrong, _ := divided(p.Notes); len(wrong) > 0 { // n shows all of them
		lines = append(lines, styleWarn.Styled(render.Fit(render.Plain(wrong[0]), m.width, false)))
	}
	if len(p.Lost) > 0 {
		var lost []string
		for _, c := range p.Lost {
			lost = append(lost, fmt.Sprintf("%d %s", c.Value, c.Name))
		}
		lines = append(lines, styleWarn.Styled(render.Fit("lost: "+render.Plain(strings.Join(lost, ", ")), m.width, false)))
	}
	return lines
}

// divided returns those of notes that say what is wrong, and the others.
func divided(notes []string) (wrong, others []string) {
	for _, n := range notes {
		if strings.HasPrefix(n, findings.Prefix) {
			wrong = append(wrong, n)
		} else {
			others = append(others, n)
		}
	}
	return wrong, others
}

// facts returns the figures of the rows that are shown, in as many lines as they need.
func (m *Model) facts(p *live.Status) (lines []string) {
	facts := []string{"holds " + atLeast(!m.shown.Total.Known) + bytefmt.Format(m.shown.Total.Held)}
	if p.Window > 0 {
		facts = append(facts, bytefmt.Signed(m.shown.OnGPUs.Grown)+" in "+short(p.Window), "allocates "+bytefmt.Format(int64(m.shown.Total.Rate))+"/s", fmt.Sprintf("%.0f events/s", p.EventRate))
	}
	facts = append(facts, fmt.Sprintf("out of memory %d", m.shown.Total.OutOfMemory), "unexplained "+bytefmt.Format(m.shown.Total.Unexplained))
	if p.Cost != nil {
		facts = append(facts, fmt.Sprintf("own cost %.1f%% of a core, %s", 100*p.Load, bytefmt.Format(p.Cost.Memory)))
	}
	line := ""
	for _, f := range facts {
		if line != "" && render.Width(line)+3+render.Width(f) > m.width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " · "
		}
		line += f
	}
	return append(lines, line)
}

// trail names the rows that were opened.
func (m *Model) trail() string {
	var parts []string
	h := m.here()
	if h.GPU != nil {
		parts = append(parts, "GPU "+render.Plain(*h.GPU))
	}
	if h.PID != nil {
		name := ""
		if m.status != nil {
			for i := range m.status.Processes {
				if x := &m.status.Processes[i]; x.PID == *h.PID {
					name = m.called(x.PID, x.Name) + " "
				}
			}
		}
		parts = append(parts, fmt.Sprintf("process %s(%d)", name, *h.PID))
	}
	if h.Owner != nil {
		parts = append(parts, "owner "+render.Plain(*h.Owner))
	}
	if h.Stack != nil {
		parts = append(parts, "stack")
	}
	if m.filter != "" || m.typing {
		text := "filter: " + m.filter
		if m.typing {
			text += "_"
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return ""
	}
	return "› " + strings.Join(parts, " › ")
}

// slider is the line of a recording's time: how much was in use through it, and where
// the view is.
func (m *Model) slider() string {
	before, after := elapsed(m.at)+" ", " "+elapsed(m.span)
	n := m.width - len(before) - len(after) - 2
	if n < 5 {
		return render.Fit(before, m.width, false)
	}
	at := int(float64(m.at) / float64(m.span) * float64(n-1))
	var high int64 = 1
	for _, x := range m.past {
		high = max(high, x)
	}
	steps := []rune(" ▁▂▃▄▅▆▇█")
	var left, right strings.Builder
	for i := range n {
		// The most of those that the column stands for.
		var most int64
		if len(m.past) > 0 {
			from, to := i*len(m.past)/n, max((i+1)*len(m.past)/n, i*len(m.past)/n+1)
			for _, x := range m.past[from:min(to, len(m.past))] {
				most = max(most, x)
			}
		}
		mark := steps[int(float64(most)/float64(high)*float64(len(steps)-1)+0.5)]
		if i < at {
			left.WriteRune(mark)
		} else if i > at {
			right.WriteRune(mark)
		}
	}
	return before + "▕" + styleBar.Styled(left.String()) + styleWarn.Styled("┃") + styleDim.Styled(right.String()) + "▏" + after
}

// sliderAt returns the time under a column of the slider.
func (m *Model) sliderAt(x int) time.Duration {
	before, after := len(elapsed(m.at))+2, len(elapsed(m.span))+2
	n := m.width - before - after
	if n < 2 {
		return m.at
	}
	return time.Duration(float64(min(max(x-before, 0), n-1)) / float64(n-1) * float64(m.span))
}

// addTable draws a table.
func (h *level) addTable(s *screen, l list, t *table, w, n int) {
	mark := "↓"
	if h.reverse {
		mark = "↑"
	}
	h.lists[l].scroll(t.rows, n)
	lines, places := t.draw(l, w, n, &h.lists[l], h.focus == l, h.by, mark)
	for i := range places {
		places[i].y += len(s.lines)
	}
	s.places = append(s.places, places...)
	s.add(lines...)
	s.rows[l] = n
}

// lists are those of the page, in order.
func (m *Model) lists() []list {
	h := m.here()
	switch {
	case h.Stack != nil:
		return []list{listFrames, listAllocations}
	case h.Owner != nil:
		return []list{listStacks}
	case h.PID != nil:
		return []list{listLines, listOwners, listStacks}
	case h.GPU != nil:
		return []list{listProcesses, listOwners, listStacks}
	}
	return []list{listGPUs, listProcesses, listOwners, listStacks}
}

// tableOf returns a list's table.
func (m *Model) tableOf(l list) *table {
	switch l {
	case listGPUs:
		return m.gpuTable()
	case listProcesses:
		return m.processTable()
	case listOwners:
		return m.ownerTable()
	case listStacks:
		return m.stackTable()
	case listLines:
		return m.lineTable()
	case listFrames:
		if x := m.opened(); x != nil {
			return m.frameTable(x)
		}
	case listAllocations:
		return m.allocationTable()
	}
	return &table{columns: []column{{cell: func(int) cell { return cell{} }}}}
}

// wide is the width from which on two lists are side by side.
const wide = 150

// drawLists draws the lists of a page that is not of one stack.
func (m *Model) drawLists(s *screen, room int) {
	h := m.here()
	lists := m.lists()
	if room < 4*len(lists) { // the one that the user is in
		m.here().addTable(s, h.focus, m.tableOf(h.focus), m.width, room-1)
		return
	}
	end := len(s.lines) + room
	for i := 0; i < len(lists); i++ {
		l := lists[i]
		t, more := m.tableOf(l), ""
		if l == listStacks {
			rest := end - len(s.lines) - 1
			m.here().addTable(s, l, t, m.width, rest)
			continue
		}
		share := max(room/5-1, 2)
		if l == listLines {
			share = max(room*2/5, 2)
		}
		if m.width >= wide && i+1 < len(lists) && lists[i+1] == listOwners {
			other := m.tableOf(listOwners)
			n := min(max(t.rows, other.rows, 1), max(room/3, 2))
			m.beside(s, l, t, listOwners, other, n)
			i++
		} else {
			n := min(max(t.rows, 1), share)
			m.here().addTable(s, l, t, m.width, n)
			if t.rows > n {
				more = fmt.Sprintf("%d of %d", n, t.rows)
			}
		}
		s.add(styleDim.Styled(more))
	}
}

// beside draws two tables side by side.
func (m *Model) beside(s *screen, l list, t *table, r list, other *table, n int) {
	const between = 4
	w := (m.width - between) * 3 / 5
	var left, right screen
	m.here().addTable(&left, l, t, w, n)
	m.here().addTable(&right, r, other, m.width-between-w, n)
	for i := range max(len(left.lines), len(right.lines)) {
		line := strings.Repeat(" ", w)
		if i < len(left.lines) {
			line = left.lines[i]
		}
		if i < len(right.lines) {
			line += strings.Repeat(" ", between) + right.lines[i]
		}
		s.add(line)
	}
	top := len(s.lines) - max(len(left.lines), len(right.lines))
	for _, p := range left.places {
		p.y += top
		p.width = min(p.width, w-p.x)
		s.places = append(s.places, p)
	}
	for _, p := range right.places {
		p.y += top
		p.x += w + between
		s.places = append(s.places, p)
	}
	s.rows[l], s.rows[r] = n, n
}

// opened is the stack that was opened, nil if it is gone.
func (m *Model) opened() *live.Stack {
	for _, x := range m.status.Stacks {
		if id := m.here().Stack; id != nil && x.ID == *id {
			return x
		}
	}
	return nil
}

// drawStack draws one stack: its figures, its frames, its live allocations.
func (m *Model) drawStack(s *screen, room int) {
	x := m.opened()
	if x == nil {
		s.add(render.Fit("This stack holds nothing any more, and is not kept.", m.width, false))
		return
	}
	end := len(s.lines) + room
	v := &x.Sample.Values
	figures := fmt.Sprintf("in use %s in %d objects · peak %s · allocated %s in %d",
		bytefmt.Format(v.InuseBytes), v.InuseObjects, bytefmt.Format(v.PeakBytes), bytefmt.Format(v.AllocBytes), v.AllocObjects)
	if p := m.status; p.Window > 0 {
		figures += fmt.Sprintf(" · %s in %s · allocates %s/s", bytefmt.Signed(x.Grown), short(p.Window), bytefmt.Format(int64(x.Rate)))
	}
	s.add(render.Wrap(m.named(x), m.width, 0)...)
	s.add(render.Wrap(figures, m.width, 0)...)
	if holder := x.Holder(); holder != "" {
		s.add(render.Wrap("held by "+render.Plain(holder), m.width, 0)...)
	}
	if v.FailedObjects > 0 {
		s.add(styleWarn.Styled(render.Fit(fmt.Sprintf("%d calls for %s failed", v.FailedObjects, bytefmt.Format(v.FailedBytes)), m.width, false)))
	}
	s.add("")
	rest := end - len(s.lines)
	frames, rows := m.frameTable(x), m.allocationTable()
	n := min(frames.rows, max(rest/2-2, 1))
	if !x.ID.HasSite() {
		n = min(frames.rows, max(rest-3, 1))
	}
	m.here().addTable(s, listFrames, frames, m.width, n)
	s.add("")
	switch {
	case !x.ID.HasSite():
		s.add(styleDim.Styled(render.Fit("What the driver takes for itself, and what is added up from others, has no list of allocations.", m.width, false)))
	case m.rowsOf == nil || *m.rowsOf != x.ID:
		s.add(styleDim.Styled(render.Fit("Looking for its live allocations ...", m.width, false)))
	case len(m.rows) == 0:
		s.add(styleDim.Styled(render.Fit("None of its allocations is live.", m.width, false)))
	default:
		text := fmt.Sprintf("%d live allocations as of %s, the youngest first", len(m.rows)+m.older, elapsed(m.rowsAt))
		if m.older > 0 {
			text = fmt.Sprintf("%d live allocations as of %s, of them the youngest %d", len(m.rows)+m.older, elapsed(m.rowsAt), len(m.rows))
		}
		s.add(styleDim.Styled(render.Fit(text, m.width, false)))
		n := max(end-len(s.lines)-1, 0)
		m.here().addTable(s, listAllocations, rows, m.width, n)
	}
}

// foot lists keys.
func (m *Model) foot() string {
	keys := []string{"q quit", "? help", "↑↓ choose", "Enter open", "Esc back", "Tab next list", "s sort by " + m.here().by.String(), "/ filter", "Space " + map[bool]string{true: "go on", false: "pause"}[m.paused]}
	if m.here().Stack != nil {
		keys[3] = "f " + map[bool]string{true: "fold native frames", false: "native frames"}[m.native]
	}
	if m.span > 0 {
		keys = append(keys, "←→ time")
	}
	if m.status != nil && len(m.status.Notes) > 0 {
		keys = append(keys, fmt.Sprintf("n notes (%d)", len(m.status.Notes)))
	}
	if m.typing {
		keys = []string{"Enter keeps the filter", "Esc clears it"}
	}
	text := ""
	for _, k := range keys {
		if render.Width(text)+render.Width(k)+3 > m.width {
			break
		}
		if text != "" {
			text += " · "
		}
		text += k
	}
	return styleDim.Styled(render.Fit(text, m.width, false))
}
