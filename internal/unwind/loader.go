package unwind

import (
	"context"

	"github.com/cilium/ebpf"
)

// A Loader starts an Unwinder when the programs whose maps it shares are
// there: its Exit is a probes.Options.Exit.
type Loader struct {
	// Options but Maps, Constants and Attach.
	Options Options
	// Unwinder is set by Exit, nil if it could not start; then Err says why.
	Unwinder *Unwinder
	Err      error
}

// Exit starts the unwinder and returns its return program, or nil when it
// cannot run here.
func (l *Loader) Exit(maps map[string]*ebpf.Map, constants map[string]any, attach ebpf.AttachType) (*ebpf.Program, error) {
	opts := l.Options
	opts.Maps, opts.Constants, opts.Attach = maps, constants, attach
	l.Unwinder, l.Err = Start(context.Background(), opts)
	if l.Err != nil {
		l.Unwinder = nil
		return nil, nil
	}
	return l.Unwinder.ExitProgram(), nil
}
