package live

import (
	"time"
)

// Once returns the Picture of a source at a moment, with the changes of the interval
// before it. Of a live source it waits for the interval to pass.
func Once(source Source, at, interval time.Duration, wait func(time.Duration) bool) (*Picture, error) {
	t := NewTracker()
	span, _ := source.Span()
	first := Query{At: max(min(at, span)-interval, 0)}
	l, err := source.Look(first)
	if err != nil {
		return nil, err
	}
	p := t.Picture(l)
	switch {
	case span > 0 && at <= first.At, span == 0 && l.Ended == "" && !wait(interval):
		return p, nil
	}
	if l, err = source.Look(Query{At: at}); err != nil {
		return nil, err
	}
	return t.Picture(l), nil
}

// Each calls use with a Picture of a live source after each interval, until the source
// ends or wait returns false.
func Each(source Source, interval time.Duration, wait func(time.Duration) bool, use func(*Picture) error) error {
	t := NewTracker()
	for {
		l, err := source.Look(Query{})
		if err != nil {
			return err
		}
		if err := use(t.Picture(l)); err != nil {
			return err
		}
		if l.Ended != "" || !wait(interval) {
			return nil
		}
	}
}
