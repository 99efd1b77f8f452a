package heap

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

const threadsProgram = `
import json, os, threading, time, signal
n = [0] * 8
def count(i):
    while True:
        n[i] += 1
        threading.Thread(target=int).start()
got = []
signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
for i in range(8): threading.Thread(target=count, args=(i,), daemon=True).start()
print(json.dumps({"pid": os.getpid()}), flush=True)
while True:
    time.sleep(0.01)
    with open(os.environ["COUNTS"], "w") as f: f.write(f"{sum(n)} {len(got)}")
`

// A process that makes threads stops, and goes on where it was.
func TestPause(t *testing.T) {
	if _, err := exec.LookPath("/usr/bin/python3"); err != nil {
		skip(t, "no /usr/bin/python3")
	}
	p := start(t, "/usr/bin/python3", []string{"COUNTS=" + t.TempDir() + "/counts"}, "-c", threadsProgram)
	states := func() (stopped, running int) {
		for _, tid := range proc.Threads(p.pid) {
			state := threadState(t, p.pid, tid)
			switch state {
			case "t":
				stopped++
			case "", "X", "Z": // it ended
			default:
				running++
			}
		}
		return stopped, running
	}
	for range 5 {
		begin := time.Now()
		resume, err := pauseProcess(p.pid)
		if err != nil {
			if strings.Contains(err.Error(), "all the time") {
				continue
			}
			t.Fatal(err)
		}
		took := time.Since(begin)
		stopped, running := states()
		resume()
		if stopped < 9 || running != 0 {
			t.Errorf("%d threads stopped, %d not, after %v", stopped, running, took)
		}
		for end := time.Now().Add(5 * time.Minute); stopped != 0; stopped, _ = states() {
			if time.Now().After(end) {
				t.Fatalf("%d threads are still stopped", stopped)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// A process can be stopped after its first thread has ended.
func TestPauseFirstThreadEnded(t *testing.T) {
	if _, err := exec.LookPath("/usr/bin/python3"); err != nil {
		skip(t, "no /usr/bin/python3")
	}
	p := start(t, "/usr/bin/python3", nil, "-c", `
import ctypes, json, os, threading, time
def work():
    while not any(" Z " in l for l in open("/proc/self/stat")): time.sleep(0.01)
    print(json.dumps({"pid": os.getpid()}), flush=True)
    time.sleep(100)
threading.Thread(target=work).start()
ctypes.CDLL(None).pthread_exit(None)
`)
	resume, err := pauseProcess(p.pid)
	if err != nil {
		t.Fatal(err)
	}
	defer resume()
	threads := proc.Threads(p.pid)
	if state := threadState(t, p.pid, threads[len(threads)-1]); state != "t" {
		t.Errorf("its other thread is in state %s", state)
	}
}

// threadState returns the letter of proc_pid_stat(5), "" for a thread that ended.
func threadState(t *testing.T, pid, tid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", pid, tid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return rest[:1]
}

// A process whose tracer ends goes on.
func TestPauseEnds(t *testing.T) {
	if os.Getenv("GPUMEMTRACE_PAUSE") != "" { // the tracer
		pid, _ := strconv.Atoi(os.Getenv("GPUMEMTRACE_PAUSE"))
		if _, err := pauseProcess(pid); err != nil {
			t.Fatal(err)
		}
		if err := unix.Kill(os.Getpid(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	sleeper := exec.Command("sleep", "100")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer sleeper.Wait()
	defer sleeper.Process.Kill()
	tracer := exec.Command(os.Args[0], "-test.run", "^TestPauseEnds$")
	tracer.Env = append(os.Environ(), fmt.Sprint("GPUMEMTRACE_PAUSE=", sleeper.Process.Pid))
	if out, err := tracer.CombinedOutput(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("%v\n%s", err, out)
	}
	for range 30_000 {
		if threadState(t, sleeper.Process.Pid, sleeper.Process.Pid) == "S" {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("it is in state %s", threadState(t, sleeper.Process.Pid, sleeper.Process.Pid))
}
