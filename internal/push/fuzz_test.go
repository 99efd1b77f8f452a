package push

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
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

// FuzzQueueFile has a file of the queue be anything: it is what was written, or damaged.
func FuzzQueueFile(f *testing.F) {
	dir := f.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		f.Fatal(err)
	}
	want := batchOf(3, "the body")
	if err := writeFile(root, 1, want); err != nil {
		f.Fatal(err)
	}
	good, err := root.ReadFile(fileName(1))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		root, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		if err := root.WriteFile(fileName(1), data, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := readFile(root, 1)
		switch {
		case err == nil && len(b.body) > len(data):
			t.Errorf("%d bytes of %d", len(b.body), len(data))
		case err == nil && bytes.Equal(data, good) && (b.profiles != 3 || !bytes.Equal(b.body, want.body) || !b.made.Equal(time.Unix(1_700_000_000, 0))):
			t.Errorf("%+v", b)
		case err != nil && (!errors.Is(err, errDamaged) || bytes.Equal(data, good)):
			t.Error(err)
		}
	})
}
