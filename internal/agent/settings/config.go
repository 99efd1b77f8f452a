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
	Socket            string // Off for none
	SocketGroup       string
	Listen            string // "" for nowhere
	WebConfig         string
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

// Off is the socket of an agent that listens at none.
const Off = "off"

// DefaultSocket is where people and top --agent ask an agent.
const DefaultSocket = "/run/gpumemtrace/agent.sock"

// New returns the defaults of the agent.
func New() *Config {
	c := &Config{
		Trace: NewTrace(), Socket: DefaultSocket, RecordOld: 2,
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
		{groupHTTP, "socket", text(&c.Socket), true, "unix socket at which to serve profiles, metrics and the page to root; off for none"},
		{groupHTTP, "socket-group", text(&c.SocketGroup), true, "group whose members may also read at the socket"},
		{groupHTTP, "listen", text(&c.Listen), true, "also serve at this address of TCP, such as :9844; needs web-config, or insecure"},
		{groupHTTP, "web-config", text(&c.WebConfig), false, "for listen: web configuration file, as Prometheus's exporters have, with TLS and passwords"},
		{groupHTTP, "insecure", flag(&c.Insecure), false, "serve at listen, and push credentials, without TLS; without web-config, everybody who can connect may read"},
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
	case c.WebConfig != "" && c.Listen == "":
		return errors.New("web-config is for listen: give both")
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
