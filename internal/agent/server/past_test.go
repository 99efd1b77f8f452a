package server

import (
	"html"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// What was held at the peak of the period, or at another moment of it, is on the page.
func TestPast(t *testing.T) {
	boot := time.Unix(1_700_000_000, 0).UTC()
	noteAt := func(s *Server, after time.Duration, owners map[string]int64, accounts ...snapshot.Account) {
		x := &state.Totals{Meta: snapshot.Meta{Start: boot, Duration: after}, Accounts: accounts, Processes: []snapshot.Process{
			{PID: 5001, Who: snapshot.Who{User: "ada", Namespace: "research", Pod: "train-0", Command: "python3 train.py"}}, {PID: 5002, Who: snapshot.Who{User: "bob"}},
		}}
		for owner, bytes := range owners {
			gpu := "cuda:0"
			if owner == "jax" {
				gpu = "cuda:1" // on which nobody holds memory later
			}
			x.Groups = append(x.Groups, state.GroupFigures{Group: state.Group{GPU: gpu, Kind: event.KindDevice, Owner: owner}, LiveBytes: bytes})
		}
		s.history.take(x)
	}
	h := begun()
	h.alloc(2*time.Second, 1, 1<<40, 1<<30)
	h.at(2 * time.Hour)
	file, since := "/var/lib/x.gmt", boot
	s := serve(t, Options{Source: h, Recording: func() (string, time.Time) { return file, since }}, func(s *Server) {
		noteAt(s, 20*time.Minute, map[string]int64{"pytorch": 70 << 30})
		noteAt(s, 100*time.Minute, map[string]int64{"pytorch": 5 << 30})
		noteAt(s, 110*time.Minute, map[string]int64{"pytorch": 8 << 30, "nccl": 1 << 30, "jax": 3 << 30},
			snapshot.Account{PID: 5001, Process: "train", GPU: "cuda:0", Total: 9 << 30}, snapshot.Account{PID: 5002, Process: "eval", GPU: "cuda:1", Total: 1 << 30},
			snapshot.Account{PID: 5001, Process: "train", GPU: "cuda:1", Total: 2 << 30})
		noteAt(s, 115*time.Minute+time.Millisecond/4, map[string]int64{"pytorch": 2 << 30})
	})
	const command = "gpumemtrace report /var/lib/x.gmt --by line --at "
	for query, want := range map[string][]string{
		"":                             {"Peak of all GPUs together in the last 30 min: 12.0 GiB at 00:03:20 UTC", `href="/?at=peak"`},
		"?minutes=120&gpu=cuda:0":      {"Peak of GPU cuda:0 in the last 2 h: 70.0 GiB at 2023-11-14 22:33:20 UTC", `href="/?at=peak&amp;gpu=cuda%3A0&amp;minutes=120"`},
		"?at=peak":                     {"At 00:03:20 UTC, the peak", "traced processes held 9.0 GiB", "nccl ", `GPU cuda:1</a>`, "traced processes held 3.0 GiB", "1.0 GiB", command + "2023-11-15T00:03:20Z<", `href="/"`, "train", "ada", "research/train-0", "python3 train.py", "11.0 GiB", "cuda:0, cuda:1"},
		"?at=peak&by=user":             {"by user", "ada 9.0 GiB", "bob 1.0 GiB", "ada <span class=\"quiet\">1 process", "11.0 GiB"},
		"?at=peak&by=pod&gpu=cuda:1":   {"by pod", "research/train-0 2.0 GiB", "no pod known 1.0 GiB"},
		"?at=peak-1s":                  {"The history has no figures of that moment."},
		"?at=00:04":                    {"At 00:03:20 UTC, the peak", "held 9.0 GiB"},
		"?at=-5m":                      {"At 00:08:20 UTC<"},
		"?at=2023-11-15T00:08:20.000Z": {"At 00:08:20 UTC<", "held 2.0 GiB", command + "2023-11-15T00:08:20.00025Z<"},
		"?at=22:00":                    {"That moment is not in the last 30 min."},
		"?at=10m30s":                   {"At 2023-11-14 23:53:20 UTC<", "held 5.0 GiB"},
		"?at=peak&pid=5002":            {"Peak of process 5002 in the last 30 min: 1.0 GiB", "eval (5002) 1.0 GiB", "other processes 2.0 GiB", "The history does not divide a process by owner."},
		"?at=peak-1s&pid=5002":         {"The history has no figures of that moment."},
		"?at=-5m&pid=5002":             {"The process held nothing then."},
	} {
		_, got, _ := strings.Cut(s.get(http.StatusOK, "/now"+query), "</header>")
		wants(t, query, strings.ReplaceAll(got, "<b>", ""), want...)
	}
	if got := s.get(http.StatusOK, "/now?at=peak&pid=5002"); strings.Contains(got, "nccl") || strings.Contains(got, "GPU cuda:0</a>") {
		t.Error("what others held is shown of one process")
	}
	if strings.Contains(s.get(http.StatusOK, "/now"), command) {
		t.Error("a command for no moment")
	}
	since = boot.Add(111 * time.Minute)
	if got := s.get(http.StatusOK, "/now?at=00:03:40"); strings.Contains(got, command) || !strings.Contains(got, "keeps the newest --record-max bytes, begins at 00:04:20 UTC") {
		t.Error("a command for a moment that the recording dropped")
	}
	since, file = boot, "/var/lib/it's.gmt"
	wants(t, "quoted", html.UnescapeString(s.get(http.StatusOK, "/now?at=-4m")), `gpumemtrace report '/var/lib/it'\''s.gmt' --by line --at 2023-`)
	file = ""
	wants(t, "without a recording", s.get(http.StatusOK, "/now?at=end"), "The history contains no stacks. With --record, the agent keeps them.")
	s.get(http.StatusBadRequest, "/?at=noon")
}
