package settings

import (
	"errors"
	"slices"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/alert"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/push"
)

// A Config has the agent's settings.
type Config struct {
	Trace

	// HTTP.
	Listen            string // Off for nowhere
	TLSCert, TLSKey   string
	TokenFile         string
	Insecure          bool
	Profiling         bool
	PerProcessMetrics int
	BPFCost           bool

	// On disk, beside those of every trace.
	Record    string // a directory, "" for none
	RecordOld int

	// Push.
	PushOTLP       []string
	PushInterval   time.Duration
	PushQueueMax   int64 // bytes
	PushHeaderFile string
	Node           string

	// Alerts.
	Alerts   []string
	Webhook  string
	Interval time.Duration

	// Limits.
	MemoryLimit int64   // bytes, 0 for none
	CPULimit    float64 // cores, 0 for none
}

// Off is the address of an agent that listens nowhere.
const Off = "off"

// New returns the defaults of the agent.
func New() *Config {
	c := &Config{
		Trace: NewTrace(), Listen: "localhost:9844", RecordOld: 2,
		PushInterval: push.DefaultInterval, PushQueueMax: push.DefaultQueueMax, Interval: 10 * time.Second,
	}
	c.RecordMax, c.OOMMax = 256<<20, 20
	return c
}

const (
	groupHTTP   = "HTTP"
	groupPush   = "Push"
	groupAlert  = "Alerts"
	groupLimits = "Limits"
)

// Groups are the titles of settings, in the order of help.
var Groups = []string{groupTrace, groupHTTP, groupDisk, groupPush, groupAlert, groupLimits}

// Table returns the rows of all settings, bound to c.
func (c *Config) Table() []*Setting {
	anything := func(string) error { return nil }
	rule := func(text string) error { _, err := alert.Parse(text); return err }
	return append(c.Trace.Table(), []*Setting{
		{groupHTTP, "listen", text(&c.Listen), true, "address at which to serve profiles, metrics and the page; off for none"},
		{groupHTTP, "tls-cert", text(&c.TLSCert), false, "file with the certificate, in PEM"},
		{groupHTTP, "tls-key", text(&c.TLSKey), false, "file with the certificate's key, in PEM"},
		{groupHTTP, "token-file", text(&c.TokenFile), false, "file with the token that readers must have"},
		{groupHTTP, "insecure", flag(&c.Insecure), false, "serve other users and machines without a token, or without TLS"},
		{groupHTTP, "pprof", flag(&c.Profiling), false, "also serve Go's profiles of the agent itself"},
		{groupHTTP, "per-process-metrics", number(&c.PerProcessMetrics, 0), false, "number of processes that get metrics of their own; the first ones get them"},
		{groupHTTP, "bpf-cost", flag(&c.BPFCost), true, "also serve metrics of what the probes cost the traced programs; the agent then keeps all its privileges"},

		{groupDisk, "record", text(&c.Record), true, "record into this directory, for gpumemtrace report, convert and top"},
		{groupDisk, "record-old", number(&c.RecordOld, 0), false, "number of recordings of earlier runs to keep; the newest ones are kept"},

		{groupPush, "push-otlp", texts(&c.PushOTLP, anything), false, "push profiles by OTLP to this URL (experimental)"},
		{groupPush, "push-interval", duration(&c.PushInterval, time.Second), false, "time from one profile to the next"},
		{groupPush, "push-queue-max", size(&c.PushQueueMax, 1<<20), false, "the most memory for profiles that wait to be pushed, for all targets together"},
		{groupPush, "push-header-file", text(&c.PushHeaderFile), false, "file with headers to send, such as Authorization: Bearer TOKEN"},
		{groupPush, "node", text(&c.Node), false, "label node of pushed profiles (default: the machine's name)"},

		{groupAlert, "alert", texts(&c.Alerts, rule), false, "report when this becomes true, such as 'gpu.used > 90%', 'process.live > 20GiB for 5m', 'leak', 'oom'"},
		{groupAlert, "alert-webhook", text(&c.Webhook), false, "also post alerts to this URL"},
		{groupAlert, "interval", duration(&c.Interval, time.Second), false, "how often to check alerts, and to drop processes that have ended"},

		{groupLimits, "memory-limit", size(&c.MemoryLimit, 64<<20), false, "limit of the agent's resident memory; near it, calls are traced without stacks, and totals stay complete"},
		{groupLimits, "cpu-limit", cores(&c.CPULimit), false, "limit of the agent's processor time, such as 5% of a core; above it, calls are traced without stacks, and totals stay complete"},
	}...)
}

// Check finds settings that do not fit together.
func (c *Config) Check() error {
	switch {
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("give both tls-cert and tls-key, or neither")
	case c.Webhook != "" && len(c.Alerts) == 0:
		return errors.New("alert-webhook needs an alert")
	}
	return c.Trace.Check()
}

// Rules returns the rules of alerts. Each was parsed before.
func (c *Config) Rules() (out []alert.Rule) {
	for _, text := range c.Alerts {
		if r, err := alert.Parse(text); err == nil {
			out = append(out, r)
		}
	}
	return out
}

// A Change is what a reload found.
type Change struct {
	Applied []string   // names
	Refused []*Setting // with the values that stay
}

// Merge returns the settings from now on where old ones were in use and next ones were
// read, and how they differ. Those that are Fixed stay.
func Merge(old, next *Config) (*Config, Change) {
	merged := *next
	var c Change
	before, after := old.Table(), next.Table()
	for i, s := range before {
		switch {
		case slices.Equal(s.Values(), after[i].Values()):
		case s.Fixed:
			c.Refused = append(c.Refused, s)
			merged.Revert(old, s.Name)
		default:
			c.Applied = append(c.Applied, s.Name)
		}
	}
	return &merged, c
}

// Revert gives settings, by name, the values that they have in old.
func (c *Config) Revert(old *Config, names ...string) {
	from, to := old.Table(), c.Table()
	for i, s := range from {
		if slices.Contains(names, s.Name) {
			_ = to[i].assign(s.Values()) // which were checked before
		}
	}
}
