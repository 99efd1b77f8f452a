// Package browsertest drives a browser for tests of pages.
package browsertest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// A Browser shows one page of the test, and remembers what it complained of.
type Browser struct {
	context.Context
	t      testing.TB
	mu     sync.Mutex
	errors []string
}

// patience is how long a test may use a browser: only one that hangs takes so long.
const patience = 10 * time.Minute

// shared starts the browser of all tests of a package, once. It is nil if each has its own.
var shared func() (context.Context, error)

// Main runs the tests of a package. They share one browser, which none starts where no page is
// opened.
func Main(m *testing.M) int {
	start, stop := starter()
	defer stop()
	shared = start
	return m.Run()
}

// starter returns what starts a browser when it is first called, and what stops that.
func starter() (start func() (context.Context, error), stop func()) {
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.ExecPath("chromium"), chromedp.WSURLReadTimeout(patience),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("ignore-certificate-errors", true))
	all, end := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(all)
	start = sync.OnceValues(func() (context.Context, error) { return ctx, chromedp.Do(ctx) })
	return start, func() {
		if chromedp.FromContext(ctx).Browser != nil {
			cancel()
		}
		end()
	}
}

// Open opens the page at an address, which may ask for what is below it, or for nothing if
// it is a file, but for what it made itself (blob:).
func Open(t testing.TB, address string, width, height int64) *Browser {
	t.Helper()
	if testing.Short() {
		t.Skip("a browser has nothing for the race detector")
	}
	start := shared
	if start == nil {
		own, stop := starter()
		t.Cleanup(stop)
		start = own
	}
	parent, err := start()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := chromedp.NewContext(parent, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	b := &Browser{Context: ctx, t: t}
	complain := func(text string) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.errors = append(b.errors, text)
	}
	messages := chromedp.Console(ctx)
	go func() {
		for m, err := range messages {
			if err != nil {
				return
			}
			complain(m.String())
		}
	}()
	if err := chromedp.Listen(ctx, func(e any) {
		if e, ok := e.(*network.EventRequestWillBeSent); ok && !strings.HasPrefix(e.Request.URL, address) && !strings.HasPrefix(e.Request.URL, "blob:") {
			complain("request: " + e.Request.URL)
		}
	}); err != nil {
		t.Fatal(err)
	}
	b.Context, cancel = context.WithTimeout(ctx, patience)
	t.Cleanup(cancel)
	b.Run(chromedp.EmulateViewport(width, height), chromedp.Navigate(address))
	return b
}

// Dark has the page be dark, or light.
func (b *Browser) Dark(dark bool) {
	b.t.Helper()
	value := map[bool]string{false: "light", true: "dark"}[dark]
	b.Run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}}})
		return err
	}))
}

// Zone has the browser be in a time zone.
func (b *Browser) Zone(name string) {
	b.t.Helper()
	b.Run(chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: name})
		return err
	}))
}

// Run does actions.
func (b *Browser) Run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b, actions...); err != nil {
		b.t.Fatal(err, b.errors)
	}
}

// Ask returns the value of an expression, as text.
func (b *Browser) Ask(expression string) string {
	b.t.Helper()
	out, err := b.evaluate(expression)
	if err != nil {
		b.t.Fatal(err, b.errors)
	}
	return out
}

func (b *Browser) evaluate(expression string) (string, error) {
	return chromedp.Run(b, chromedp.Evaluate[string]("String("+expression+")"))
}

// Until waits for an expression to be true. While the browser goes from one page to another
// there is nothing to ask.
func (b *Browser) Until(expression string) {
	b.t.Helper()
	for ; ; time.Sleep(10 * time.Millisecond) {
		got, err := b.evaluate("!!(" + expression + ")")
		if got == "true" && err == nil {
			return
		}
		if b.Err() != nil {
			b.t.Fatal("never: ", expression, b.errors, err)
		}
	}
}

// Text is that of an element.
func (b *Browser) Text(id string) string {
	return b.Ask("document.getElementById('" + id + "').textContent")
}

// Click clicks an element.
func (b *Browser) Click(id string) {
	b.t.Helper()
	b.Run(chromedp.Click(chromedp.CSS("#" + id)))
}

// Keys types keys, where the focus is.
func (b *Browser) Keys(keys ...string) {
	b.t.Helper()
	for _, k := range keys {
		b.Run(chromedp.KeyEvent(k))
	}
}

// Focused is the id, or else the name, of the element that has the focus.
func (b *Browser) Focused() string {
	return b.Ask("document.activeElement.id || document.activeElement.tagName")
}

// TabTo presses Tab until an element has the focus.
func (b *Browser) TabTo(id string) {
	b.t.Helper()
	for range 60 {
		if b.Keys(kb.Tab); b.Focused() == id {
			return
		}
	}
	b.t.Fatalf("Tab does not reach %s", id)
}

// Quiet checks that nothing was complained of.
func (b *Browser) Quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.errors {
		b.t.Error(e)
	}
}

// Picture shows the page in light colours and in dark ones. It keeps pictures of both in the folder
// that SCREENSHOTS names, if it is set.
func (b *Browser) Picture(name string) {
	b.t.Helper()
	for _, suffix := range []string{"", "-dark"} {
		b.Dark(suffix != "")
		dir := os.Getenv("SCREENSHOTS")
		if dir == "" {
			continue
		}
		png, err := chromedp.Run(b, chromedp.FullScreenshot(100))
		if err != nil {
			b.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+suffix+".png"), png, 0o644); err != nil {
			b.t.Fatal(err)
		}
	}
	b.Dark(false)
}

// Wants checks that a text has parts.
func (b *Browser) Wants(what, got string, parts ...string) {
	b.t.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			b.t.Errorf("%s: %q lacks %q", what, got, part)
		}
	}
}
