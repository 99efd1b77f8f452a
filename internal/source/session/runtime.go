package session

import (
	"context"
	"time"

	"github.com/gpumemtrace/gpumemtrace/probes"
)

// Measure has the kernel measure what the BPF programs take for so long: see
// probes.Tracer.
func (s *Session) Measure(ctx context.Context, d time.Duration) error {
	return s.tracer.Measure(ctx, d)
}

// RunTime returns what was measured so far.
func (s *Session) RunTime() probes.RunTime { return s.tracer.RunTime() }
