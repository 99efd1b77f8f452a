package server

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strconv"
	"time"
)

// ownProfiles are Go's profiles of this process, except those over a time. They are served here
// and not by net/http/pprof, which can also compare profiles and makes the program 150 KB larger.
var ownProfiles = []string{"allocs", "block", "goroutine", "heap", "mutex", "threadcreate"}

// ownWindow bounds the time of one of Go's profiles.
const ownWindow = 5 * time.Minute

// ownProfile serves one of ownProfiles: with ?debug=1 as text, with ?gc=1 after a collection.
func ownProfile(name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if name == "heap" && r.FormValue("gc") == "1" {
			runtime.GC()
		}
		debug, _ := strconv.Atoi(r.FormValue("debug"))
		kind := "application/octet-stream"
		if debug > 0 {
			kind = "text/plain; charset=utf-8"
		}
		w.Header().Set("Content-Type", kind)
		_ = pprof.Lookup(name).WriteTo(w, debug) // the client is gone
	})
}

// ownProcessorProfile serves where processor time goes, for ?seconds=N, 30 if it is not given.
func ownProcessorProfile(w http.ResponseWriter, r *http.Request) {
	during(w, r, 30*time.Second, pprof.StartCPUProfile, pprof.StopCPUProfile)
}

// ownTrace serves a trace of execution, for ?seconds=N, 1 if it is not given.
func ownTrace(w http.ResponseWriter, r *http.Request) {
	during(w, r, time.Second, trace.Start, trace.Stop)
}

// during serves what start writes for a time, until the request ends.
func during(w http.ResponseWriter, r *http.Request, lasts time.Duration, start func(io.Writer) error, stop func()) {
	if n, err := strconv.ParseFloat(r.FormValue("seconds"), 64); err == nil && n > 0 && n <= ownWindow.Seconds() {
		lasts = time.Duration(n * float64(time.Second))
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	if err := start(w); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer stop()
	select {
	case <-time.After(lasts):
	case <-r.Context().Done():
	}
}

// waiting extends the deadlines for a handler that takes long by design.
func waiting(f http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), ownWindow)
		defer cancel()
		if err := takesTime(w, ownWindow); err == nil {
			f(w, r.WithContext(ctx))
		}
	})
}
