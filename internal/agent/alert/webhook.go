package alert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

const (
	// maxWaiting bounds the alerts that wait for the webhook.
	maxWaiting = 256
	// maxTries is how often one is sent at most; firstPause how long after the first time,
	// each pause twice the one before up to longestPause.
	maxTries     = 8
	firstPause   = time.Second
	longestPause = time.Minute
	// postTimeout is how long one request may take, lastTimeout all that are left at the end.
	postTimeout = 10 * time.Second
	lastTimeout = 3 * time.Second
	// maxAnswer is how much of an answer is read, in bytes, so that its connection serves again.
	maxAnswer = 64 << 10
)

var (
	webhookCauses loss.Causes

	lossWaiting   = webhookCauses.Add("alerts_dropped", "alerts not sent to the webhook because too many waited for it")
	lossUnsent    = webhookCauses.Add("alerts_undelivered", "alerts that the webhook did not accept in any attempt")
	countedTries  = webhookCauses.Add("alert_posts_failed", "requests to the webhook that failed; most are sent again")
	errNoAddress  = errors.New("the webhook is not an http or https address")
	errRedirected = errors.New("it redirects to another address, and the agent does not follow redirects")
)

// WebhookOptions configure a Webhook.
type WebhookOptions struct {
	// URL is where alerts are posted to. What of it may be secret, all but scheme and host,
	// is never shown.
	URL  string
	Node string // the name of this machine, in each message
	// Warn, if set, hears when alerts cannot be delivered, and when they can again.
	Warn func(string)
	// FirstPause is for tests: 0 for a second.
	FirstPause time.Duration
}

// A Webhook posts alerts, one after the other, each as one JSON object: see message. It
// counts what it cannot deliver.
type Webhook struct {
	opts    WebhookOptions
	target  *url.URL
	client  *http.Client
	waiting chan Alert
	lost    *loss.Set
	failing bool // the user knows
}

// A message is what is posted. Its text is where chat programs look for one.
type message struct {
	Version int    `json:"version"` // of this form: 1
	Node    string `json:"node"`
	Alert
}

// NewWebhook returns a Webhook that has posted nothing. The caller runs it.
func NewWebhook(opts WebhookOptions) (*Webhook, error) {
	u, err := url.Parse(opts.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errNoAddress // err has the address in it
	}
	if opts.FirstPause == 0 {
		opts.FirstPause = firstPause
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = 1
	return &Webhook{
		opts: opts, target: u, waiting: make(chan Alert, maxWaiting), lost: loss.New(webhookCauses),
		client: &http.Client{
			Transport: transport, Timeout: postTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// String is the target without what may be secret of it.
func (w *Webhook) String() string { return w.target.Scheme + "://" + w.target.Host }

// Loss returns every cause of loss.
func (w *Webhook) Loss() []loss.Counter { return w.lost.Counters() }

// Send has an alert posted. It waits for nothing.
func (w *Webhook) Send(a Alert) {
	select {
	case w.waiting <- a:
	default:
		w.lost.Add(lossWaiting, 1)
	}
}

// Run posts what Send was given, until ctx ends. Then it tries once more for each alert that
// waits, for a few seconds.
func (w *Webhook) Run(ctx context.Context) {
	defer w.client.CloseIdleConnections()
	for {
		select {
		case a := <-w.waiting:
			if !w.deliver(ctx, a) {
				w.finish(ctx, a)
				return
			}
		case <-ctx.Done():
			w.finish(ctx)
			return
		}
	}
}

// deliver posts an alert until it is taken, or given up. It returns false when ctx ended
// before either.
func (w *Webhook) deliver(ctx context.Context, a Alert) bool {
	pause := w.opts.FirstPause
	for try := 1; ; try++ {
		again, after, err := w.post(ctx, a)
		if err == nil {
			w.works(true, nil)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		w.lost.Add(countedTries, 1)
		w.works(false, err)
		if !again || try == maxTries {
			w.lost.Add(lossUnsent, 1)
			return true
		}
		select {
		case <-time.After(min(max(pause, after), longestPause)):
		case <-ctx.Done():
			return false
		}
		pause *= 2
	}
}

// finish posts first and what waits, each once.
func (w *Webhook) finish(ctx context.Context, first ...Alert) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastTimeout)
	defer cancel()
	last := func(a Alert) {
		if _, _, err := w.post(ctx, a); err != nil {
			w.lost.Add(lossUnsent, 1)
		}
	}
	for _, a := range first {
		last(a)
	}
	for {
		select {
		case a := <-w.waiting:
			last(a)
		default:
			return
		}
	}
}

// works warns the user when that has changed.
func (w *Webhook) works(does bool, err error) {
	switch {
	case w.opts.Warn == nil || w.failing == !does:
	case does:
		w.opts.Warn(fmt.Sprintf("the alert webhook at %s accepts alerts again", w))
	default:
		w.opts.Warn(fmt.Sprintf("the alert webhook at %s does not accept alerts: %v", w, err))
	}
	w.failing = !does
}

// post sends one request. again reports whether another may succeed where it did not, and
// after how long the answer wants it.
func (w *Webhook) post(ctx context.Context, a Alert) (again bool, after time.Duration, err error) {
	body, err := json.Marshal(message{1, w.opts.Node, a})
	if err != nil {
		return false, 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.target.String(), bytes.NewReader(body))
	if err != nil {
		return false, 0, errNoAddress
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "gpumemtrace")
	answer, err := w.client.Do(r)
	if err != nil {
		if of, ok := errors.AsType[*url.Error](err); ok {
			err = of.Err // of has the address in it
		}
		return true, 0, err
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer)
	switch code := answer.StatusCode; {
	case code < 300:
		return false, 0, nil
	case code < 400:
		return false, 0, errRedirected
	default:
		seconds, _ := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 16)
		again = code >= 500 || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout
		return again, time.Duration(seconds) * time.Second, fmt.Errorf("it answers %d", code)
	}
}
