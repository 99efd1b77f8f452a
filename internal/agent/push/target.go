package push

import (
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/rpc"
)

// A system says how a target is spoken to.
type system struct {
	protocol protocol
	grpc     bool   // over HTTP/2 alone
	path     string // of its procedure, after the URL's
}

// systemOf returns how to speak to a target, and its URL. The schemes grpc and grpcs are for OTLP
// over gRPC.
func systemOf(target string) (*system, *url.URL, error) {
	u, err := url.Parse(target)
	if err != nil {
		return nil, nil, errors.New("the URL is not valid") // it may have a password
	}
	s := &system{protocol: otlpHTTP, path: "/v1development/profiles"}
	if scheme, grpc := map[string]string{"grpc": "http", "grpcs": "https"}[u.Scheme]; grpc {
		u.Scheme = scheme
		s = &system{otlpGRPC, true, "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"}
	}
	switch {
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return nil, nil, errors.New("the URL must begin with http://, https://, grpc:// or grpcs://, and a host")
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
