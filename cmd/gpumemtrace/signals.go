package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"sync"
	"syscall"

	"github.com/gpumemtrace/gpumemtrace/internal/source/removal"
)

// signals are those by which the user ends or asks a running trace.
type signals struct {
	stop chan syscall.Signal // the first SIGINT, SIGTERM or SIGHUP
	now  chan struct{}       // each writeNow: write a numbered file
}

// watchSignals listens from now on, also while the trace starts or its result
// is written: a second SIGINT or SIGTERM gives the result up, and ends the program
// as soon as its probes are off. A terminal that goes away sends several SIGHUP,
// and some service managers one right after SIGTERM, so no SIGHUP is a second
// one. Under nohup there is none. A reader of our output that goes away ends
// nothing: writing to it fails.
func watchSignals() signals {
	s := signals{stop: make(chan syscall.Signal, 1), now: make(chan struct{}, 8)}
	received := make(chan os.Signal, 8)
	signal.Notify(received, syscall.SIGINT, syscall.SIGTERM, writeNow, syscall.SIGPIPE)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(received, syscall.SIGHUP)
	}
	go s.relay(received)
	return s
}

func (s signals) relay(received <-chan os.Signal) {
	stopping, again := false, false
	for {
		sig := (<-received).(syscall.Signal)
		switch sig {
		case syscall.SIGPIPE:
			continue
		case writeNow:
			select {
			case s.now <- struct{}{}:
			default: // enough of them wait
			}
			continue
		case syscall.SIGINT, syscall.SIGTERM:
			if again {
				insist(sig)
			}
			again = true
		}
		if !stopping {
			stopping = true
			s.stop <- sig
		}
	}
}

// insist ends the program because of a signal, as soon as its probes are off. It returns
// at once.
func insist(sig syscall.Signal) {
	if removal.Idle() {
		fmt.Fprintln(os.Stderr, "gpumemtrace: quitting at once")
	} else {
		fmt.Fprintf(os.Stderr, "gpumemtrace: will quit as soon as the %d probes that are still on have been removed; otherwise they would stay in other programs as breakpoints\n", removal.On())
	}
	go insisted.Do(func() {
		removal.Watch(func(text string) { fmt.Fprintln(os.Stderr, "gpumemtrace: "+text) })
		exit(128 + int(sig))
	})
}

var insisted sync.Once

// endOnSignal has the first signal that ends programs end this one. It is for commands
// which probe and have no result that they could write early.
func endOnSignal() {
	received := make(chan os.Signal, 8)
	signal.Notify(received, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		for sig := range received {
			insist(sig.(syscall.Signal))
		}
	}()
}

// dumpOnSignal has SIGQUIT and SIGABRT, which a terminal and systemd's watchdog send, do
// what Go's runtime does, and let the probes come off.
func dumpOnSignal() {
	received := make(chan os.Signal, 8)
	signal.Notify(received, syscall.SIGQUIT, syscall.SIGABRT)
	go func() {
		for sig := range received {
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2) // nobody is left to read it
			insist(sig.(syscall.Signal))
		}
	}()
}

var exiting sync.Mutex

// exit ends the program once no probe is on. It does not return, whoever else called it:
// what first did decides on the code.
func exit(code int) {
	exiting.Lock()
	if err := removal.All(); err != nil {
		fmt.Fprintf(os.Stderr, "gpumemtrace: %v; gpumemtrace doctor finds breakpoints that are left behind\n", err)
	}
	os.Exit(code)
}
