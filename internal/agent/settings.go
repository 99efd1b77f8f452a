package agent

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/alert"
	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// A Config is what the settings say.
type Config struct {
	// What is traced, and how.
	Tensors                 bool
	TensorSample, TensorMin uint64 // bytes
	API                     string
	Stacks                  string
	NoCache                 bool
	MaxLive                 int

	// HTTP.
	Listen            string // "" for nowhere
	TLSCert, TLSKey   string
	TokenFile         string
	Insecure          bool
	Profiling         bool
	PerProcessMetrics int
	BPFCost           bool

	// On disk.
	Record    string // a directory, "" for none
	RecordMax int64  // bytes
	RecordOld int
	OOMDir    string
	OOMMax    int

	// Push.
	PushPyroscope, PushParca, PushOTLP []string
	PushInterval                       time.Duration
	PushQueueMax                       int64 // bytes
	PushHeaderFile                     string
	Node                               string

	// Alerts.
	Alerts   []string
	Webhook  string
	Interval time.Duration

	// Limits.
	MemoryLimit int64   // bytes, 0 for none
	CPULimit    float64 // cores, 0 for none
}

// A Setting is one row of the table that flags, environment, file and help come from.
type Setting struct {
	Group, Name, Help string
	// Kind names what the value is: "string", "bool", "int", "size", "duration", "cpu".
	Kind string
	// List: there may be several.
	List bool
	// Fixed: it cannot change while the agent runs.
	Fixed bool

	set  func(*Config, string) error
	get  func(*Config) []string
	copy func(to, from *Config)
	free func(*Config) // empties a list
}

// Variable is the environment's name of the setting.
func (s *Setting) Variable() string {
	return "GPUMEMTRACE_" + strings.ToUpper(strings.ReplaceAll(s.Name, "-", "_"))
}

// Default is the value that it has if nobody sets it, "" for none.
func (s *Setting) Default() string { return strings.Join(s.get(Defaults()), " ") }

// Check says what is wrong with a value.
func (s *Setting) Check(value string) error { return s.set(&Config{}, value) }

// Defaults returns the Config that nothing was set in.
func Defaults() *Config {
	return &Config{
		API: string(probes.APIDriver), Stacks: string(unwind.Auto), MaxLive: 2_000_000,
		Listen: "localhost:9844", RecordMax: 256 << 20, RecordOld: 2, OOMMax: 20,
		PushInterval: time.Minute, PushQueueMax: 64 << 20, Interval: 10 * time.Second,
	}
}

// row makes a Setting of one value.
func row[T any](kind, group, name string, of func(*Config) *T, parse func(string) (T, error), write func(T) []string, help string) *Setting {
	return &Setting{Group: group, Name: name, Help: help, Kind: kind,
		set: func(c *Config, v string) error {
			x, err := parse(v)
			if err == nil {
				*of(c) = x
			}
			return err
		},
		get:  func(c *Config) []string { return write(*of(c)) },
		copy: func(to, from *Config) { *of(to) = *of(from) },
		free: func(*Config) {}}
}

func text(group, name string, of func(*Config) *string, help string) *Setting {
	return row("string", group, name, of, func(v string) (string, error) { return v, nil }, some, help)
}

func texts(group, name string, of func(*Config) *[]string, help string) *Setting {
	return &Setting{Group: group, Name: name, Help: help, Kind: "string", List: true,
		set:  func(c *Config, v string) error { *of(c) = append(*of(c), v); return nil },
		get:  func(c *Config) []string { return *of(c) },
		copy: func(to, from *Config) { *of(to) = *of(from) },
		free: func(c *Config) { *of(c) = nil }}
}

func flag(group, name string, of func(*Config) *bool, help string) *Setting {
	return row("bool", group, name, of, func(v string) (bool, error) {
		switch v {
		case "true", "1":
			return true, nil
		case "false", "0":
			return false, nil
		}
		return false, errors.New("give true or false")
	}, func(v bool) []string {
		if v {
			return []string{"true"}
		}
		return nil
	}, help)
}

func number(group, name string, of func(*Config) *int, least int, help string) *Setting {
	return row("int", group, name, of, func(v string) (int, error) {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > math.MaxInt32 {
			return 0, fmt.Errorf("give a whole number, %d at least", least)
		}
		return n, nil
	}, func(v int) []string { return []string{strconv.Itoa(v)} }, help)
}

