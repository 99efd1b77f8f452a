package workload

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/rpc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/tenant"
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

// An endpoint asks a container runtime, by gRPC.
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
	answer, err := rpc.Call(ctx, r.client, "http://localhost/runtime.v1.RuntimeService/ListContainers", nil, message, connect.WithGRPC(), connect.WithReadMaxBytes(maxAnswer))
	if err != nil {
		return names{}, fmt.Errorf("ask %s: %w", r.socket, err)
	}
	return parseContainers(answer, id)
}

// parseContainers finds the container in a ListContainersResponse.
func parseContainers(b []byte, id string) (found names, err error) {
	ok := false
	err = rpc.Fields(b, func(number protowire.Number, _ uint64, container []byte) {
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

// parseContainer reads a Container, and reports whether it is the one with an id: a
// runtime may take the filter for the beginning of it.
func parseContainer(b []byte, id string) (n names, ok bool) {
	// Errors leave out what is behind them.
	_ = rpc.Fields(b, func(number protowire.Number, _ uint64, v []byte) {
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
	_ = rpc.Fields(b, func(number protowire.Number, _ uint64, v []byte) {
		switch number {
		case 1:
			key = tenant.Bounded(string(v))
		case 2:
			value = tenant.Bounded(string(v))
		}
	})
	return key, value
}
