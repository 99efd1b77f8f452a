package push

import (
	"net/http"
	"strings"
	"testing"
)

// FuzzAnswer has a target answer anything: it is judged, and takes no more profiles than
// it was sent.
func FuzzAnswer(f *testing.F) {
	f.Add(200, "application/proto", "", "", "", []byte(nil))
	f.Add(200, "application/grpc", "0", "", "gzip", append([]byte{1, 0, 0, 0, 0}, compress(nil)...))
	f.Add(200, "application/x-protobuf", "", "", "", []byte("\x0a\x06\x08\x02\x12\x02no"))
	f.Add(429, "text/plain; charset", "13", "9999999999999999999", "x", []byte("\xff"))
	f.Fuzz(func(t *testing.T, code int, kind, status, after, encoding string, body []byte) {
		for _, p := range []protocol{connect{}, otlpHTTP{}, grpcUnary{}, grpcUnary{otlp: true}} {
			h := http.Header{"Content-Type": {kind}, "Retry-After": {after}, "Grpc-Retry-Pushback-Ms": {after}, "Grpc-Encoding": {encoding}}
			trailer := http.Header{"Grpc-Status": {status}, "Grpc-Message": {string(body)}}
			v := p.answer(&http.Response{StatusCode: code, Header: h, Trailer: trailer}, body)
			if v.refused < 0 || v.after < 0 || (v.outcome != taken) != (v.problem != nil) && v.outcome != taken {
				t.Errorf("%T: %+v", p, v)
			}
			if v.problem != nil && (strings.ContainsAny(v.problem.Error(), "\x00\n\x1b") || len(v.problem.Error()) > 4000) {
				t.Errorf("%T: %q", p, v.problem)
			}
			if d := backoff(3, v.after); d <= 0 || d > max(longest, maxAfter) {
				t.Errorf("%T: waits %v", p, d)
			}
		}
	})
}
