package push

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

// headers are those of a file, which is read again when it has changed: credentials are
// renewed. The last good ones stay while it cannot be read.
type headers struct {
	path string
	warn func(string)

	mu    sync.Mutex
	read  string // what Stat said of the file then
	asked time.Time
	all   map[string]http.Header // by system, "" for all
}

const maxHeaderFile = 64 << 10

// reserved are set by protocols and by HTTP itself.
var reserved = []string{"Connection", "Content-Encoding", "Content-Length", "Content-Type", "Host", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// readHeaders reads headers, one in a line, "Name: value". Those after a line "[parca]"
// are for that system's targets alone. Empty lines, and those that begin with #, are
// none. What is wrong with a line is said without the line.
func readHeaders(data []byte) (map[string]http.Header, error) {
	all := map[string]http.Header{}
	system := ""
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		if name, ok := strings.CutPrefix(line, "["); ok {
			name, ok = strings.CutSuffix(name, "]")
			if !ok || !slices.Contains(Systems, name) {
				return nil, fmt.Errorf("line %d: [%s] are what there is", i+1, strings.Join(Systems, "], ["))
			}
			system = name
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !ok || !token(name) || strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return nil, fmt.Errorf("line %d is not \"Name: value\"", i+1)
		}
		name = http.CanonicalHeaderKey(name)
		if slices.Contains(reserved, name) || strings.HasPrefix(name, "Grpc-") || strings.HasPrefix(name, "Connect-") {
			return nil, fmt.Errorf("line %d: %s is not for this file", i+1, name)
		}
		if all[system] == nil {
			all[system] = http.Header{}
		}
		all[system].Add(name, value)
	}
	return all, nil
}

// token tells whether s may be a header's name.
func token(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

// secret tells whether headers have credentials.
func secret(h http.Header) bool {
	return h.Get("Authorization") != "" || h.Get("Proxy-Authorization") != "" || h.Get("Cookie") != ""
}

// load reads the file.
func (h *headers) load() error {
	if h.path == "" {
		return nil
	}
	data, info, err := userfile.Read(h.path, maxHeaderFile)
	if err != nil {
		return err
	}
	all, err := readHeaders(data)
	if err != nil {
		return fmt.Errorf("%s: %w", h.path, err)
	}
	h.all, h.read = all, stamp(info)
	return nil
}

func stamp(info os.FileInfo) string {
	inode := uint64(0)
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		inode = st.Ino
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size(), inode)
}

// again is how often the file is looked at, at most.
const again = time.Second

// of returns the headers for a system.
func (h *headers) of(system string) http.Header {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.path != "" && time.Since(h.asked) > again {
		h.asked = time.Now()
		if info, err := os.Stat(h.path); err == nil && stamp(info) != h.read {
			if err := h.load(); err != nil {
				h.read = stamp(info) // it is said once
				h.warn(fmt.Sprintf("push: the headers of before are sent: %v", err))
			}
		}
	}
	out := h.all[""].Clone()
	for name, values := range h.all[system] {
		if out == nil {
			out = http.Header{}
		}
		out[name] = values
	}
	return out
}
