package push

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/rpc"
)

// A protocol sends a message with headers, once, and judges the answer.
type protocol func(ctx context.Context, c *http.Client, url string, h http.Header, message []byte) verdict

// A verdict is what a target says of a request. The zero verdict is that it took all.
type verdict struct {
	outcome outcome
	refused int           // profiles that it did not take of a request that it took
	after   time.Duration // before which it wants no other try, 0 for not said
	problem error         // what it said, nil if it took the request
}

type outcome int

const (
	taken outcome = iota
	refused
	// busy: the same request may be taken later. There is nothing wrong with it.
	busy
	// failed: the target does not work, or not with this request.
	failed
)

// otlpGRPC is OTLP/gRPC with gzip-compressed protobuf.
func otlpGRPC(ctx context.Context, c *http.Client, url string, h http.Header, message []byte) verdict {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	answer, err := rpc.Call(ctx, c, url, h, message, connect.WithGRPC(), rpc.Compressed())
	if err != nil {
		return failure(err)
	}
	return exported(answer)
}

// outcomes are those of the codes that a target answered with. With others it is busy.
var outcomes = map[connect.Code]outcome{
	connect.CodeAlreadyExists: taken,

	connect.CodeInvalidArgument: refused, connect.CodeNotFound: refused, connect.CodePermissionDenied: refused, connect.CodeFailedPrecondition: refused,
	connect.CodeOutOfRange: refused, connect.CodeUnimplemented: refused, connect.CodeUnauthenticated: refused,

	connect.CodeUnknown: failed, connect.CodeInternal: failed, connect.CodeDataLoss: failed,
}

// failure judges the error of a call.
func failure(err error) verdict {
	if of, ok := errors.AsType[*rpc.StatusError](err); ok {
		return status(of.Code, of.Header, of.Body)
	}
	v := verdict{outcome: failed, problem: said([]byte(err.Error()))}
	of, ok := errors.AsType[*connect.Error](err)
	switch {
	case !ok || errors.Is(err, rpc.ErrLong):
	case connect.IsWireError(err):
		v = verdict{outcome: busy, after: pushback(of.Meta()), problem: fmt.Errorf("gRPC status %d: %w", of.Code(), said([]byte(of.Message())))}
		if judged, ok := outcomes[of.Code()]; ok {
			v.outcome = judged
		}
		if v.outcome == taken {
			return verdict{}
		}
	case of.Code() == connect.CodeUnavailable, of.Code() == connect.CodeDeadlineExceeded, of.Code() == connect.CodeCanceled:
		v = verdict{outcome: busy, problem: err} // no answer came
	}
	return v
}

// pushback returns what a server of gRPC wants a client to wait.
func pushback(h http.Header) time.Duration {
	ms, err := strconv.ParseUint(h.Get("Grpc-Retry-Pushback-Ms"), 10, 32)
	if err != nil {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// exported judges an ExportProfilesServiceResponse.
func exported(message []byte) (v verdict) {
	var partial []byte
	err := rpc.Fields(message, func(n protowire.Number, _ uint64, b []byte) {
		if n == 1 { // partial_success
			partial = b
		}
	})
	if err == nil {
		err = rpc.Fields(partial, func(n protowire.Number, rejected uint64, b []byte) {
			switch n {
			case 1: // rejected_profiles
				v.refused = int(min(max(int64(rejected), 0), 1<<31))
			case 2: // error_message
				v.problem = said(b)
			}
		})
	}
	if err != nil {
		return verdict{outcome: failed, problem: err}
	}
	return v
}

// otlpHTTP is OTLP/HTTP with gzip-compressed protobuf
// (https://opentelemetry.io/docs/specs/otlp/#otlphttp).
func otlpHTTP(ctx context.Context, c *http.Client, url string, h http.Header, message []byte) verdict {
	const kind = "application/x-protobuf"
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(message))
	if err != nil {
		return verdict{outcome: refused, problem: err}
	}
	r.Header = h
	h.Set("Content-Type", kind)
	h.Set("Content-Encoding", "gzip")
	answer, err := c.Do(r)
	if err != nil {
		return verdict{outcome: busy, problem: err}
	}
	defer answer.Body.Close()
	body, err := rpc.ReadAll(answer.Body)
	if err != nil {
		return verdict{outcome: failed, problem: err}
	}
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return status(answer.StatusCode, answer.Header, body)
	}
	if t, _, err := mime.ParseMediaType(answer.Header.Get("Content-Type")); err != nil || t != kind {
		return verdict{outcome: failed, problem: rpc.ErrMessage}
	}
	return exported(body)
}

// status judges an answer that is no success by its status.
func status(code int, h http.Header, body []byte) verdict {
	v := verdict{outcome: refused, after: retryAfter(h, time.Now()), problem: fmt.Errorf("HTTP status %d: %w", code, said(body))}
	switch code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		v.outcome = busy
	default:
		if code >= 500 {
			v.outcome = failed
		}
	}
	return v
}

// retryAfter returns what an answer wants a client to wait, 0 if it does not say.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// said is what a target said, as an error.
func said(b []byte) error {
	const most = 200
	text := strings.ToValidUTF8(string(b[:min(len(b), most)]), "")
	if text == "" {
		return errors.New("the target gave no details")
	}
	return errors.New(strconv.QuoteToGraphic(text))
}
