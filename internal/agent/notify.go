package agent

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/clock"
)

// A notifier tells a service manager how it goes, as sd_notify(3) has it. A nil one tells
// nobody. It is these few lines, and no dependency.
type notifier struct {
	to *net.UnixConn
	// watchdog is how often the manager must hear that all goes on, 0 for never.
	watchdog time.Duration
}

// newNotifier returns the notifier that the environment asks for, nil for none.
func newNotifier(environment func(string) (string, bool)) (*notifier, error) {
	path, _ := environment("NOTIFY_SOCKET")
	if path == "" {
		return nil, nil
	}
	if path[0] == '@' { // an abstract socket
		path = "\x00" + path[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return nil, fmt.Errorf("reach the service manager: %w", err)
	}
	n := &notifier{to: c}
	interval, _ := environment("WATCHDOG_USEC")
	if us, err := strconv.ParseInt(interval, 10, 64); err == nil && us > 0 && us < int64(24*time.Hour/time.Microsecond) {
		if pid, ok := environment("WATCHDOG_PID"); !ok || pid == strconv.Itoa(os.Getpid()) {
			n.watchdog = time.Duration(us) * time.Microsecond
		}
	}
	return n, nil
}

// tell sends assignments. Nobody who must hear it may be there: that is no matter.
func (n *notifier) tell(assignments ...string) {
	if n == nil {
		return
	}
	_ = n.to.SetWriteDeadline(time.Now().Add(time.Second))
	_, _ = n.to.Write([]byte(strings.Join(assignments, "\n")))
}

func (n *notifier) ready()    { n.tell("READY=1") }
func (n *notifier) stopping() { n.tell("STOPPING=1", "STATUS=Stopping") }
func (n *notifier) alive()    { n.tell("WATCHDOG=1") }
func (n *notifier) reloading() {
	n.tell("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", clock.Monotonic().Microseconds()))
}

// status is one line for people.
func (n *notifier) status(text string) {
	n.tell("STATUS=" + strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, text))
}

// interval is how often alive is due, 0 for never: twice as often as it must be.
func (n *notifier) interval() time.Duration {
	if n == nil {
		return 0
	}
	return n.watchdog / 2
}

func (n *notifier) close() {
	if n != nil {
		n.to.Close()
	}
}
