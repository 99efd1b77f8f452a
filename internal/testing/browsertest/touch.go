package browsertest

import (
	"context"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
)

// A Point is one of the window, in pixels.
type Point struct{ X, Y float64 }

// A Path is where a finger goes.
type Path struct{ From, To Point }

// moves are in how many parts fingers go their paths.
const moves = 8

// Phone has the page be on a phone, whose screen is touched.
func (b *Browser) Phone(width, height int64) {
	b.t.Helper()
	b.Run(chromedp.EmulateViewport(width, height, chromedp.EmulateMobile, chromedp.EmulateTouch))
}

// Drag puts fingers on the page, moves them, and lifts them. One that stays taps. Fingers
// rest before they are lifted, so that nothing goes on moving.
func (b *Browser) Drag(fingers ...Path) {
	b.t.Helper()
	at := func(part float64) (all []*input.TouchPoint) {
		for i, f := range fingers {
			all = append(all, &input.TouchPoint{ID: new(float64(i)), X: f.From.X + part*(f.To.X-f.From.X), Y: f.From.Y + part*(f.To.Y-f.From.Y)})
		}
		return all
	}
	now := time.Now()
	b.touch(input.DispatchTouchEventTypeTouchStart, at(0), now)
	if fingers[0].From != fingers[0].To {
		for i := range moves {
			now = now.Add(50 * time.Millisecond)
			b.touch(input.DispatchTouchEventTypeTouchMove, at(float64(i+1)/moves), now)
		}
		now = now.Add(time.Second)
	}
	b.touch(input.DispatchTouchEventTypeTouchEnd, nil, now)
}

// Tap taps the page.
func (b *Browser) Tap(at Point) { b.Drag(Path{at, at}) }

func (b *Browser) touch(kind input.DispatchTouchEventType, points []*input.TouchPoint, at time.Time) {
	b.t.Helper()
	b.Run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, input.DispatchTouchEvent, input.DispatchTouchEventParams{Type: kind, TouchPoints: append([]*input.TouchPoint{}, points...), Timestamp: input.TimeSinceEpoch(float64(at.UnixMicro()) / 1e6)})
		return err
	}))
}

// Box returns where an element is, once it is in view, as a function from its parts,
// from (0, 0) to (1, 1), to points.
func (b *Browser) Box(selector string) func(x, y float64) Point {
	b.t.Helper()
	r, err := chromedp.Run(b, chromedp.Evaluate[[]float64]("(() => { const e = document.querySelector('"+selector+"'); e.scrollIntoView({ block: 'center' }); const r = e.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()"))
	if err != nil {
		b.t.Fatal(err, b.errors)
	}
	return func(x, y float64) Point { return Point{r[0] + x*r[2], r[1] + y*r[3]} }
}
