package top

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/gpumemtrace/gpumemtrace/internal/render"

	"github.com/gpumemtrace/gpumemtrace/internal/live"

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
	"  f                of a stack: show native frames beside Python's, and fold them again",
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

// notes is the page of losses and notes.
func (m *Model) notes() []string {
	out := []string{"LOST"}
	if m.status == nil || len(m.status.Lost) == 0 {
		out = append(out, "  nothing")
	}
	if m.status == nil {
		return out
	}
	for _, c := range m.status.Lost {
		out = append(out, fmt.Sprintf("  %d %s (%s)", c.Value, render.Plain(c.Help), render.Plain(c.Name)))
	}
	out = append(out, "", "NOTES")
	for _, n := range m.status.Notes {
		out = append(out, "  "+render.Plain(n))
	}
	return out
}

// drawText draws a page of text.
func (m *Model) drawText(s *screen) {
	var lines []string
	for _, l := range m.text {
		lines = append(lines, render.Wrap(l, m.width, 0)...)
	}
	m.top = min(max(m.top, 0), max(len(lines)-m.height+1, 0))
	for _, l := range lines[m.top:min(m.top+m.height-1, len(lines))] {
		s.add(l)
	}
	for len(s.lines) < m.height-1 {
		s.add("")
	}
	s.add(styleDim.Styled(render.Fit("any other key goes back · ↑↓ scroll", m.width, false)))
}

// bindings are the keys while a list is shown.
var bindings = map[string]func(*Model) tea.Cmd{
	"q": func(*Model) tea.Cmd { return tea.Quit },
	"?": (*Model).help, "h": (*Model).help, "f1": (*Model).help,
	"n":  func(m *Model) tea.Cmd { return m.read(m.notes()) },
	"up": rows(-1), "k": rows(-1), "down": rows(1), "j": rows(1), "g": rows(-1 << 30), "G": rows(1 << 30),
	"pgup":      func(m *Model) tea.Cmd { return m.move(-m.page()) },
	"pgdown":    func(m *Model) tea.Cmd { return m.move(m.page()) },
	"tab":       func(m *Model) tea.Cmd { return m.turn(1) },
	"shift+tab": func(m *Model) tea.Cmd { return m.turn(-1) },
	"enter":     (*Model).open,
	"esc":       (*Model).back, "backspace": (*Model).back,
	"alt+esc": func(m *Model) tea.Cmd { m.back(); return m.back() }, // pressed twice, quickly
	"s":       func(m *Model) tea.Cmd { m.here().by = m.here().by.Next(); return m.show() },
	"S":       func(m *Model) tea.Cmd { m.here().reverse = !m.here().reverse; return m.show() },
	"/":       func(m *Model) tea.Cmd { m.typing = true; return nil },
	"f":       func(m *Model) tea.Cmd { m.native = !m.native; return m.show() },
	"space":   (*Model).pause,
	"r":       func(m *Model) tea.Cmd { return m.request(m.span > 0) },
	"left":    func(m *Model) tea.Cmd { return m.seek(m.at - m.step()) },
	"right":   func(m *Model) tea.Cmd { return m.seek(m.at + m.step()) },
	"[":       func(m *Model) tea.Cmd { return m.seek(m.at - time.Second) },
	"]":       func(m *Model) tea.Cmd { return m.seek(m.at + time.Second) },
	"home":    func(m *Model) tea.Cmd { return m.seek(0) },
	"end":     func(m *Model) tea.Cmd { return m.seek(m.span) },
}

func rows(n int) func(*Model) tea.Cmd { return func(m *Model) tea.Cmd { return m.move(n) } }

// key handles a key.
func (m *Model) key(k tea.KeyPressMsg) tea.Cmd {
	name := k.String()
	switch do := bindings[name]; {
	case name == "ctrl+c":
		return tea.Quit
	case m.text != nil:
		by, scrolls := map[string]int{"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -m.height, "pgdown": m.height}[name]
		if m.top += by; !scrolls {
			m.text = nil
		}
	case m.typing:
		m.write(name, k.Text)
	case do != nil:
		return do(m)
	}
	return nil
}

func (m *Model) help() tea.Cmd { return m.read(helpText) }

// read shows a page of text.
func (m *Model) read(text []string) tea.Cmd {
	m.text, m.top = text, 0
	return nil
}

// pause pauses, or goes on; at the end of a recording it begins again.
func (m *Model) pause() tea.Cmd {
	m.paused = !m.paused
	if m.span > 0 && m.at >= m.span && !m.paused {
		return m.seek(0)
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
	return m.request(true)
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
		m.setFilter(m.filter + render.Plain(text))
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
func (m *Model) turn(n int) tea.Cmd {
	lists := m.lists()
	at := max(slices.Index(lists, m.here().focus), 0)
	m.here().focus = lists[(at+n+len(lists))%len(lists)]
	return nil
}

// page is how many rows the list has that the user is in.
func (m *Model) page() int { return max(m.draw().rows[m.here().focus]-1, 1) }

// move moves the choice.
func (m *Model) move(n int) tea.Cmd {
	if m.status != nil {
		l := m.here().focus
		m.choose(l, m.here().lists[l].at+n)
	}
	return nil
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

// follow moves the cursor to the row that was chosen, wherever it is by now.
func (m *Model) follow(l list) {
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

// where returns the row that was chosen, -1 for none.
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

// scroll moves the first row that is shown, so that the chosen one is among n.
func (c *cursor) scroll(rows, n int) {
	c.at = min(c.at, max(rows-1, 0))
	c.first = min(c.first, max(rows-n, 0), c.at)
	if n > 0 && c.at >= c.first+n {
		c.first = c.at - n + 1
	}
}

// open opens the row that is chosen.
func (m *Model) open() tea.Cmd {
	if m.status == nil {
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
		return m.request(m.span > 0)
	}
	return nil
}

// back leaves the page that was opened last, or else drops the filter.
func (m *Model) back() tea.Cmd {
	if len(m.path) > 1 {
		m.path = m.path[:len(m.path)-1]
	} else {
		m.filter = ""
	}
	return m.show()
}

// click chooses the row under the mouse, or opens it if it was chosen.
func (m *Model) click(at tea.Mouse) tea.Cmd {
	if m.text != nil || m.status == nil || at.Button != tea.MouseLeft {
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
	if m.status == nil {
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