func size[T int64 | uint64](group, name string, of func(*Config) *T, least T, help string) *Setting {
	return row("size", group, name, of, func(v string) (T, error) {
		n, err := bytefmt.Parse(v)
		if err == nil && T(n) < least {
			err = fmt.Errorf("give %s at least", bytefmt.Exact(int64(least)))
		}
		return T(n), err
	}, func(v T) []string {
		if v == 0 {
			return nil
		}
		return []string{bytefmt.Exact(int64(v))}
	}, help)
}

func duration(group, name string, of func(*Config) *time.Duration, least time.Duration, help string) *Setting {
	return row("duration", group, name, of, func(v string) (time.Duration, error) {
		d, err := time.ParseDuration(v)
		if err != nil || d < least {
			return 0, fmt.Errorf("give a duration such as 30s, %v at least", least)
		}
		return d, nil
	}, func(v time.Duration) []string { return []string{v.String()} }, help)
}

// cpu is a part of one core, such as 5%, or a number of cores.
func cpu(group, name string, of func(*Config) *float64, help string) *Setting {
	return row("cpu", group, name, of, func(v string) (float64, error) {
		number, percent := strings.CutSuffix(v, "%")
		f, err := strconv.ParseFloat(number, 64)
		if percent {
			f /= 100
		}
		if err != nil || !(f >= 0.001 && f <= 1024) {
			return 0, errors.New("give a part of a core, such as 5%, or a number of cores, such as 0.05")
		}
		return f, nil
	}, func(v float64) []string {
		if v == 0 {
			return nil
		}
		return []string{strconv.FormatFloat(v*100, 'g', 6, 64) + "%"}
	}, help)
}

// checked has the setting take what passes a check.
func checked(s *Setting, check func(string) error) *Setting {
	set := s.set
	s.set = func(c *Config, v string) error {
		if err := check(v); err != nil {
			return err
		}
		return set(c, v)
	}
	return s
}

func oneOf[T ~string](s *Setting, all ...T) *Setting {
	return checked(s, func(v string) error {
		if !slices.Contains(all, T(v)) {
			return fmt.Errorf("unknown %q", v)
		}
		return nil
	})
}

func fixed(s *Setting) *Setting {
	s.Fixed = true
	return s
}

// some is a text as a list, which has none for "".
func some(v string) []string {
	if v == "" {
		return nil
	}
	return []string{v}
}

const (
	groupTrace  = "Tracing"
	groupHTTP   = "HTTP"
	groupDisk   = "Flight recorder"
	groupPush   = "Push"
	groupAlert  = "Alerts"
	groupLimits = "Limits"
)

// Groups are the titles of settings, in the order of help.
func Groups() []string {
	return []string{groupTrace, groupHTTP, groupDisk, groupPush, groupAlert, groupLimits}
}

