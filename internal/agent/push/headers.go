package push

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/reload"
	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

// headers are those of a file.
type headers struct {
	file *reload.Value[http.Header] // nil for none
}

// again is how often the file is looked at, at most: credentials are renewed.
const again = time.Second

// openHeaders reads the file, if there is one.
func openHeaders(path string, warn func(string)) (*headers, error) {
	if path == "" {
		return &headers{}, nil
	}
	file, err := reload.Load(again, func(text string) { warn("push: " + text) }, func() (http.Header, []string, error) {
		paths := []string{path}
		data, _, err := userfile.Read(path, maxHeaderFile)
		if err != nil {
			return nil, paths, err
		}
		all, err := readHeaders(data)
		if err != nil {
			return nil, paths, fmt.Errorf("%s: %w", path, err)
		}
		return all, paths, nil
	})
	return &headers{file}, err
}

const maxHeaderFile = 64 << 10

// reserved are set by protocols and by HTTP itself.
var reserved = []string{"Connection", "Content-Encoding", "Content-Length", "Content-Type", "Host", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// readHeaders reads headers, one in a line, "Name: value". It skips empty lines, and those that
// begin with #. An error does not contain the line, which may be a secret.
func readHeaders(data []byte) (http.Header, error) {
	all := http.Header{}
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !ok || !token(name) || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return nil, fmt.Errorf("line %d is not \"Name: value\"", i+1)
		}
		name = http.CanonicalHeaderKey(name)
		if slices.Contains(reserved, name) || strings.HasPrefix(name, "Grpc-") || strings.HasPrefix(name, "Connect-") {
			return nil, fmt.Errorf("line %d: this file may not set %s", i+1, name)
		}
		all.Add(name, value)
	}
	return all, nil
}

// token reports whether s may be a header's name.
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

// secret reports whether headers have credentials.
func secret(h http.Header) bool {
	return h.Get("Authorization") != "" || h.Get("Proxy-Authorization") != "" || h.Get("Cookie") != ""
}

// get returns a copy of them.
func (h *headers) get() http.Header {
	if h.file == nil {
		return http.Header{}
	}
	return h.file.Get().Clone()
}
