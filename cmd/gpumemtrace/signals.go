package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// signals are what the user tells a running trace.
type signals struct {
	stop chan syscall.Signal // the first SIGINT or SIGTERM
	now  chan struct{}       // each SIGUSR1: write a numbered file
}

// watchSignals listens from now on, also while the trace starts or its result
// is written: a second SIGINT or SIGTERM ends the program at once, and the
// kernel takes the probes off.
func watchSignals() signals {
	s := signals{stop: make(chan syscall.Signal, 1), now: make(chan struct{}, 8)}
	received := make(chan os.Signal, 8)
	signal.Notify(received, syscall.SIGINT, syscall.SIGTERM, syscall.SIGUSR1)
	go s.relay(received)
	return s
}

func (s signals) relay(received <-chan os.Signal) {
	for stopping := false; ; {
		sig := (<-received).(syscall.Signal)
		switch {
		case sig == syscall.SIGUSR1:
			select {
			case s.now <- struct{}{}:
			default: // enough of them wait
			}
		case stopping:
			fmt.Fprintln(os.Stderr, "gpumemtrace: quit at once")
			os.Exit(128 + int(sig))
		default:
			stopping = true
			s.stop <- sig
		}
	}
}
