package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/alert"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/settings"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
)

// watchAlerts watches the rules of the settings. One that was watched before goes on as it was.
func (a *agent) watchAlerts() {
	a.alerts.Change(a.config.Rules())
	a.told.Note(a.alerts.Firing(), nil)
}

// observe checks the rules, and reports what changed.
func (a *agent) observe() {
	if !a.alerts.HasRules() {
		return // totals of 500 processes take 20 ms
	}
	a.alerts.Leaks(a.leaks.Found())
	told := a.alerts.Observe(clock.Monotonic(), a.session.Totals())
	a.told.Note(a.alerts.Firing(), told)
	for _, x := range told {
		a.opts.Warn("alert: " + x.Text)
		if w := a.webhook.Load(); w != nil {
			w.Send(x)
		}
	}
}

// webhookSlot is the slot of what posts alerts.
func (a *agent) webhookSlot() *slot {
	return &slot{
		name: "webhook", warn: a.opts.Warn,
		settings: []string{"alert-webhook", "node"},
		open: func(c *settings.Config) (runner, error) {
			if a.webhook.Store(nil); c.Webhook == "" {
				return nil, nil
			}
			w, err := alert.NewWebhook(alert.WebhookOptions{URL: c.Webhook, Node: a.node(c), Warn: a.opts.Warn})
			if err != nil {
				return nil, err
			}
			a.webhook.Store(w)
			return w, nil
		},
	}
}

// ErrNoRule says that Once has no rule to look at.
var ErrNoRule = errors.New("--once prints which alerts are true: give one, such as --alert 'process.live > 20GiB'")

// Once traces for an interval, writes to w what is then true of the rules, a line each,
// and returns how many lines these are. Without a rule the error is ErrNoRule.
func Once(o Options, w io.Writer) (firing int, err error) {
	a, err := prepare(o, false)
	if err != nil {
		return 0, err
	}
	defer func() {
		if failed := a.close(); err == nil {
			err = failed
		}
	}()
	c := a.config
	if len(c.Alerts) == 0 {
		return 0, ErrNoRule
	}
	c.Record, c.OOMDir = "", ""
	if err := a.trace(); err != nil {
		return 0, err
	}
	a.watchAlerts()
	ctx, cancel := context.WithCancel(context.Background())
	var searching sync.WaitGroup
	searching.Go(func() { a.leaks.Run(ctx) })
	defer func() {
		cancel()
		searching.Wait()
	}()
	a.alerts.Observe(clock.Monotonic(), a.session.Totals())
	select {
	case <-time.After(c.Interval):
	case err := <-a.session.Failed():
		return 0, err
	}
	a.alerts.Leaks(a.leaks.Found())
	a.alerts.Observe(clock.Monotonic(), a.session.Totals())
	all := a.alerts.Firing()
	for _, x := range all {
		if _, err := fmt.Fprintln(w, render.Clean(x.Text)); err != nil {
			return len(all), err
		}
	}
	return len(all), nil
}
