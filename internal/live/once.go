package live

import (
	"time"
)

// Once returns the status of a source at a moment, with the changes of the interval before
// it. If the source is live, Once waits for the interval to pass.
func Once(source Source, at, interval time.Duration, wait func(time.Duration) bool) (*Status, error) {
	t := NewTracker()
	span, _ := source.Span()
	first := Query{At: max(min(at, span)-interval, 0)}
	l, err := source.Snapshot(first)
	if err != nil {
		return nil, err
	}
	p := t.Add(l)
	switch {
	case span > 0 && at <= first.At, span == 0 && l.Ended == "" && !wait(interval):
		return p, nil
	}
	if l, err = source.Snapshot(Query{At: at}); err != nil {
		return nil, err
	}
	t.looked = time.Time{} // of this moment
	return t.Add(l), nil
}

// Each calls use with the status of a live source after each interval, until the source
// ends or wait returns false.
func Each(source Source, interval time.Duration, wait func(time.Duration) bool, use func(*Status) error) error {
	t := NewTracker()
	for {
		l, err := source.Snapshot(Query{})
		if err != nil {
			return err
		}
		if err := use(t.Add(l)); err != nil {
			return err
		}
		if l.Ended != "" || !wait(interval) {
			return nil
		}
	}
}
