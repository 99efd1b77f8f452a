package agent

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/gpumemtrace/gpumemtrace/internal/source/clock"
)

// A notifier reports the agent's state to the service manager (sd_notify(3)). A nil
// notifier reports nothing.
type notifier struct {
	// watchdog is the time within which the manager expects a sign of life, 0 for none.
	watchdog time.Duration
}

// newNotifier returns the notifier that the environment asks for, nil for none.
func newNotifier() (*notifier, error) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil, nil
	}
	if _, err := daemon.SdNotify(false, "STATUS=Starting"); err != nil {
		return nil, fmt.Errorf("reach the service manager: %w", err)
	}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("read the service manager's watchdog: %w", err)
	}
	return &notifier{watchdog}, nil
}

// send ignores errors: the agent goes on without its manager.
func (n *notifier) send(assignments ...string) {
	if n != nil {
		_, _ = daemon.SdNotify(false, strings.Join(assignments, "\n"))
	}
}

func (n *notifier) ready()    { n.send(daemon.SdNotifyReady) }
func (n *notifier) stopping() { n.send(daemon.SdNotifyStopping, "STATUS=Stopping") }
func (n *notifier) alive()    { n.send(daemon.SdNotifyWatchdog) }
func (n *notifier) reloading() {
	n.send(daemon.SdNotifyReloading, fmt.Sprintf("MONOTONIC_USEC=%d", clock.Monotonic().Microseconds()))
}

// status sends one line for people.
func (n *notifier) status(text string) {
	n.send("STATUS=" + strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, text))
}

// interval is the time from one sign of life to the next, 0 for none: half of what the
// manager allows.
func (n *notifier) interval() time.Duration {
	if n == nil {
		return 0
	}
	return n.watchdog / 2
}
