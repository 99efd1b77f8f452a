package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A progress shows on one line how far a task of more than a second has come. The line has
// no colour, and is removed when the task is done.
type progress struct {
	w     io.Writer // nil for none
	what  string
	width int // of the terminal
	now   func() time.Time
	next  time.Time // when to write again
	shown int       // columns
}

const (
	progressAfter = time.Second
	progressEvery = 200 * time.Millisecond
)

// newProgress returns a progress. It writes to f if f is a terminal and wanted is true.
func newProgress(f *os.File, wanted bool, what string) *progress {
	p := &progress{what: render.Clean(what), width: columns(f), now: time.Now}
	if wanted && p.width > 0 {
		p.w = f
	}
	p.next = p.now().Add(progressAfter)
	return p
}

// show shows which part of the task is done, from 0 to 1.
func (p *progress) show(part float64) {
	if p.w == nil {
		return
	}
	now := p.now()
	if now.Before(p.next) {
		return
	}
	p.next = now.Add(progressEvery)
	text := []rune(fmt.Sprintf("gpumemtrace: %3.0f%% %s", 100*part, p.what))
	text = text[:min(len(text), max(p.width-1, 0))]
	fmt.Fprintf(p.w, "\r%s%s", string(text), strings.Repeat(" ", max(p.shown-len(text), 0)))
	p.shown = len(text)
}

// clear removes the line.
func (p *progress) clear() {
	if p.shown > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.shown))
		p.shown = 0
	}
}
