package push

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/outbox"
)

// FuzzAnswer has a target answer anything: it is judged, and takes no more profiles than
// it was sent.
func FuzzAnswer(f *testing.F) {
	f.Add(200, "application/proto", "", "", "", []byte(nil))
	f.Add(200, "application/grpc", "0", "", "gzip", []byte{1, 0, 0, 0, 0})
	f.Add(200, "application/x-protobuf", "", "", "", []byte("\x0a\x06\x08\x02\x12\x02no"))
	f.Add(429, "text/plain; charset", "13", "9999999999999999999", "x", []byte("\xff"))
	f.Fuzz(func(t *testing.T, code int, kind, status, after, encoding string, body []byte) {
		for i, p := range []protocol{otlpHTTP, otlpGRPC} {
			h := http.Header{"Content-Type": {kind}, "Retry-After": {after}, "Grpc-Retry-Pushback-Ms": {after}, "Grpc-Encoding": {encoding}}
			trailer := http.Header{"Grpc-Status": {status}, "Grpc-Message": {string(body)}}
			c := &http.Client{Timeout: requestTimeout, Transport: answering(func(r *http.Request) *http.Response {
				return &http.Response{StatusCode: code, Header: h, Trailer: trailer, Body: io.NopCloser(bytes.NewReader(body)), Request: r, ProtoMajor: 2}
			})}
			v := p(t.Context(), c, "http://store/procedure/Call", http.Header{}, []byte("message"))
			if v.Refused < 0 || v.After < 0 || (v.Outcome != outbox.Taken) != (v.Problem != nil) && v.Outcome != outbox.Taken {
				t.Errorf("protocol %d: %+v", i, v)
			}
			if v.Problem != nil && (strings.ContainsAny(v.Problem.Error(), "\x00\n\x1b") || len(v.Problem.Error()) > 4000) {
				t.Errorf("protocol %d: %q", i, v.Problem)
			}
		}
	})
}

// answering answers each request.
type answering func(*http.Request) *http.Response

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
	return a(r), nil
}
