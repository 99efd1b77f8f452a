package symbolize

import (
	"bytes"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// strip returns a program without symbols, its debug file and its build id.
func strip(t testing.TB) (exe string, debug []byte, id string) {
	t.Helper()
	full := buildShapes(t, "-g")
	dir := t.TempDir()
	exe = filepath.Join(dir, "shapes")
	command(t, "objcopy", "--strip-all", full, exe)
	command(t, "objcopy", "--only-keep-debug", full, filepath.Join(dir, "debug"))
	debug, err := os.ReadFile(filepath.Join(dir, "debug"))
	if err != nil {
		t.Fatal(err)
	}
	return exe, debug, openFile(t, newSymbolizer(t, Config{}), full).buildID
}

func TestDebuginfod(t *testing.T) {
	exe, debug, id := strip(t)
	const found = "inlined_twice < inlined_once < outer"
	raw, err := hex.DecodeString(id)
	if err != nil || !bytes.Contains(debug, raw) {
		t.Fatalf("the debug file does not have build id %s: %v", id, err)
	}
	other := bytes.ReplaceAll(debug, raw, bytes.Repeat([]byte{7}, len(raw)))
	for _, c := range []struct {
		name     string
		serve    http.HandlerFunc
		max      int64
		named    bool
		failures uint64
	}{
		{"found", func(w http.ResponseWriter, r *http.Request) { w.Write(debug) }, 0, true, 0},
		{"not found", http.NotFound, 0, false, 0},
		{"server error", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", http.StatusInternalServerError) }, 0, false, 1},
		{"too large", func(w http.ResponseWriter, r *http.Request) { w.Write(debug) }, 1000, false, 0},
		{"too large, of unknown length", func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			io.Copy(w, io.MultiReader(bytes.NewReader(debug[:2000]), bytes.NewReader(debug)))
		}, 1500, false, 0},
		{"another build id", func(w http.ResponseWriter, r *http.Request) { w.Write(other) }, 0, false, 0},
		{"no ELF", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<html>") }, 0, false, 0},
		{"cut short", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100000")
			w.Write(debug[:100])
		}, 0, false, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				if r.URL.Path != "/buildid/"+id+"/debuginfo" {
					t.Errorf("asked for %s", r.URL.Path)
				}
				c.serve(w, r)
			}))
			defer server.Close()
			tg := start(t, exe)
			cfg := Config{DebuginfodURLs: []string{server.URL + "/"}, debuginfodCache: t.TempDir(), debuginfodMaxFile: c.max}
			for range 2 { // the second has what the first stored
				s := newSymbolizer(t, cfg)
				l := s.Resolve(s.Locate(tg.pid, tg.at["inlines"], Return))
				s.Resolve(s.Locate(tg.pid, tg.at["lambda"], Return))
				if got := names(l); (got == found) != c.named {
					t.Errorf("got %s", got)
				}
				if n := reasonCount(t, s, "symbolize_debuginfod_failed"); n != c.failures {
					t.Errorf("%d failures, want %d", n, c.failures)
				}
			}
			want := int32(2)
			if c.named {
				want = 1
			}
			if n := asked.Load(); n != want {
				t.Errorf("asked %d times, want %d", n, want)
			}
			if left, _ := filepath.Glob(filepath.Join(cfg.debuginfodCache, "*", "partial-*")); len(left) > 0 {
				t.Errorf("left %v behind", left)
			}
		})
	}
}

func TestDebuginfodIsOffUnlessSet(t *testing.T) {
	t.Setenv("DEBUGINFOD_URLS", "")
	if d := newDebuginfod(ConfigFromEnv().withDefaults(), loss.New(causes)); d != nil {
		t.Error("debuginfod is on")
	}
	t.Setenv("DEBUGINFOD_URLS", "http://127.0.0.1:1 http://127.0.0.1:2")
	if d := newDebuginfod(ConfigFromEnv().withDefaults(), loss.New(causes)); d == nil || len(d.urls) != 2 {
		t.Errorf("got %+v, want two servers", d)
	}
}
