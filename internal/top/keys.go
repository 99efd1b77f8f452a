package top

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/termtext"

	tea "charm.land/bubbletea/v2"
)

// helpText is the page of help, a line each.
var helpText = []string{
	"KEYS",
	"  q, Ctrl-C        quit (a command that was started with -- goes on)",
	"  ↑ ↓ PgUp PgDn    choose a row; g and G the first and the last",
	"  Tab, Shift-Tab   the next list, the one before",
	"  Enter            open the row: a GPU, a process, an owner, a stack",
	"  Esc, Backspace   back",
	"  s, S             sort by the next column; turn the order round",
	"  /                show only what has a text: in a name, an owner, a frame",
	"  Space            pause; of a recording, play on",
	"  ← →              of a recording: a hundredth of it back, on",
	"  [ ]              of a recording: a second back, on",
	"  Home, End        of a recording: its beginning, its end",
	"  r                look now",
	"  n                what was lost, and notes",
	"  ?                this page",
	"  The mouse chooses a row, opens the one that is chosen, sorts by a heading, moves through time on the slider, and scrolls.",
	"",
	"WHAT IS SHOWN",
	"  TRACED, HOLDS    what traced processes hold on a GPU, of whatever cause",
	"  USED, OF         what all processes use, and what there is, as NVML says",
	"  bar              █ traced, ▒ others; without NVML's total, of the most so far",
	"  IN USE           what the program has allocated and not freed",
	"  IN 10s           by how much that changed in this time",
	"  RATE             bytes allocated a second, since the refresh before",
	"  PEAK             of a process its highest total; of a stack what it held then",
	"  UNEXPLAINED      memory on GPUs of no known cause, as from before an attach",
	"  OOM              calls that failed for want of memory",
	"  OWNER            whose code asked for it: a library, the program",
	"  lost             counters of what was not seen; n says what each is",
	"  own cost         of this process: of a core since the refresh before, and the most memory that it had",
}

// notes is the page of what was lost, and of what else must be known.
func (m *Model) notes() []string {
	out := []string{"LOST"}
	if m.picture == nil || len(m.picture.Lost) == 0 {
		out = append(out, "  nothing")
	}
	if m.picture == nil {
		return out
	}
	for _, c := range m.picture.Lost {
		out = append(out, fmt.Sprintf("  %d %s (%s)", c.Value, termtext.Plain(c.Help), termtext.Plain(c.Name)))
	}
	out = append(out, "", "NOTES")
	for _, n := range m.picture.Notes {
		out = append(out, "  "+termtext.Plain(n))
	}
	return out
}

// drawText draws a page of text.
func (m *Model) drawText(s *screen) {
	lines := termtext.Wrap(m.text, m.width)
	m.top = min(max(m.top, 0), max(len(lines)-m.height+1, 0))
	for _, l := range lines[m.top:min(m.top+m.height-1, len(lines))] {
		s.add(termtext.Cut(l, m.width))
	}
	for len(s.lines) < m.height-1 {
		s.add("")
	}
	s.add(styleDim.Render(termtext.Fit("any other key goes back · ↑↓ scroll", m.width, false)))
}

// key does what a key says.
func (m *Model) key(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	if name == "ctrl+c" {
		return tea.Quit
	}
	switch {
	case m.text != nil:
		switch name {
		case "up", "k":
			m.top--
		case "down", "j":
			m.top++
		case "pgup":
			m.top -= m.height
		case "pgdown":
			m.top += m.height
		default:
			m.text = nil
		}
		return nil
	case m.typing:
		m.write(name, k.Text)
		return nil
	}
	switch name {
	case "q":
		return tea.Quit
	case "?", "h", "f1":
		m.text, m.top = helpText, 0
	case "n":
		m.text, m.top = m.notes(), 0
	case "up", "k":
		m.move(-1)
	case "down", "j":
		m.move(1)
	case "pgup":
		m.move(-m.page())
	case "pgdown":
		m.move(m.page())
	case "g":
		m.move(-1 << 30)
	case "G":
		m.move(1 << 30)
	case "tab":
		m.turn(1)
	case "shift+tab":
		m.turn(-1)
	case "enter":
		return m.open()
	case "alt+esc": // pressed twice, quickly
		m.back()
		m.back()
	case "esc", "backspace":
		m.back()
	case "s":
		m.here().by = m.here().by.Next()
		m.show()
	case "S":
		m.here().reverse = !m.here().reverse
		m.show()
	case "/":
		m.typing = true
	case "space":
		m.paused = !m.paused
		if m.span > 0 && m.at >= m.span && !m.paused {
			return m.seek(0)
		}
	case "r":
		return m.look(m.span > 0)
	case "left":
		return m.seek(m.at - m.step())
	case "right":
		return m.seek(m.at + m.step())
	case "[":
		return m.seek(m.at - time.Second)
	case "]":
		return m.seek(m.at + time.Second)
	case "home":
		return m.seek(0)
	case "end":
		return m.seek(m.span)
	}
	return nil
}

// step is a hundredth of a recording, a millisecond at least.
func (m *Model) step() time.Duration { return max(m.span/100, time.Millisecond) }

// seek goes to a moment of a recording.
func (m *Model) seek(at time.Duration) tea.Cmd {
	if m.span == 0 {
		return nil
	}
	m.at = min(max(at, 0), m.span)
	return m.look(true)
}

