package settings

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// sources are made up.
func sources(t *testing.T, file string, environment map[string]string, flags map[string][]string) *Sources {
	t.Helper()
	s := &Sources{Flags: flags, Environment: func(name string) (string, bool) {
		v, ok := environment[name]
		return v, ok
	}}
	if file != "" {
		s.File = filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(s.File, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// A flag counts more than the environment, that more than the file, and that more than
// the default.
func TestPrecedence(t *testing.T) {
	const file = "interval: 1s\nlisten: file:1\nrecord: /file\noom-dir: /file\nalert:\n- oom\n- gpu.used > 1%\npush-otlp: http://file\ntensors: true\n"
	environment := map[string]string{
		"GPUMEMTRACE_LISTEN": "environment:1", "GPUMEMTRACE_RECORD": "/environment", "GPUMEMTRACE_ALERT": "gpu.used > 90%; oom ;",
		"GPUMEMTRACE_NODE": "", "GPUMEMTRACE_TENSORS": "false",
	}
	flags := map[string][]string{"record": {"/flag"}, "push-otlp": {"http://one", "http://two"}}
	c, err := sources(t, file, environment, flags).Load()
	if err != nil {
		t.Fatal(err)
	}
	want := New()
	want.Interval, want.OOMDir = time.Second, "/file"
	want.Listen, want.Alerts = "environment:1", []string{"gpu.used > 90%", "oom"}
	want.Record, want.PushOTLP = "/flag", []string{"http://one", "http://two"}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("%+v,\nwant %+v", c, want)
	}
	environment[variableFile] = sources(t, "interval: 3s", nil, nil).File
	for path, want := range map[string]time.Duration{"": 3 * time.Second, sources(t, "interval: 4s", nil, nil).File: 4 * time.Second} {
		s := sources(t, "", environment, nil)
		s.File = path
		if c, err := s.Load(); err != nil || c.Interval != want {
			t.Errorf("interval %v, %v, want %v", c.Interval, err, want)
		}
	}
}

// What is wrong is told with its place, and nothing is taken for something else.
func TestBadConfiguration(t *testing.T) {
	for file, want := range map[string]string{
		"listen: a\nlissten: b":         `line 2: there is no setting "lissten"`,
		"listen: a\nlisten: b":          "twice",
		"- listen":                      "want settings",
		"just text":                     "want settings",
		"listen: [a, b]":                "the value of listen is empty",
		"listen: {a: b}":                "the value of listen is empty",
		"listen:":                       "the value of listen is empty",
		"alert: [oom, [oom]]":           "the value of alert is empty",
		"a: &x 1\nlisten: *x":           "there is no setting",
		"node: &x a\nlisten: *x":        "the value of listen is empty",
		"<<: {listen: a}":               "there is no setting",
		"interval: soon":                `configuration: interval: "soon": give a duration`,
		"interval: 10ms":                "of at least 1s",
		"memory-limit: 1":               "64MiB at least",
		"memory-limit: lots":            "give a size",
		"record-max: 1MiB":              "16MiB at least",
		"cpu-limit: NaN":                "part of a core",
		"cpu-limit: -5%":                "part of a core",
		"cpu-limit: 1e9":                "part of a core",
		"oom-max: 99999999999":          "whole number",
		"tensors: yes":                  "true or false",
		"api: everything":               "use one of driver runtime both",
		"tensor-sample: 1KiB":           `there is no setting "tensor-sample"`,
		"holders: 1ms":                  "at least 1s",
		"web-config: a":                 "web-config is for listen",
		"alert: something":              "alert",
		"alert-webhook: http://a":       "needs an alert",
		"listen: a\n---\nlisten: b":     "more than one document",
		"listen: \xff":                  "config.yaml",
		"listen: a\n\tnode: b":          "config.yaml",
		strings.Repeat("#", maxFile+10): "larger than",
	} {
		_, err := sources(t, file, nil, nil).Load()
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q in it", file, err, want)
		}
	}
	if _, err := sources(t, "", map[string]string{"GPUMEMTRACE_INTERVAL": "x"}, nil).Load(); err == nil || !strings.Contains(err.Error(), "GPUMEMTRACE_INTERVAL") {
		t.Error(err)
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, t.TempDir(), filepath.Join(t.TempDir(), "none")} {
		s := sources(t, "", nil, nil)
		s.File = path
		if _, err := s.Load(); err == nil {
			t.Errorf("%s was read", path)
		}
	}
	for _, empty := range []string{"", "# nothing\n", "{}"} {
		s := sources(t, "x", nil, nil)
		if err := os.WriteFile(s.File, []byte(empty), 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := s.Load(); err != nil || !reflect.DeepEqual(c, New()) {
			t.Errorf("%q: %+v, %v", empty, c, err)
		}
	}
}

// A reload takes what can change, keeps what cannot, and says which.
func TestMerge(t *testing.T) {
	old, err := sources(t, "interval: 1s\nlisten: a:1\nmemory-limit: 1GiB\nalert: oom\ntensors: true\nholders: 5s\nnode: n\n", nil, nil).Load()
	if err != nil {
		t.Fatal(err)
	}
	next, err := sources(t, "interval: 2s\nlisten: b:1\nalert: [oom, gpu.used > 1%]\ncpu-limit: 5%\nnode: n\n", nil, nil).Load()
	if err != nil {
		t.Fatal(err)
	}
	merged, change := Merge(old, next)
	want := *next
	want.Listen, want.Tensors, want.Holders = "a:1", true, 5*time.Second
	if !reflect.DeepEqual(merged, &want) {
		t.Errorf("%+v,\nwant %+v", merged, want)
	}
	var refused []string
	for _, x := range change.Refused {
		refused = append(refused, x.Name)
	}
	if !slices.Equal(change.Applied, []string{"alert", "interval", "memory-limit", "cpu-limit"}) {
		t.Errorf("applied %q", change.Applied)
	}
	if !slices.Equal(refused, []string{"tensors", "holders", "listen"}) {
		t.Errorf("refused %q", refused)
	}
	if again, change := Merge(merged, merged); !reflect.DeepEqual(again, merged) || len(change.Applied)+len(change.Refused) != 0 {
		t.Errorf("%+v of no change", change)
	}
}

// Each setting is a flag, a variable and a key of its own; its default is a value of its
// kind; and to change it and back changes nothing else.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	changed := New()
	for _, s := range changed.Table() {
		if seen[s.Name] || !slices.Contains(Groups, s.Group) || s.Help == "" || strings.HasSuffix(s.Help, ".") {
			t.Errorf("%+v", s)
		}
		seen[s.Name] = true
		before := s.Values()
		value := map[string]string{"api": "both", "stacks": "fp", "alert": "oom"}[s.Name]
		if value == "" {
			value = map[string]string{"bool": "true", "int": "7", "size": "77MiB", "duration": "1m17s", "cpu": "7.7%", "string": "a"}[s.name]
		}
		if err := s.Set(value); err != nil {
			t.Errorf("%s: %q: %v", s.Name, value, err)
			continue
		}
		if s.String() != value || reflect.DeepEqual(changed, New()) {
			t.Errorf("%s is %q, want %q", s.Name, s, value)
		}
		if err := s.assign(before); err != nil {
			t.Errorf("default of %s: %v", s.Name, err)
		}
		if !reflect.DeepEqual(changed, New()) {
			t.Errorf("%s changed more than itself: %+v", s.Name, changed)
		}
	}
	if (&Setting{Name: "memory-limit"}).Variable() != "GPUMEMTRACE_MEMORY_LIMIT" {
		t.Error("the variable's name")
	}
}

// The file that is installed, and what of it is commented out, are settings.
func TestInstalledConfiguration(t *testing.T) {
	content, err := os.ReadFile("../../../deploy/systemd/agent.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all := regexp.MustCompile(`(?m)^#([a-z])`).ReplaceAllString(string(content), "$1")
	for _, text := range []string{string(content), all} {
		if _, err := sources(t, text, nil, nil).Load(); err != nil {
			t.Error(err)
		}
	}
}

// Whatever is in a file, it is settings or an error.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "listen: a\nalert: [oom, b]\n", "a: &x [1]\nb: *x", "? [a]\n: b", "%YAML 1.2\n---\n...", "memory-limit: !!binary aGk="} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		values, err := parse(content)
		if err != nil {
			return
		}
		for name, all := range values {
			i := slices.IndexFunc(New().Table(), func(s *Setting) bool { return s.Name == name })
			if i < 0 || !New().Table()[i].list && len(all) != 1 {
				t.Errorf("%q is %q", name, all)
			}
		}
	})
}
