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

	"github.com/gpumemtrace/gpumemtrace/internal/agent/outbox"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/rpc"
)

// A protocol sends a message with headers, once, and judges the answer.
type protocol func(ctx context.Context, c *http.Client, url string, h http.Header, message []byte) outbox.Verdict

// otlpGRPC is OTLP/gRPC with gzip-compressed protobuf.
func otlpGRPC(ctx context.Context, c *http.Client, url string, h http.Header, message []byte) outbox.Verdict {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	answer, err := rpc.Call(ctx, c, url, h, message, connect.WithGRPC(), rpc.Compressed())
	if err != nil {
		return failure(err)
	}
	return exported(answer)
}

// outcomes are those of the codes that a target answered with. With others it is busy.
var outcomes = map[connect.Code]outbox.Outcome{
	connect.CodeAlreadyExists: outbox.Taken,

	connect.CodeInvalidArgument: outbox.Refused, connect.CodeNotFound: outbox.Refused, connect.CodePermissionDenied: outbox.Refused, connect.CodeFailedPrecondition: outbox.Refused,
	connect.CodeOutOfRange: outbox.Refused, connect.CodeUnimplemented: outbox.Refused, connect.CodeUnauthenticated: outbox.Refused,

	connect.CodeUnknown: outbox.Failed, connect.CodeInternal: outbox.Failed, connect.CodeDataLoss: outbox.Failed,
}

// failure judges the error of a call.
func failure(err error) outbox.Verdict {
	if of, ok := errors.AsType[*rpc.StatusError](err); ok {
		return status(of.Code, of.Header, of.Body)
	}
	v := outbox.Verdict{Outcome: outbox.Failed, Problem: said([]byte(err.Error()))}
	of, ok := errors.AsType[*connect.Error](err)
	switch {
	case !ok || errors.Is(err, rpc.ErrLong):
	case connect.IsWireError(err):
		v = outbox.Verdict{Outcome: outbox.Busy, After: pushback(of.Meta()), Problem: fmt.Errorf("gRPC status %d: %w", of.Code(), said([]byte(of.Message())))}
		if judged, ok := outcomes[of.Code()]; ok {
			v.Outcome = judged
		}
		if v.Outcome == outbox.Taken {
			return outbox.Verdict{}
		}
	case of.Code() == connect.CodeUnavailable, of.Code() == connect.CodeDeadlineExceeded, of.Code() == connect.CodeCanceled:
		v = outbox.Verdict{Outcome: outbox.Busy, Problem: err} // no answer came
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
func exported(message []byte) (v outbox.Verdict) {
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
				v.Refused = int(min(max(int64(rejected), 0), 1<<31))
			case 2: // error_message
				v.Problem = said(b)
			}
		})
	}
	if err != nil {
		return outbox.Verdict{Outcome: outbox.Failed, Problem: err}
	}
	return v
}

// otlpHTTP is OTLP/HTTP with gzip-compressed protobuf
// (https://opentelemetry.io/docs/specs/otlp/#otlphttp).
func otlpHTTP(ctx context.Context, c *http.Client, url string, h http.Header, message []byte) outbox.Verdict {
	const kind = "application/x-protobuf"
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(message))
	if err != nil {
		return outbox.Verdict{Outcome: outbox.Refused, Problem: err}
	}
	r.Header = h
	h.Set("Content-Type", kind)
	h.Set("Content-Encoding", "gzip")
	answer, err := c.Do(r)
	if err != nil {
		return outbox.Verdict{Outcome: outbox.Busy, Problem: err}
	}
	defer answer.Body.Close()
	body, err := rpc.ReadAll(answer.Body)
	if err != nil {
		return outbox.Verdict{Outcome: outbox.Failed, Problem: err}
	}
	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		return status(answer.StatusCode, answer.Header, body)
	}
	if t, _, err := mime.ParseMediaType(answer.Header.Get("Content-Type")); err != nil || t != kind {
		return outbox.Verdict{Outcome: outbox.Failed, Problem: rpc.ErrMessage}
	}
	return exported(body)
}

// status judges an answer that is no success by its status.
func status(code int, h http.Header, body []byte) outbox.Verdict {
	v := outbox.Verdict{Outcome: outbox.Refused, After: retryAfter(h, time.Now()), Problem: fmt.Errorf("HTTP status %d: %w", code, said(body))}
	switch code {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		v.Outcome = outbox.Busy
	default:
		if code >= 500 {
			v.Outcome = outbox.Failed
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
