package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// signals are what the user tells a running trace.
type signals struct {
	stop chan syscall.Signal // the first SIGINT, SIGTERM or SIGHUP
	now  chan struct{}       // each SIGUSR1: write a numbered file
}

// watchSignals listens from now on, also while the trace starts or its result
// is written: a second SIGINT or SIGTERM ends the program at once, and the
// kernel takes the probes off. A terminal that goes away sends several SIGHUP,
// and some service managers one right after SIGTERM, so no SIGHUP is a second
// one. Under nohup there is none. A reader of our output that goes away ends
// nothing: writing to it fails.
func watchSignals() signals {
	s := signals{stop: make(chan syscall.Signal, 1), now: make(chan struct{}, 8)}
	received := make(chan os.Signal, 8)
	signal.Notify(received, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGPIPE)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(received, syscall.SIGHUP)
	}
	go s.relay(received)
	return s
}

func (s signals) relay(received <-chan os.Signal) {
	stopping, insisted := false, false
	for {
		sig := (<-received).(syscall.Signal)
		switch sig {
		case syscall.SIGPIPE:
			continue
		case syscall.SIGUSR1:
			select {
			case s.now <- struct{}{}:
			default: // enough of them wait
			}
			continue
		case syscall.SIGINT, syscall.SIGTERM:
			if insisted {
				fmt.Fprintln(os.Stderr, "gpumemtrace: quit at once")
				os.Exit(128 + int(sig))
			}
			insisted = true
		}
		if !stopping {
			stopping = true
			s.stop <- sig
		}
	}
}
