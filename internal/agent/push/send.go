package push

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

const (
	firstWait = time.Second
	longest   = time.Minute // wait, unless the target wants a longer one
	maxAfter  = time.Hour   // that a target may want
	// maxFailures is how often one request may make a target fail before it is dropped.
	// Failures that do not depend on the request, such as a refused connection, do not count.
	maxFailures = 20
	maxProblem  = 400 // bytes of the description of one
)

// A sender sends what is in the queue of one target.
type sender struct {
	url      *url.URL
	system   *system
	client   *http.Client
	headers  *headers
	insecure bool // its connection is not encrypted, and leaves this machine
	version  string
	queue    *queue
	loss     *loss.Set
	warn     func(string)
	wait     func(context.Context, time.Duration) // sleeps
	problem  string                               // of the last try, "" for none
}

func newSender(target string, o *Options, h *headers, set *loss.Set) (*sender, error) {
	sys, u, err := systemOf(target)
	if err != nil {
		return nil, err
	}
	s := &sender{
		url: u, system: sys, client: client(sys.grpc, u.Scheme == "http"), headers: h, version: o.Version,
		insecure: u.Scheme == "http" && !loopback(u) && !o.Insecure, loss: set, warn: o.Warn, wait: sleep,
	}
	if s.insecure && secret(h.get()) {
		return nil, fmt.Errorf("%s is not encrypted, and --push-header-file has credentials", u.Redacted())
	}
	return s, nil
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// run sends until ctx ends, or the queue.
func (s *sender) run(ctx context.Context) {
	defer s.client.CloseIdleConnections()
	for {
		b := s.queue.take(ctx)
		if b == nil {
			return
		}
		s.deliver(ctx, b)
		if ctx.Err() != nil {
			return
		}
	}
}

// deliver sends one batch until it is acknowledged, refused, or given up.
func (s *sender) deliver(ctx context.Context, b *batch) {
	failures := 0
	for try := 0; ; try++ {
		v := s.send(ctx, b.body)
		if v.outcome != taken && ctx.Err() != nil {
			return
		}
		s.note(v.problem)
		switch v.outcome {
		case taken:
			s.loss.Add(lossRefused, uint64(min(v.refused, b.profiles)))
			s.queue.done()
			return
		case refused:
			s.loss.Add(lossRefused, uint64(b.profiles))
			s.queue.done()
			return
		case failed:
			if failures++; failures == maxFailures {
				s.loss.Add(lossGaveUp, uint64(b.profiles))
				s.queue.done()
				return
			}
		}
		s.client.CloseIdleConnections() // the next try finds who it is anew
		s.wait(ctx, backoff(try, v.after))
		if ctx.Err() != nil {
			return
		}
		s.loss.Add(lossAgain, 1)
	}
}

// backoff is how long to wait after the try-th answer in a row, from 0 on, that was no
// success: twice as long each time, less a random part so that agents do not come
// together, and not before the target wants.
func backoff(try int, after time.Duration) time.Duration {
	d := min(firstWait<<min(try, 10), longest)
	d -= time.Duration(rand.Int64N(int64(d) / 2))
	return max(d, min(after, maxAfter))
}

// send sends one request, once.
func (s *sender) send(ctx context.Context, msg []byte) verdict {
	headers := s.headers.get()
	if s.insecure && secret(headers) {
		return verdict{outcome: busy, problem: fmt.Errorf("the connection is not encrypted, and --push-header-file has credentials")}
	}
	headers.Set("User-Agent", "gpumemtrace/"+s.version)
	return s.system.protocol(ctx, s.client, s.url.JoinPath(s.system.path).String(), headers, msg)
}

// note warns of what changed.
func (s *sender) note(problem error) {
	before := s.problem
	s.problem = ""
	if problem != nil {
		s.problem = render.Clean(problem.Error())
		s.problem = strings.ToValidUTF8(s.problem[:min(len(s.problem), maxProblem)], "")
	}
	name := "push to " + s.url.Host
	switch {
	case s.problem != "" && before == "":
		s.warn(fmt.Sprintf("%s: %s", name, s.problem))
	case s.problem == "" && before != "":
		s.warn(name + ": it works again")
	}
}
