package top

import (
	"context"
	"fmt"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/colorprofile"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
)

// framesPerSecond is how often the screen is drawn at most: nothing moves faster than
// keys are pressed.
const framesPerSecond = 20

// Run shows the view in the terminal until the user quits, or ctx ends.
func Run(ctx context.Context, source live.Source, opts Options) error {
	options := []tea.ProgramOption{tea.WithFPS(framesPerSecond), tea.WithoutSignalHandler()}
	if opts.Plain {
		options = append(options, tea.WithColorProfile(colorprofile.ASCII))
	}
	p := tea.NewProgram(NewModel(source, opts), options...)
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-ctx.Done():
			p.Quit()
		case <-over:
		}
	}()
	if _, err := p.Run(); err != nil {
		return fmt.Errorf("show the view: %w", err)
	}
	return nil
}
