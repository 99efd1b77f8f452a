package push

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// A protocol is how a message is sent over HTTP. All of them are a POST with an answer:
// the stores' own clients would bring megabytes for it.
type protocol interface {
	// frame returns the body of a request for a message, and says what it is.
	frame(msg []byte, h http.Header) []byte
	// answer judges an answer with its whole body, whose trailers have come.
	answer(r *http.Response, body []byte) verdict
}

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

// connect is the Connect protocol's unary call with protobuf
// (https://connectrpc.com/docs/protocol).
type connect struct{}

func (connect) frame(msg []byte, h http.Header) []byte {
	h.Set("Content-Type", "application/proto")
	h.Set("Connect-Protocol-Version", "1")
	return msg
}

func (connect) answer(r *http.Response, body []byte) verdict {
	if r.StatusCode != http.StatusOK {
		return status(r, body)
	}
	if !is(r, "application/proto") {
		return verdict{outcome: failed, problem: errMessage}
	}
	return empty(body)
}

// empty judges a response that says nothing but that it is one.
func empty(body []byte) verdict {
	if err := fields(body, func(protowire.Number, uint64, []byte) {}); err != nil {
		return verdict{outcome: failed, problem: err}
	}
	return verdict{}
}

// otlpHTTP is OTLP/HTTP with gzip-compressed protobuf
// (https://opentelemetry.io/docs/specs/otlp/#otlphttp).
type otlpHTTP struct{}

func (otlpHTTP) frame(msg []byte, h http.Header) []byte {
	h.Set("Content-Type", "application/x-protobuf")
	h.Set("Content-Encoding", "gzip")
	return msg
}

func (otlpHTTP) answer(r *http.Response, body []byte) verdict {
	if r.StatusCode < 200 || r.StatusCode > 299 {
		return status(r, body)
	}
	if !is(r, "application/x-protobuf") {
		return verdict{outcome: failed, problem: errMessage}
	}
	return exported(body)
}

// exported judges an ExportProfilesServiceResponse.
func exported(body []byte) (v verdict) {
	var partial []byte
	err := fields(body, func(n protowire.Number, _ uint64, b []byte) {
		if n == 1 { // partial_success
			partial = b
		}
	})
	if err == nil {
		err = fields(partial, func(n protowire.Number, rejected uint64, b []byte) {
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

// grpcUnary is a unary call of gRPC
// (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md).
// OTLP's messages are gzip-compressed already, and its answers may refuse a part.
type grpcUnary struct{ otlp bool }

func (g grpcUnary) frame(msg []byte, h http.Header) []byte {
	h.Set("Content-Type", "application/grpc")
	h.Set("Te", "trailers")
	h.Set("Grpc-Timeout", strconv.Itoa(int(requestTimeout/time.Second))+"S")
	out := make([]byte, 5, 5+len(msg))
	if g.otlp {
		h.Set("Grpc-Encoding", "gzip")
		out[0] = 1
	}
	binary.BigEndian.PutUint32(out[1:], uint32(len(msg)))
	return append(out, msg...)
}

// The codes of gRPC that say that a request is refused for good, and one that says that
// the target has it.
const (
	grpcOK      = 0
	grpcUnknown = 2
	grpcExists  = 6
)

var grpcRefused = map[uint64]bool{
	3:  true, // INVALID_ARGUMENT
	5:  true, // NOT_FOUND
	7:  true, // PERMISSION_DENIED
	9:  true, // FAILED_PRECONDITION
	11: true, // OUT_OF_RANGE
	12: true, // UNIMPLEMENTED
	16: true, // UNAUTHENTICATED
}

var grpcFailed = map[uint64]bool{
	grpcUnknown: true,
	13:          true, // INTERNAL
	15:          true, // DATA_LOSS
}

func (g grpcUnary) answer(r *http.Response, body []byte) verdict {
	if r.StatusCode != http.StatusOK {
		return status(r, body)
	}
	t, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	trailer := r.Trailer
	if trailer.Get("Grpc-Status") == "" {
		trailer = r.Header // an answer of trailers only
	}
	code, err := strconv.ParseUint(trailer.Get("Grpc-Status"), 10, 32)
	if err != nil || !strings.HasPrefix(t, "application/grpc") {
		return verdict{outcome: failed, problem: errMessage}
	}
	v := verdict{outcome: busy, after: pushback(trailer)}
	switch {
	case code == grpcOK:
		msg, err := unframe(body, r.Header.Get("Grpc-Encoding"))
		switch {
		case err != nil:
			return verdict{outcome: failed, problem: err}
		case g.otlp:
			return exported(msg)
		}
		return empty(msg)
	case code == grpcExists:
		return verdict{}
	case grpcRefused[code]:
		v.outcome = refused
	case grpcFailed[code]:
		v.outcome = failed
	}
	message, err := url.PathUnescape(trailer.Get("Grpc-Message"))
	if err != nil {
		message = trailer.Get("Grpc-Message")
	}
	v.problem = fmt.Errorf("gRPC status %d: %w", code, said([]byte(message)))
	return v
}

// unframe returns the one message of an answer. A server that was sent gzip may answer so.
func unframe(body []byte, encoding string) ([]byte, error) {
	if len(body) < 5 || uint64(binary.BigEndian.Uint32(body[1:])) != uint64(len(body)-5) {
		return nil, errMessage
	}
	msg := body[5:]
	switch {
	case body[0] == 0:
		return msg, nil
	case body[0] != 1 || encoding != "gzip":
		return nil, errMessage
	}
	z, err := gzip.NewReader(bytes.NewReader(msg))
	if err != nil {
		return nil, errMessage
	}
	return bounded(z)
}

// pushback returns what a server of gRPC wants a client to wait.
func pushback(h http.Header) time.Duration {
	ms, err := strconv.ParseUint(h.Get("Grpc-Retry-Pushback-Ms"), 10, 32)
	if err != nil {
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}

// status judges an answer that is no success by its status.
func status(r *http.Response, body []byte) verdict {
	v := verdict{outcome: refused, after: retryAfter(r.Header, time.Now()), problem: fmt.Errorf("HTTP status %d: %w", r.StatusCode, said(body))}
	switch r.StatusCode {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		v.outcome = busy
	default:
		if r.StatusCode >= 500 {
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

// is tells whether an answer's body is of a type.
func is(r *http.Response, want string) bool {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && t == want
}

// said is what a target said, as an error.
func said(b []byte) error {
	const most = 200
	text := strings.ToValidUTF8(string(b[:min(len(b), most)]), "")
	if text == "" {
		return errors.New("no more was said")
	}
	return errors.New(strconv.QuoteToGraphic(text))
}

// bounded reads the whole of an answer.
func bounded(r io.Reader) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = errors.New("the answer is too long")
	}
	return body, err
}
