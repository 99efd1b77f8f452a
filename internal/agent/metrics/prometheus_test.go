package metrics

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// promtool is Prometheus's own judge of what it is given.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	cmd := exec.Command("promtool", args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil || bytes.Contains(out, []byte("metric names should")) {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Prometheus's tool finds nothing to say of what is served, of a real program and of a
// hostile one.
func TestPromtoolMetrics(t *testing.T) {
	promtool(t, scrape(t, New(Options{Source: played(t, 10*time.Second), PerProcess: 10, BPF: func() probes.RunTime { return probes.RunTime{Measured: time.Second} }})), "check", "metrics")
	promtool(t, scrape(t, New(Options{Source: hostile(), PerProcess: 10})), "check", "metrics")
}

// A Prometheus that scrapes the metrics of a real program answers what a snapshot shows.
func TestPrometheusScrapes(t *testing.T) {
	s := played(t, 10*time.Second)
	server := httptest.NewServer(New(Options{Source: s, PerProcess: 10}).Handler())
	defer server.Close()
	dir := t.TempDir()
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`{"global":{"scrape_interval":"1s","evaluation_interval":"1s"},"rule_files":[%q],
		"scrape_configs":[{"job_name":"gpumemtrace","metrics_path":"/","static_configs":[{"targets":[%q]}]}]}`, rules, strings.TrimPrefix(server.URL, "http://"))
	if err := os.WriteFile(filepath.Join(dir, "prometheus.yml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s", log.Bytes())
		}
	}()
	var want, held int64
	totals := s.View(state.Want{Totals: true}).Totals()
	for _, g := range totals.Groups {
		want += g.LiveBytes
	}
	for _, a := range totals.Accounts {
		held += a.Total
	}
	for _, q := range []struct {
		query string
		want  float64
	}{
		{"sum(gpumemtrace_live_bytes)", float64(want)},
		{`count(gpumemtrace_build_info{job="gpumemtrace"})`, 1},
		{"sum(gpumemtrace:live_bytes:gpu)", float64(held)},
	} {
		got, err := ask(ctx, address, q.query)
		for ; ctx.Err() == nil && (err != nil || got != q.want); got, err = ask(ctx, address, q.query) {
			time.Sleep(100 * time.Millisecond)
		}
		if err != nil || got != q.want {
			t.Errorf("%s is %v, want %v: %v", q.query, got, q.want, err)
		}
	}
}

// ask asks a Prometheus for one number.
func ask(ctx context.Context, address, query string) (float64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/api/v1/query?query="+url.QueryEscape(query), nil)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	var answer struct {
		Data struct {
			Result []struct {
				Value [2]any `json:"value"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || len(answer.Data.Result) != 1 {
		return 0, fmt.Errorf("%s: %w", body, err)
	}
	text, _ := answer.Data.Result[0].Value[1].(string)
	return strconv.ParseFloat(text, 64)
}
