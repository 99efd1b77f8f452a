package symbolize

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/atomicfile"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

const (
	debuginfodPatience = 30 * time.Second // for one file
	debuginfodPause    = 5 * time.Minute  // before a server that failed is asked again
)

// debuginfod fetches debug files by build id (debuginfod(8)).
type debuginfod struct {
	urls   []string
	cache  string
	max    int64
	client *http.Client
	loss   *loss.Set

	mu     sync.Mutex
	absent map[string]bool      // build ids that no server has
	paused map[string]time.Time // servers that failed, until when
}

// newDebuginfod returns nil if no server is configured.
func newDebuginfod(cfg Config, counts *loss.Set) *debuginfod {
	if len(cfg.DebuginfodURLs) == 0 || cfg.debuginfodCache == "" {
		return nil
	}
	return &debuginfod{
		urls:   cfg.DebuginfodURLs,
		cache:  cfg.debuginfodCache,
		max:    cfg.debuginfodMaxFile,
		client: &http.Client{Timeout: debuginfodPatience},
		loss:   counts,
		absent: make(map[string]bool),
		paused: make(map[string]time.Time),
	}
}

// find returns the debug file of a build id, which is lower-case hex, or nil.
func (d *debuginfod) find(id string) *proc.File {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.absent[id] {
		return nil
	}
	path := filepath.Join(d.cache, id, "debuginfo")
	if f, err := proc.Open(path); err == nil {
		return f
	}
	absent := true
	for _, url := range d.urls {
		if time.Now().Before(d.paused[url]) {
			absent = false
			continue
		}
		found, err := d.fetch(strings.TrimRight(url, "/")+"/buildid/"+id+"/debuginfo", path)
		if err != nil {
			d.loss.Add(lossDebuginfod, 1)
			d.paused[url] = time.Now().Add(debuginfodPause)
			absent = false
		}
		if found {
			f, _ := proc.Open(path)
			return f
		}
	}
	if absent {
		d.setAbsent(id)
	}
	return nil
}

// discard forgets a file that find returned and that is not what was asked
// for.
func (d *debuginfod) discard(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	os.Remove(filepath.Join(d.cache, id, "debuginfo"))
	d.setAbsent(id)
}

func (d *debuginfod) setAbsent(id string) {
	if len(d.absent) < 1<<16 {
		d.absent[id] = true
	}
}

// fetch writes what the server has at url to path, all or nothing.
func (d *debuginfod) fetch(url, path string) (found bool, err error) {
	resp, err := d.client.Get(url)
	if err != nil {
		return false, fmt.Errorf("ask debuginfod: %w", err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return false, nil
	default:
		return false, fmt.Errorf("ask debuginfod: %s", resp.Status)
	}
	if resp.ContentLength > d.max {
		return false, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return false, fmt.Errorf("cache debug file: %w", err)
	}
	err = atomicfile.Write(path, true, func(w io.Writer) error {
		n, err := io.Copy(w, io.LimitReader(resp.Body, d.max+1))
		if err == nil && n > d.max {
			err = proc.ErrTooLarge
		}
		return err
	})
	if errors.Is(err, proc.ErrTooLarge) {
		return false, nil
	}
	return err == nil, err
}