// maxFilter bounds the characters of a filter.
const maxFilter = 100

// write edits the filter.
func (m *Model) write(name, text string) {
	switch name {
	case "enter":
		m.typing = false
	case "esc":
		m.typing = false
		m.setFilter("")
	case "backspace":
		_, n := utf8.DecodeLastRuneInString(m.filter)
		m.setFilter(m.filter[:len(m.filter)-n])
	default:
		m.setFilter(m.filter + termtext.Plain(text))
	}
}

func (m *Model) setFilter(text string) {
	if r := []rune(text); len(r) > maxFilter {
		text = string(r[:maxFilter])
	}
	m.filter = text
	m.show()
}

// turn moves to another list of the page.
func (m *Model) turn(n int) {
	lists := m.lists()
	at := max(slices.Index(lists, m.here().focus), 0)
	m.here().focus = lists[(at+n+len(lists))%len(lists)]
}

// page is how many rows the list has that the user is in.
func (m *Model) page() int { return max(m.draw().rows[m.here().focus]-1, 1) }

// move moves the choice.
func (m *Model) move(n int) {
	if m.picture == nil {
		return
	}
	l := m.here().focus
	m.choose(l, m.here().lists[l].at+n)
}

// choose chooses a row.
func (m *Model) choose(l list, row int) {
	t := m.tableOf(l)
	c := &m.here().lists[l]
	c.at = min(max(row, 0), max(t.rows-1, 0))
	if c.chosen = nil; t.rows > 0 && t.of != nil {
		c.chosen = t.of(c.at)
	}
}

// settle finds the row again that was chosen, wherever it is by now.
func (m *Model) settle(l list) {
	c := &m.here().lists[l]
	if !slices.Contains(m.lists(), l) {
		return
	}
	t := m.tableOf(l)
	if c.chosen != nil {
		if i := t.where(c.chosen); i >= 0 {
			c.at = i
			return
		}
	}
	c.at = min(c.at, max(t.rows-1, 0))
}

// where returns the row of what was chosen, -1 for none.
func (t *table) where(chosen any) int {
	if t.find != nil {
		return t.find(chosen)
	}
	for i := range t.rows {
		if t.of(i) == chosen {
			return i
		}
	}
	return -1
}

// give scrolls a list so that its choice is in n rows.
func (m *Model) give(l list, n int) {
	c := &m.here().lists[l]
	rows := m.tableOf(l).rows
	c.at = min(c.at, max(rows-1, 0))
	c.first = min(c.first, max(rows-n, 0), c.at)
	if n > 0 && c.at >= c.first+n {
		c.first = c.at - n + 1
	}
}

// open opens the row that is chosen.
func (m *Model) open() tea.Cmd {
	if m.picture == nil {
		return nil
	}
	h := m.here()
	t := m.tableOf(h.focus)
	at := h.lists[h.focus].at
	if at >= t.rows || t.of == nil {
		return nil
	}
	m.choose(h.focus, at)
	next := level{Scope: h.Scope, by: h.by, reverse: h.reverse}
	switch of := t.of(at).(type) {
	case string:
		switch h.focus {
		case listGPUs:
			next.GPU, next.focus = &of, listProcesses
		case listOwners:
			next.Owner, next.focus = &of, listStacks
		default:
			return nil
		}
	case int:
		if h.focus != listProcesses {
			return nil
		}
		next.PID, next.focus = &of, listStacks
	case live.ID:
		next.Stack, next.focus = &of, listFrames
	default:
		return nil
	}
	m.path = append(m.path, next)
	m.show()
	if next.Stack != nil {
		return m.look(m.span > 0)
	}
	return nil
}

// back leaves what was opened last, or else drops the filter.
func (m *Model) back() {
	if len(m.path) > 1 {
		m.path = m.path[:len(m.path)-1]
	} else {
		m.filter = ""
	}
	m.show()
}

// click chooses what was clicked on, or opens it if it was chosen.
func (m *Model) click(at tea.Mouse) tea.Cmd {
	if m.text != nil || m.picture == nil || at.Button != tea.MouseLeft {
		return nil
	}
	s := m.draw()
	if at.Y == s.slider {
		return m.seek(m.sliderAt(at.X))
	}
	for _, p := range s.places {
		if at.Y != p.y || at.X < p.x || at.X >= p.x+p.width {
			continue
		}
		h := m.here()
		again := h.focus == p.list && h.lists[p.list].at == p.row
		h.focus = p.list
		switch {
		case p.row >= 0 && again:
			return m.open()
		case p.row >= 0:
			m.choose(p.list, p.row)
		case p.by >= 0:
			if h.by == p.by {
				h.reverse = !h.reverse
			}
			h.by = p.by
			m.show()
		}
		return nil
	}
	return nil
}

// wheelRows is how many rows the wheel moves.
const wheelRows = 3

func (m *Model) wheel(at tea.Mouse) {
	n := wheelRows
	switch at.Button {
	case tea.MouseWheelUp:
		n = -n
	case tea.MouseWheelDown:
	default:
		return
	}
	if m.text != nil {
		m.top += n
		return
	}
	if m.picture == nil {
		return
	}
	for _, p := range m.draw().places {
		if p.y == at.Y && at.X >= p.x && at.X < p.x+p.width {
			m.here().focus = p.list
			break
		}
	}
	m.move(n)
}
