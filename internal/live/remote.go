package live

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// RemoteOptions say how to reach an agent.
type RemoteOptions struct {
	// Address is a socket, "/run/gpumemtrace/agent.sock", or "https://node7:9844", with a
	// path where a proxy has one.
	Address        string
	User, Password string // "" for none
	// Insecure allows that the password is sent where others may read it.
	Insecure bool
	// TLS is the client's configuration, nil for the system's authorities.
	TLS *tls.Config
}

const (
	// patience bounds how long an agent may need for one snapshot.
	patience = 30 * time.Second
	// maxSnapshot bounds the size of a snapshot, in bytes: a hundred times that of ten
	// thousand stacks.
	maxSnapshot = 1 << 30
	// maxRefusal bounds how much of an error's text is shown.
	maxRefusal = 1 << 10
)

// Remote returns the trace of an agent as a Source, which fetches snapshots over HTTP.
func Remote(o RemoteOptions) (Source, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = o.TLS
	address := o.Address
	if filepath.IsAbs(o.Address) {
		address = "http://localhost"
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", o.Address)
		}
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q is no address of an agent: give one such as https://node7:9844, or a socket such as /run/gpumemtrace/agent.sock", o.Address)
	}
	if u.User != nil {
		return nil, errors.New("a password in an address is seen by all who see command lines: give it as a file")
	}
	if o.Password != "" && u.Scheme == "http" && !o.Insecure && !loopback(u.Hostname()) {
		return nil, fmt.Errorf("the password would go to %s for all on the way to read: use https", u.Host)
	}
	name := u.Host
	if address != o.Address {
		name = o.Address
	}
	return &remote{name: name, address: *u.JoinPath("/api/v1/look"), user: o.User, password: o.Password, client: &http.Client{
		Transport: t, Timeout: patience,
		// The password is for the host that it was given for.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// loopback reports whether a host's name leads to this machine alone.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

type remote struct {
	name           string // for people
	address        url.URL
	user, password string
	client         *http.Client
}

func (r *remote) Span() (time.Duration, []int64) { return 0, nil }

func (r *remote) Snapshot(q Query) (*Snapshot, error) {
	u := r.address
	if q.Allocations != nil {
		u.RawQuery = url.Values{"site": {SiteText(q.Allocations)}}.Encode()
	}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, u.String(), http.NoBody)
	if err != nil {
		return nil, err
	}
	if r.password != "" {
		request.SetBasicAuth(r.user, r.password)
	}
	answer, err := r.client.Do(request)
	if err != nil {
		return nil, r.explain(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, r.refused(answer)
	}
	l, err := ReadSnapshot(io.LimitReader(answer.Body, maxSnapshot))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	return l, nil
}

// explain returns the reason of a failed request.
func (r *remote) explain(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("the agent at %s does not answer", r.name)
	}
	if all, ok := errors.AsType[*url.Error](err); ok {
		err = all.Err
	}
	return fmt.Errorf("the agent at %s cannot be asked: %w", r.name, err)
}

func (r *remote) refused(answer *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(answer.Body, maxRefusal)) // as much as arrived
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	switch {
	case answer.StatusCode == http.StatusUnauthorized && r.password == "":
		line = "it wants a password: give --password-file"
	case answer.StatusCode == http.StatusUnauthorized:
		line = "it has another user or password"
	case answer.StatusCode == http.StatusNotFound && line == "":
		line = "there is no agent's API there"
	}
	return fmt.Errorf("%s: %s: %s", r.name, answer.Status, render.Clean(line))
}
