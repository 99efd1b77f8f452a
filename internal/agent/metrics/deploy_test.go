package metrics

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	rulesFile      = "../../../deploy/prometheus/rules.yml"
	rulesTestsFile = "../../../deploy/prometheus/rules_test.yml"
	dashboardFile  = "../../../deploy/grafana/gpumemtrace.json"
)

// names are the metrics that may be served.
func names(t *testing.T) map[string]bool {
	t.Helper()
	out := map[string]bool{"process_cpu_seconds_total": true, "process_resident_memory_bytes": true, "process_open_fds": true, "up": true}
	of := regexp.MustCompile(`fqName: "(\w+)"`)
	for _, d := range descs() {
		m := of.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("no name: %s", d)
		}
		out[m[1]] = true
	}
	return out
}

var metricName = regexp.MustCompile(`\b(gpumemtrace[_:][\w:]+|process_\w+)`)

// missing are the metrics of an expression that nobody makes.
func missing(known map[string]bool, expr string) (out []string) {
	for _, name := range metricName.FindAllString(expr, -1) {
		if !known[name] {
			out = append(out, name)
		}
	}
	return out
}

// The rules are sound, and each alert fires when it should and not when it should not.
func TestRules(t *testing.T) {
	promtool(t, "", "check", "rules", rulesFile)
	promtool(t, "", "test", "rules", rulesTestsFile)
	text, err := os.ReadFile(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	known, exprs := names(t), 0
	for _, m := range regexp.MustCompile(`(?m)record: (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		known[m[1]] = true
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		if trimmed := strings.TrimSpace(line); strings.HasPrefix(trimmed, "#") || strings.Contains(trimmed, "description:") {
			continue
		}
		if strings.Contains(line, "rule_files") {
			continue
		}
		exprs += len(metricName.FindAllString(line, -1))
		for _, name := range missing(known, line) {
			t.Errorf("nobody makes %s", name)
		}
	}
	if exprs < 10 {
		t.Errorf("%d metrics in rules", exprs)
	}
	tests, err := os.ReadFile(rulesTestsFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(string(text), -1) {
		if n := strings.Count(string(tests), "alertname: "+m[1]); n < 2 {
			t.Errorf("%s is tested %d times: when it fires, and when it does not", m[1], n)
		}
	}
}

// docs/agent.md has each metric, and no other.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../../docs/agent.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for _, name := range regexp.MustCompile(`\bgpumemtrace_[a-z_]+\b`).FindAllString(string(text), -1) {
		told[name] = true
	}
	known := names(t)
	for name := range known {
		if strings.HasPrefix(name, namespace) && !told[name] {
			t.Errorf("docs/agent.md lacks %s", name)
		}
	}
	for name := range told {
		if !known[name] {
			t.Errorf("docs/agent.md has %s, which nobody makes", name)
		}
	}
}

// The dashboard can be imported, and each of its panels asks for what there is.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	type panel struct {
		ID      int
		Title   string
		Type    string
		GridPos struct{ H, W, X, Y int }
		Targets []struct{ Expr, RefID string }
	}
	var board struct {
		UID, Title    string
		SchemaVersion int
		Inputs        []struct{ Name, Type, PluginID string } `json:"__inputs"`
		Panels        []panel
		Templating    struct {
			List []struct{ Name, Query string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	if board.UID == "" || board.Title == "" || board.SchemaVersion < 36 || len(board.Panels) < 8 || len(board.Inputs) != 1 {
		t.Fatalf("%+v", board)
	}
	known := names(t)
	ids := map[int]bool{}
	variables := strings.NewReplacer("$__range", "1h", "$__rate_interval", "5m", "$instance", ".*", "$job", ".*")
	var exprs []map[string]string
	for _, p := range board.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.W == 0 || p.GridPos.H == 0 || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %+v", p)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s asks for nothing", p.Title)
		}
		for _, x := range p.Targets {
			if len(metricName.FindAllString(x.Expr, -1)) == 0 {
				t.Errorf("%s asks for no metric: %q", p.Title, x.Expr)
			}
			exprs = append(exprs, map[string]string{"record": "panel", "expr": variables.Replace(x.Expr)})
			for _, name := range missing(known, x.Expr) {
				t.Errorf("%s: nobody makes %s", p.Title, name)
			}
		}
	}
	file := filepath.Join(t.TempDir(), "panels.yml")
	rules, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": exprs}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, rules, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "", "check", "rules", "--lint=none", file)
	for _, v := range board.Templating.List {
		for _, name := range missing(known, v.Query) {
			t.Errorf("variable %s: nobody makes %s", v.Name, name)
		}
	}
}
