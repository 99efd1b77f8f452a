package workload

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpumemtrace/gpumemtrace/internal/source/tenant"
)

// A raw message passes through gRPC as it is.
type raw []byte

type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error)   { return *v.(*raw), nil }
func (rawCodec) Unmarshal(b []byte, v any) error { *v.(*raw) = append(raw(nil), b...); return nil }
func (rawCodec) Name() string                    { return "raw" }

func field(number protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), v)
}

// containerOf makes a Container of runtime.v1's ListContainersResponse.
func containerOf(id string, labels map[string]string) []byte {
	b := field(1, []byte(id))
	b = append(b, field(2, []byte("the sandbox"))...)
	b = append(b, field(3, field(1, []byte("metadata")))...)
	b = protowire.AppendVarint(protowire.AppendTag(b, 6, protowire.VarintType), 1)
	b = protowire.AppendVarint(protowire.AppendTag(b, 7, protowire.VarintType), 1<<60)
	for k, v := range labels {
		b = append(b, field(8, append(field(1, []byte(k)), field(2, []byte(v))...))...)
	}
	return field(1, append(b, field(9, append(field(1, []byte("io.kubernetes.pod.name")), field(2, []byte("an annotation"))...))...))
}

func podLabels(uid string) map[string]string {
	return map[string]string{
		"io.kubernetes.pod.namespace":  "research",
		"io.kubernetes.pod.name":       "train-0",
		"io.kubernetes.pod.uid":        uid,
		"io.kubernetes.container.name": "worker",
		"app":                          "train",
	}
}

// serveCRI answers calls on a socket with gRPC's own server.
func serveCRI(t *testing.T, answer func(method string, request []byte) ([]byte, error)) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "cri.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodec(rawCodec{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		var request raw
		if err := stream.RecvMsg(&request); err != nil {
			return err
		}
		method, _ := grpc.MethodFromServerStream(stream)
		b, err := answer(method, request)
		if err != nil {
			return err
		}
		return stream.SendMsg((*raw)(&b))
	}))
	go server.Serve(listener)
	t.Cleanup(server.Stop)
	return socket
}

func TestEndpointNames(t *testing.T) {
	var method string
	var request []byte
	socket := serveCRI(t, func(m string, r []byte) ([]byte, error) {
		method, request = m, r
		return append(containerOf(other, podLabels("x")), containerOf(id, podLabels(uid))...), nil
	})
	r := newEndpoint(socket)
	for range 3 {
		got, err := r.names(context.Background(), id)
		if want := (names{"research", "train-0", uid, "worker"}); err != nil || got != want {
			t.Errorf("%+v, %v", got, err)
		}
	}
	if want := field(1, field(1, []byte(id))); method != "/runtime.v1.RuntimeService/ListContainers" || string(request) != string(want) {
		t.Errorf("asked %s for %q", method, request)
	}
	if _, err := r.names(context.Background(), strings.Repeat("a", 64)); !errors.Is(err, errUnknown) {
		t.Errorf("one that is not in the answer: %v", err)
	}
}

// A runtime that lies, fails or does not answer.
func TestHostileRuntime(t *testing.T) {
	long := containerOf(id, map[string]string{"io.kubernetes.pod.name": strings.Repeat("€", 1000)})
	for name, answer := range map[string]func() ([]byte, error){
		"refuses":       func() ([]byte, error) { return nil, status.Error(codes.PermissionDenied, "no") },
		"an old one":    func() ([]byte, error) { return nil, status.Error(codes.Unimplemented, "unknown service") },
		"empty":         func() ([]byte, error) { return nil, nil },
		"no message":    func() ([]byte, error) { return []byte("\xff\xff\xff"), nil },
		"a cut message": func() ([]byte, error) { return long[:len(long)-1], nil },
		"too large":     func() ([]byte, error) { return field(2, make([]byte, maxAnswer)), nil },
		"another":       func() ([]byte, error) { return containerOf(id[:63], podLabels(uid)), nil },
	} {
		t.Run(name, func(t *testing.T) {
			r := newEndpoint(serveCRI(t, func(string, []byte) ([]byte, error) { return answer() }))
			if got, err := r.names(context.Background(), id); err == nil || got != (names{}) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	r := newEndpoint(serveCRI(t, func(string, []byte) ([]byte, error) { return long, nil }))
	if got, err := r.names(context.Background(), id); err != nil || got.pod != strings.Repeat("€", tenant.MaxName/3) {
		t.Errorf("a long name: %q, %v", got.pod, err)
	}
}

// What is not gRPC at all answers at the socket.
func TestNoRuntime(t *testing.T) {
	for name, handle := range map[string]http.HandlerFunc{
		"a page":    func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("<html>")) },
		"not found": http.NotFound,
		"elsewhere": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://localhost/x", http.StatusFound)
		},
		"without end": func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := w.Write(make([]byte, 1<<16)); err != nil {
					return
				}
			}
		},
		"a large header": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 1<<20)) },
		"two messages": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Grpc-Status", "0")
			w.Write(make([]byte, 10))
		},
		"a lie of its length": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Grpc-Status", "0")
			w.Write(binary.BigEndian.AppendUint32([]byte{0}, 1<<31))
		},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "sock"))
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: handle, Protocols: new(http.Protocols)}
			server.Protocols.SetUnencryptedHTTP2(true)
			go server.Serve(listener)
			defer server.Close()
			r := newEndpoint(listener.Addr().String())
			if got, err := r.names(context.Background(), id); err == nil || got != (names{}) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	if _, err := newEndpoint(filepath.Join(t.TempDir(), "none")).names(context.Background(), id); err == nil {
		t.Error("names from a socket that is not there")
	}
}

// One that accepts and says nothing is given up.
func TestSilentRuntime(t *testing.T) {
	listener, err := net.Listen("unix", filepath.Join(t.TempDir(), "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if _, err = newEndpoint(listener.Addr().String()).names(context.Background(), id); err == nil {
		t.Error("names from a socket that says nothing")
	}
}

func FuzzParseContainers(f *testing.F) {
	f.Add(containerOf(id, podLabels(uid)))
	f.Add([]byte("\x0a\x02\x0a\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, _ := parseContainers(b, id)
		for _, s := range []string{got.namespace, got.pod, got.uid, got.container} {
			if len(s) > tenant.MaxName || strings.ToValidUTF8(s, "") != s {
				t.Errorf("%q", s)
			}
		}
	})
}
