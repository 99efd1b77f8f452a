package agent

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A manager hears what the agent reports.
type manager struct {
	*testing.T
	conn *net.UnixConn
}

func newManager(t *testing.T, path string) *manager {
	t.Helper()
	name := path
	if name[0] == '@' {
		name = "\x00" + name[1:]
	}
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return &manager{t, c}
}

// hears returns what comes within a while, "" for nothing.
func (m *manager) hears(d time.Duration) string {
	m.Helper()
	b := make([]byte, 4096)
	m.conn.SetReadDeadline(time.Now().Add(d))
	n, err := m.conn.Read(b)
	if err != nil && !os.IsTimeout(err) {
		m.Fatal(err)
	}
	return string(b[:n])
}

func TestNotify(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "notify"), "@gpumemtrace-test-" + strconv.Itoa(os.Getpid())} {
		m := newManager(t, path)
		n, err := newNotifier()
		if err != nil {
			t.Fatal(err)
		}
		n.ready()
		n.reloading()
		n.status("two\nREADY=1\x00lines")
		n.stopping()
		for _, want := range []string{"STATUS=Starting", "READY=1", "RELOADING=1\nMONOTONIC_USEC=", "STATUS=two READY=1 lines", "STOPPING=1\n"} {
			if got := m.hears(5 * time.Minute); !strings.HasPrefix(got, want) {
				t.Errorf("%q, want %q", got, want)
			}
		}
	}
	t.Setenv("NOTIFY_SOCKET", "")
	if n, err := newNotifier(); n != nil || err != nil {
		t.Errorf("%v, %v", n, err)
	}
	var none *notifier
	none.ready() // tells nobody
	t.Setenv("NOTIFY_SOCKET", "/nowhere/at/all")
	if _, err := newNotifier(); err == nil {
		t.Error("there is no manager")
	}
}

// The manager hears that the agent is alive as long as events are taken, and not a
// timer's word for it.
func TestWatchdog(t *testing.T) {
	m := newManager(t, filepath.Join(t.TempDir(), "notify"))
	t.Setenv("WATCHDOG_USEC", "40000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()+1))
	if n, err := newNotifier(); err != nil || n.interval() != 0 {
		t.Errorf("another's watchdog: %v, %v", n.interval(), err)
	}
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	n, err := newNotifier()
	if err != nil || n.interval() != 20*time.Millisecond {
		t.Fatalf("%v, %v", n.interval(), err)
	}
	for m.hears(30*time.Millisecond) != "" { // what newNotifier sent
	}
	var at atomic.Uint64
	var stands, hangs atomic.Bool
	blocked := make(chan struct{})
	defer close(blocked)
	seen := func() uint64 {
		if hangs.Load() {
			<-blocked
		}
		if stands.Load() {
			return at.Load()
		}
		return at.Add(1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	var p pulse
	go func() { defer close(ended); p.watch(ctx, n, seen) }()
	alive := func() bool { return m.hears(5*time.Minute) == "WATCHDOG=1" }
	quiet := func() {
		t.Helper()
		for end := time.Now().Add(5 * time.Minute); m.hears(200*time.Millisecond) != ""; { // ten intervals
			if time.Now().After(end) {
				t.Fatal("it is said to be alive")
			}
		}
	}
	if first, second := alive(), alive(); !first || !second {
		t.Error("it is alive, and nobody hears")
	}
	stands.Store(true) // events are read no more
	quiet()
	stands.Store(false)
	if first, second := alive(), alive(); !first || !second {
		t.Error("it is alive again, and nobody hears")
	}
	hangs.Store(true) // nobody gets the state any more
	quiet()
	cancel()
	<-ended
}
