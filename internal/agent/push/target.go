package push

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/rpc"
)

// A Target is a store of profiles. System is one of Systems; URL is where it listens,
// "http://host:4040", with the path before its own if there is one.
type Target struct{ System, URL string }

// Systems are those that can be pushed to, as flags and folders name them.
var Systems = []string{"pyroscope", "parca", "otlp"}

// A system says how a store is spoken to.
type system struct {
	encoder  func(version string) encoder
	protocol protocol
	grpc     bool   // over HTTP/2 alone
	path     string // of its procedure, after the URL's
}

// systemOf returns how to speak to a target, and its URL: grpc and grpcs are the schemes
// of OTLP over gRPC.
func systemOf(t Target) (*system, *url.URL, error) {
	u, err := url.Parse(t.URL)
	if err != nil {
		return nil, nil, errors.New("the URL is not valid") // it may have a password
	}
	s := &system{}
	grpc := u.Scheme == "grpc" || u.Scheme == "grpcs"
	switch t.System {
	case "pyroscope":
		s.encoder = func(string) encoder { return &pyroscope{} }
		s.protocol, s.path = call(empty), "/push.v1.PusherService/Push"
	case "parca":
		s.encoder = func(string) encoder { return &parca{} }
		s.grpc, s.protocol, s.path = true, call(empty, connect.WithGRPC()), "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw"
	case "otlp":
		s.encoder = func(version string) encoder { return newOTLP(version) }
		s.protocol, s.path = otlpHTTP, "/v1development/profiles"
		if grpc {
			s.grpc, s.protocol, s.path = true, call(exported, connect.WithGRPC(), rpc.Compressed()), "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
		}
	default:
		return nil, nil, fmt.Errorf("%q is not one of %s", t.System, strings.Join(Systems, ", "))
	}
	if grpc && t.System != "pyroscope" {
		u.Scheme = map[string]string{"grpc": "http", "grpcs": "https"}[u.Scheme]
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, nil, fmt.Errorf("the URL must begin with http:// or https:// and a host")
	case u.User != nil:
		return nil, nil, errors.New("the URL must not have credentials: --push-header-file is for those")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, nil, errors.New("the URL must not have a query or a fragment")
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), s.path)
	return s, u, nil
}

// Bounds of one request.
const (
	dialTimeout    = 10 * time.Second
	requestTimeout = 30 * time.Second
)

// client returns one for a target alone. It follows no redirect: what it sends is for
// who was named.
func client(grpc, insecure bool) *http.Client {
	t := &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSHandshakeTimeout:    dialTimeout,
		ResponseHeaderTimeout:  requestTimeout,
		MaxResponseHeaderBytes: rpc.MaxAnswer,
		MaxConnsPerHost:        1,
		IdleConnTimeout:        5 * time.Minute,
		DisableCompression:     true, // an answer is as long as it is
		Protocols:              new(http.Protocols),
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: dialTimeout, PingTimeout: dialTimeout},
	}
	if grpc {
		t.Protocols.SetHTTP2(!insecure)
		t.Protocols.SetUnencryptedHTTP2(insecure)
	} else {
		t.Protocols.SetHTTP1(true)
		t.Protocols.SetHTTP2(true)
	}
	return &http.Client{
		Transport:     t,
		Timeout:       requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// loopback reports whether a URL's host is this machine.
func loopback(u *url.URL) bool {
	if u.Hostname() == "localhost" {
		return true
	}
	ip := net.ParseIP(u.Hostname())
	return ip != nil && ip.IsLoopback()
}
