package push

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/outbox"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

const (
	// maxFailures is how often one request may make a target fail before it is dropped.
	// Failures that do not depend on the request, such as a refused connection, do not count.
	maxFailures = 20
	// maxBatches bounds how many small requests wait.
	maxBatches = 1 << 14
)

// A sender sends requests to one target.
type sender struct {
	*outbox.Outbox
	url      *url.URL
	system   *system
	client   *http.Client
	headers  *headers
	insecure bool // its connection is not encrypted, and leaves this machine
	version  string
}

// newSender returns a sender in which requests of so many bytes may wait.
func newSender(target string, o *Options, h *headers, set *loss.Set, room int64) (*sender, error) {
	sys, u, err := systemOf(target)
	if err != nil {
		return nil, err
	}
	s := &sender{
		url: u, system: sys, client: client(sys.grpc, u.Scheme == "http"), headers: h, version: o.Version,
		insecure: u.Scheme == "http" && !loopback(u) && !o.Insecure,
	}
	if s.insecure && secret(h.get()) {
		return nil, fmt.Errorf("%s is not encrypted, and --push-header-file has credentials", u.Redacted())
	}
	s.Outbox = outbox.New(outbox.Options{
		Name: "push to " + u.Host, Send: s.send, Idle: s.client.CloseIdleConnections, Wait: outbox.Sleep, Warn: o.Warn,
		MaxBytes: room, MaxMessages: maxBatches, MaxFailures: maxFailures, Loss: set,
		Losses: outbox.Losses{Full: lossFull, Refused: lossRefused, GaveUp: lossGaveUp, Unsent: lossUnsent, Again: lossAgain},
	})
	return s, nil
}

// send sends one request, once.
func (s *sender) send(ctx context.Context, msg []byte) outbox.Verdict {
	headers := s.headers.get()
	if s.insecure && secret(headers) {
		return outbox.Verdict{Outcome: outbox.Busy, Problem: fmt.Errorf("the connection is not encrypted, and --push-header-file has credentials")}
	}
	headers.Set("User-Agent", "gpumemtrace/"+s.version)
	return s.system.protocol(ctx, s.client, s.url.JoinPath(s.system.path).String(), headers, msg)
}
