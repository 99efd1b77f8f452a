package push

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// An agent that is killed again and again, whatever it does at the moment, loses nothing
// of what it had queued, and sends again only what it was sending when it was killed: the
// same to the byte.
func TestPusherKilled(t *testing.T) {
	if dir := os.Getenv("GPUMEMTRACE_TEST_PUSH"); dir != "" {
		pushOn(t, dir, os.Getenv("GPUMEMTRACE_TEST_URL"))
		return
	}
	const kills = 10
	var mu sync.Mutex
	requests := map[string]int{}    // how often each came
	identities := map[string]bool{} // of profiles, in different requests
	again := 0
	server := listening(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // killed while it sent
		}
		mu.Lock()
		defer mu.Unlock()
		requests[string(body)]++
		if requests[string(body)] > 1 {
			again++
		}
		accept(w, r)
	})
	dir := filepath.Join(t.TempDir(), "q")
	run := func(d time.Duration) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestPusherKilled$")
		cmd.Env = append(os.Environ(), "GPUMEMTRACE_TEST_PUSH="+dir, "GPUMEMTRACE_TEST_URL="+server.URL)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(d)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	for i := range kills {
		run(time.Duration(60+13*i) * time.Millisecond)
	}
	waits := 0
	for _, sub := range files(t, dir) {
		if sub != "lock" {
			waits += len(files(t, filepath.Join(dir, sub)))
		}
	}
	p, err := New(Options{Source: newWorld(), Queue: dir, Targets: []Target{{"pyroscope", server.URL}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Run(ctx); err != nil {
		t.Fatal(err)
	}
	lossless(t, p.Loss(), "push_retries")
	if st := p.Status()[0]; st.Queued != 0 || st.Bytes != 0 {
		t.Errorf("%+v", st)
	}
	mu.Lock() // what one that was killed had sent may still be taken
	defer mu.Unlock()
	for body := range requests {
		for _, series := range all(t, []byte(body), pushSeries) {
			id := string(all(t, all(t, series, pushSamples)[0], pushRawIdentity)[0])
			if identities[id] {
				t.Errorf("profile %s is in two requests", id)
			}
			identities[id] = true
		}
	}
	if len(requests) < kills || again > kills {
		t.Errorf("%d requests, %d came again", len(requests), again)
	}
	t.Logf("%d requests, %d came again, %d waited at the end", len(requests), again, waits)
}

// pushOn pushes without a pause, until it is killed.
func pushOn(t *testing.T, dir, url string) {
	w := newWorld()
	a := w.start(7, "train")
	p, err := New(Options{Source: w, Queue: dir, Targets: []Target{{"pyroscope", url}}})
	if err != nil {
		t.Fatal(err)
	}
	go p.targets[0].run(t.Context())
	for {
		w.alloc(a, 1000)
		w.pass(time.Second)
		p.push()
	}
}
