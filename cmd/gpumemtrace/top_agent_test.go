package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/alert"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/leaks"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/server"
	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/livetest"
)

// A shown is a state that a server shows.
type shown struct {
	mu    sync.Mutex
	state *state.State
}

func (s *shown) View(w state.Want) *state.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state.View(w)
}

func (s *shown) Totals() *state.Totals { return s.View(state.Want{Totals: true}).Totals() }

func (s *shown) Done() <-chan struct{} { return nil }

// agentOf serves what a recording shows at a moment, and returns its address.
func agentOf(t *testing.T, name string, o server.Options, at replay.Options) string {
	t.Helper()
	s, err := replay.Play(recordings+name+".gmt", at)
	if err != nil {
		t.Fatal(err)
	}
	o.Source, o.Address, o.Insecure = &shown{state: s}, "localhost:0", o.WebConfig == ""
	begun := make(chan struct{})
	close(begun)
	o.Begun, o.Metrics = begun, http.NotFoundHandler()
	o.Ready, o.Healthy = func() error { return nil }, func() error { return nil }
	o.NotSeen, o.Alerts, o.Leaks = func() []string { return nil }, func() []alert.Alert { return nil }, func() []leaks.Leak { return nil }
	o.Recording = func() (string, time.Time) { return "", time.Time{} }
	o.Labels = func(*snapshot.Process) map[string]string { return nil }
	o.Warn = func(text string) { t.Log(text) }
	srv, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return "http://" + srv.Addresses()[0]
}

// top shows an agent as it shows a trace: a page, a document, the view with a stack's live
// allocations.
func TestTopAgent(t *testing.T) {
	url := agentOf(t, "torch_native", server.Options{}, replay.Options{At: 8e9})
	v := command(t, "top", "--agent", url, "--once", "--interval", "100ms").start().ends(0)
	if out := v.stdout.String(); !strings.Contains(out, "GPU 0") || !strings.Contains(out, " module.py:1097\n") {
		t.Error(out)
	}
	v = command(t, "top", "--agent", url, "--once", "--json", "--top", "3", "--interval", "100ms").start().ends(0)
	if d := livetest.Read[live.Now](t, v.stdout.String()); len(d.Now.Stacks) != 3 || d.Now.Total.Held == 0 {
		t.Error(v.stdout.String())
	}
	x := inTerminal(t, 160, 45, nil, "--agent", url, "--interval", "200ms")
	x.shows("live", "python3", "cuMemAlloc_v2", "q quit")
	x.press("/", "cuMemAlloc", "Enter")
	x.shows("filter: cuMemAlloc")
	x.press("Tab", "Tab", "Enter")
	x.shows("› stack", "FRAME", "live allocations as of")
	x.press("q")
	x.shows("exit code 0")
}

// An agent's password is in a file, and an agent is no target.
func TestTopAgentRefuses(t *testing.T) {
	dir := t.TempDir()
	hash, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	right, wrong, web := filepath.Join(dir, "right"), filepath.Join(dir, "wrong"), filepath.Join(dir, "web.yml")
	for path, text := range map[string]string{right: "ada:secret\n", wrong: "ada:other\n", web: "basic_auth_users: {ada: " + string(hash) + "}"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	url := agentOf(t, "torch_native", server.Options{WebConfig: web}, replay.Options{At: replay.End})
	once := []string{"top", "--agent", url, "--once", "--json", "--interval", "100ms"}
	command(t, append(once, "--password-file", right)...).start().ends(0)
	command(t, append(once, "--password-file", wrong)...).start().ends(exitFailed).says("it has another user or password")
	command(t, once...).start().ends(exitFailed).says("give --password-file")
	command(t, append(once, "--password-file", filepath.Join(dir, "none"))...).start().ends(exitFailed).says("no such file")
	for _, args := range [][]string{{"-a"}, {"-p", "1"}, {"--tensors"}, {"--record", "x.gmt"}, {"--at", "5s"}, {"run.gmt"}} {
		command(t, append(once, args...)...).start().ends(exitUsage)
	}
	command(t, "top", "--agent", "http://192.0.2.1:9844", "--password-file", right, "--once").start().ends(exitUsage).says("use https")
	command(t, "top", "--agent", "nowhere", "--once").start().ends(exitUsage).says("is no address of an agent")
}

// An agent that traces is shown as a trace is, to a stack's live allocations; what it sees
// is a profile for go tool pprof; and when it ends the view says so.
func TestTopOfRunningAgent(t *testing.T) {
	p := training(t)
	at := filepath.Join(t.TempDir(), "run", "agent.sock")
	v, _ := agentRuns(t, nil, "--socket", at)
	x := inTerminal(t, 160, 45, nil, "--agent", at, "--interval", "200ms")
	x.shows("live", pid(p), "train", "tensor_empty")
	x.press("/", "log_metrics", "Enter")
	x.shows("filter: log_metrics")
	x.press("Tab", "Tab", "Enter")
	x.shows("› stack", "FRAME", "train_step", "live allocations as of", "2097152")
	profile := filepath.Join(t.TempDir(), "x.pb.gz")
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", at)
	}}}
	answer, err := client.Get("http://localhost/debug/pprof/gpumem?seconds=1&pid=" + pid(p))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status, err)
	}
	if err := os.WriteFile(profile, b, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "tool", "pprof", "-top", "-sample_index=alloc_space", profile).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "Type: alloc_space") || !strings.Contains(string(out), "train_step") {
		t.Errorf("%v: %s", err, out)
	}
	v.signal(syscall.SIGTERM)
	v.ends(exitDone)
	x.shows("cannot be asked")
	x.press("q")
	x.shows("exit code 0")
}
