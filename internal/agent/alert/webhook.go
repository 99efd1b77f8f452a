package alert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/outbox"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

const (
	// maxWaiting bounds the alerts that wait for the webhook, beside the one that is posted.
	maxWaiting = 256
	// maxTries is how often one is posted at most, and longestPause how long after the time before.
	maxTries     = 8
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
	countedTries  = webhookCauses.Add("alert_posts_failed", "requests to the webhook that failed, and were sent again")
	errNoAddress  = errors.New("the webhook is not an http or https address")
	errRedirected = errors.New("it redirects to another address, and the agent does not follow redirects")
)

// WebhookOptions configure a Webhook.
type WebhookOptions struct {
	// URL is where alerts are posted to. What of it may be secret, all but scheme and host,
	// is never shown.
	URL  string
	Node string // the name of this machine, in each message
	// Warn hears when alerts cannot be delivered, and when they can again.
	Warn func(string)
}

// A Webhook posts alerts, one after the other, each as one JSON object: see message. It
// counts what it cannot deliver.
type Webhook struct {
	node   string
	target *url.URL
	client *http.Client
	outbox *outbox.Outbox
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
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = 1
	w := &Webhook{
		node: opts.Node, target: u,
		client: &http.Client{
			Transport: transport, Timeout: postTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	w.outbox = outbox.New(outbox.Options{
		Name: "the alert webhook at " + w.String(), Send: w.post, Idle: w.client.CloseIdleConnections, Wait: outbox.Sleep, Warn: opts.Warn,
		MaxBytes: math.MaxInt64, MaxMessages: maxWaiting + 1, MaxFailures: maxTries, Loss: loss.New(webhookCauses),
		Losses: outbox.Losses{Full: lossWaiting, Refused: lossUnsent, GaveUp: lossUnsent, Unsent: lossUnsent, Again: countedTries},
	})
	return w, nil
}

// String is the target without what may be secret of it.
func (w *Webhook) String() string { return w.target.Scheme + "://" + w.target.Host }

// Loss returns every cause of loss.
func (w *Webhook) Loss() []loss.Counter { return w.outbox.Loss.Counters() }

// Send has an alert posted. It waits for nothing.
func (w *Webhook) Send(a Alert) {
	body, err := json.Marshal(message{1, w.node, a})
	if err != nil {
		w.outbox.Loss.Add(lossUnsent, 1)
		return
	}
	w.outbox.Put(&outbox.Message{Parts: 1, Body: body})
}

// Run posts what Send was given, until ctx ends, and what waits then, for a few seconds.
func (w *Webhook) Run(ctx context.Context) error {
	w.outbox.RunUntil(ctx, lastTimeout)
	return nil
}

// post sends one request.
func (w *Webhook) post(ctx context.Context, body []byte) (v outbox.Verdict) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, w.target.String(), bytes.NewReader(body))
	if err != nil {
		return outbox.Verdict{Outcome: outbox.Refused, Problem: errNoAddress}
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "gpumemtrace")
	answer, err := w.client.Do(r)
	if err != nil {
		if of, ok := errors.AsType[*url.Error](err); ok {
			err = of.Err // of has the address in it
		}
		return outbox.Verdict{Outcome: outbox.Failed, Problem: err}
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer)
	switch code := answer.StatusCode; {
	case code < 300:
		return outbox.Verdict{}
	case code < 400:
		return outbox.Verdict{Outcome: outbox.Refused, Problem: errRedirected}
	default:
		seconds, _ := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 16)
		v = outbox.Verdict{Outcome: outbox.Refused, After: min(time.Duration(seconds)*time.Second, longestPause), Problem: fmt.Errorf("it answers %d", code)}
		if code >= 500 || code == http.StatusTooManyRequests || code == http.StatusRequestTimeout {
			v.Outcome = outbox.Failed
		}
		return v
	}
}
