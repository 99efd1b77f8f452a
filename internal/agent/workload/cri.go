package workload

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Sockets are where runtimes answer for the Container Runtime Interface, by their
// defaults: containerd, that of k3s, CRI-O, cri-dockerd.
var Sockets = []string{
	"/run/containerd/containerd.sock",
	"/run/k3s/containerd/containerd.sock",
	"/run/crio/crio.sock",
	"/run/cri-dockerd.sock",
}

// Bounds of one answer. One container takes a few KiB, most of it annotations.
const (
	maxAnswer = 1 << 20 // bytes
	maxHeader = 16 << 10
	patience  = 2 * time.Second
)

// Of a pod, as its runtime names it.
type names struct{ namespace, pod, uid, container string }

// An endpoint asks a container runtime. The interface is gRPC, of which the one call
// that is made is a POST by HTTP/2.
type endpoint struct {
	socket string
	client *http.Client
}

// newEndpoint returns one that connects when it is asked first.
func newEndpoint(socket string) *endpoint {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	return &endpoint{socket, &http.Client{
		Transport: &http.Transport{
			Protocols:              protocols,
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxHeader,
			MaxConnsPerHost:        1,
			IdleConnTimeout:        time.Minute,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Timeout:       patience,
	}}
}

// errUnknown is that a runtime does not know a container.
var errUnknown = errors.New("the runtime does not know the container")

// names asks for those of one container: ListContainers of runtime.v1.RuntimeService,
// with its id as the filter. It takes two seconds at most.
func (r *endpoint) names(ctx context.Context, id string) (names, error) {
	filter := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), id)
	message := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), filter)
	// A message is not compressed (0), and its length stands before it.
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/runtime.v1.RuntimeService/ListContainers", bytes.NewReader(body))
	if err != nil {
		return names{}, err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("Te", "trailers")
	answer, err := r.client.Do(request)
	if err != nil {
		return names{}, fmt.Errorf("ask %s: %w", r.socket, err)
	}
	defer answer.Body.Close()
	message, err = readAnswer(answer)
	if err != nil {
		return names{}, fmt.Errorf("ask %s: %w", r.socket, err)
	}
	return parseContainers(message, id)
}

// readAnswer returns the one message of a call that went well.
func readAnswer(answer *http.Response) ([]byte, error) {
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP status %d", answer.StatusCode)
	}
	b, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxAnswer {
		return nil, errors.New("the answer is too large")
	}
	status := answer.Trailer.Get("Grpc-Status")
	if status == "" { // an answer of headers alone
		status = answer.Header.Get("Grpc-Status")
	}
	if status != "0" {
		return nil, fmt.Errorf("gRPC status %q", bounded(status))
	}
	if len(b) < 5 || b[0] != 0 || uint64(binary.BigEndian.Uint32(b[1:])) != uint64(len(b)-5) {
		return nil, errors.New("the answer is not one message")
	}
	return b[5:], nil
}

// parseContainers finds the container in a ListContainersResponse.
func parseContainers(b []byte, id string) (found names, err error) {
	ok := false
	err = eachField(b, func(number protowire.Number, container []byte) {
		if number != 1 || ok {
			return
		}
		if found, ok = parseContainer(container, id); !ok {
			found = names{}
		}
	})
	if err == nil && !ok {
		err = errUnknown
	}
	return found, err
}

// parseContainer reads a Container, and tells whether it is the one with an id: a
// runtime may take the filter for the beginning of it.
func parseContainer(b []byte, id string) (n names, ok bool) {
	// Errors leave out what is behind them.
	_ = eachField(b, func(number protowire.Number, v []byte) {
		switch number {
		case 1:
			ok = string(v) == id
		case 8:
			switch key, value := parseLabel(v); key {
			case "io.kubernetes.pod.namespace":
				n.namespace = value
			case "io.kubernetes.pod.name":
				n.pod = value
			case "io.kubernetes.pod.uid":
				n.uid = value
			case "io.kubernetes.container.name":
				n.container = value
			}
		}
	})
	return n, ok
}

func parseLabel(b []byte) (key, value string) {
	_ = eachField(b, func(number protowire.Number, v []byte) {
		switch number {
		case 1:
			key = bounded(string(v))
		case 2:
			value = bounded(string(v))
		}
	})
	return key, value
}

// eachField calls visit with each field of a message that has a length: strings, bytes
// and messages.
func eachField(b []byte, visit func(protowire.Number, []byte)) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if kind == protowire.BytesType {
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			visit(number, v)
			b = b[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
	}
	return nil
}