// Settings is the table.
var Settings = []*Setting{
	fixed(flag(groupTrace, "tensors", func(c *Config) *bool { return &c.Tensors }, "look inside PyTorch's caching allocator")),
	fixed(size(groupTrace, "tensor-sample", func(c *Config) *uint64 { return &c.TensorSample }, 1, "with tensors, tell of a random sample of them alone, one for so many bytes in the mean")),
	fixed(size(groupTrace, "tensor-min", func(c *Config) *uint64 { return &c.TensorMin }, 1, "with tensors, tell of none below this size")),
	fixed(oneOf(text(groupTrace, "api", func(c *Config) *string { return &c.API }, "count at the driver, the runtime, or both"), probes.APIDriver, probes.APIRuntime, probes.APIBoth)),
	fixed(oneOf(text(groupTrace, "stacks", func(c *Config) *string { return &c.Stacks }, "how stacks are taken: auto, unwind, fp"), unwind.Auto, unwind.Always, unwind.FramePointer)),
	fixed(flag(groupTrace, "no-cache", func(c *Config) *bool { return &c.NoCache }, "keep no unwind tables in "+unwind.CacheDir+", and use none from there")),
	fixed(number(groupTrace, "max-live", func(c *Config) *int { return &c.MaxLive }, 1, "live allocations that keep their call stack; bytes beyond are counted, not attributed")),

	fixed(text(groupHTTP, "listen", func(c *Config) *string { return &c.Listen }, "address of profiles, metrics and the page, off for none")),
	text(groupHTTP, "tls-cert", func(c *Config) *string { return &c.TLSCert }, "file with the certificate, in PEM"),
	text(groupHTTP, "tls-key", func(c *Config) *string { return &c.TLSKey }, "file with its key, in PEM"),
	text(groupHTTP, "token-file", func(c *Config) *string { return &c.TokenFile }, "file with the token that readers must have"),
	flag(groupHTTP, "insecure", func(c *Config) *bool { return &c.Insecure }, "let others read without a token or without TLS"),
	flag(groupHTTP, "pprof", func(c *Config) *bool { return &c.Profiling }, "serve Go's profiles of the agent itself too"),
	number(groupHTTP, "per-process-metrics", func(c *Config) *int { return &c.PerProcessMetrics }, 0, "processes that have metrics of their own, those that came first"),
	fixed(flag(groupHTTP, "bpf-cost", func(c *Config) *bool { return &c.BPFCost }, "metrics of what the probes cost the traced programs too, for which the agent keeps all its privileges")),

	fixed(text(groupDisk, "record", func(c *Config) *string { return &c.Record }, "keep the newest records in this directory, for gpumemtrace report, convert and top")),
	size(groupDisk, "record-max", func(c *Config) *int64 { return &c.RecordMax }, record.MinBytes, "size of a recording; its oldest part is dropped beyond"),
	number(groupDisk, "record-old", func(c *Config) *int { return &c.RecordOld }, 0, "recordings of earlier runs that are kept beside it, the newest"),
	fixed(text(groupDisk, "oom-dir", func(c *Config) *string { return &c.OOMDir }, "write a report and a profile here whenever an allocation fails for want of memory")),
	number(groupDisk, "oom-max", func(c *Config) *int { return &c.OOMMax }, 1, "reports that are kept there"),

	texts(groupPush, "push-pyroscope", func(c *Config) *[]string { return &c.PushPyroscope }, "push profiles to Pyroscope at this URL"),
	texts(groupPush, "push-parca", func(c *Config) *[]string { return &c.PushParca }, "push profiles to Parca at this URL"),
	texts(groupPush, "push-otlp", func(c *Config) *[]string { return &c.PushOTLP }, "push profiles by OTLP to this URL (experimental)"),
	duration(groupPush, "push-interval", func(c *Config) *time.Duration { return &c.PushInterval }, time.Second, "time from one profile to the next"),
	size(groupPush, "push-queue-max", func(c *Config) *int64 { return &c.PushQueueMax }, 1<<20, "size of what waits, of all targets"),
	text(groupPush, "push-header-file", func(c *Config) *string { return &c.PushHeaderFile }, "file with headers to send, such as Authorization: Bearer TOKEN"),
	text(groupPush, "node", func(c *Config) *string { return &c.Node }, "label node of what is pushed (default: the machine's name)"),

	checked(texts(groupAlert, "alert", func(c *Config) *[]string { return &c.Alerts }, "tell when this becomes true, such as 'gpu.used > 90%', 'process.live grows 1GiB in 10m', 'oom'"), func(v string) error { _, err := alert.Parse(v); return err }),
	text(groupAlert, "alert-webhook", func(c *Config) *string { return &c.Webhook }, "also post alerts to this URL"),
	duration(groupAlert, "interval", func(c *Config) *time.Duration { return &c.Interval }, time.Second, "how often alerts are looked at, and ended processes dropped"),

	size(groupLimits, "memory-limit", func(c *Config) *int64 { return &c.MemoryLimit }, 64<<20, "resident memory of the agent: near it, calls are traced without their stacks, and totals go on"),
	cpu(groupLimits, "cpu-limit", func(c *Config) *float64 { return &c.CPULimit }, "processor time of the agent, such as 5% of a core: above it, likewise"),
}

// find returns a setting by name, nil for none.
func find(name string) *Setting {
	i := slices.IndexFunc(Settings, func(s *Setting) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return Settings[i]
}

// check finds settings that do not fit together.
func (c *Config) check() error {
	switch {
	case !c.Tensors && (c.TensorSample > 0 || c.TensorMin > 0):
		return errors.New("tensor-sample and tensor-min need tensors")
	case c.TensorSample > probes.MaxTensorSample:
		return fmt.Errorf("tensor-sample must be at most %s", bytefmt.Exact(probes.MaxTensorSample))
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("tls-cert and tls-key need each other")
	case c.Webhook != "" && len(c.Alerts) == 0:
		return errors.New("alert-webhook needs an alert")
	}
	return nil
}
