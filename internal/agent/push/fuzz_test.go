package push

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
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
			if v.refused < 0 || v.after < 0 || (v.outcome != taken) != (v.problem != nil) && v.outcome != taken {
				t.Errorf("protocol %d: %+v", i, v)
			}
			if v.problem != nil && (strings.ContainsAny(v.problem.Error(), "\x00\n\x1b") || len(v.problem.Error()) > 4000) {
				t.Errorf("protocol %d: %q", i, v.problem)
			}
			if d := backoff(3, v.after); d <= 0 || d > max(longest, maxAfter) {
				t.Errorf("protocol %d: waits %v", i, d)
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
