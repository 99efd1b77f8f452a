package top

import (
	"time"
)

// Once returns the Picture of a source as of at, with what changed since an interval
// before: of a live one that is waited for.
func Once(source Source, opts Options, wait func(time.Duration) bool) (*Picture, error) {
	t := NewTracker()
	span, _ := source.Span()
	first := Query{At: max(min(opts.At, span)-opts.Interval, 0)}
	l, err := source.Look(first)
	if err != nil {
		return nil, err
	}
	p := t.Picture(l)
	switch {
	case span > 0 && opts.At <= first.At, span == 0 && l.Ended == "" && !wait(opts.Interval):
		return p, nil
	}
	if l, err = source.Look(Query{At: opts.At}); err != nil {
		return nil, err
	}
	return t.Picture(l), nil
}

// Each tells each Picture of a live source, an interval after the other, until it ends or
// wait says that nobody wants more.
func Each(source Source, opts Options, wait func(time.Duration) bool, tell func(*Picture) error) error {
	t := NewTracker()
	for {
		l, err := source.Look(Query{})
		if err != nil {
			return err
		}
		if err := tell(t.Picture(l)); err != nil {
			return err
		}
		if l.Ended != "" || !wait(opts.Interval) {
			return nil
		}
	}
}
