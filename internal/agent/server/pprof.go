package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
)

// profile answers with the memory of each stack, as a pprof profile or as text.
func (s *Server) profile(w http.ResponseWriter, r *http.Request) error {
	p, err := paramsOf(r, "pid", "gpu", "seconds", "debug")
	if err != nil {
		return err
	}
	f, err := p.filter()
	if err != nil {
		return err
	}
	seconds, err := p.number("seconds", 1, int(maxWindow/time.Second), 0)
	if err != nil {
		return err
	}
	debug, err := p.number("debug", 0, 1, 0)
	if err != nil {
		return err
	}
	after, look, name, err := s.window(w, r, time.Duration(seconds)*time.Second)
	if err != nil {
		return err
	}
	build := func() ([]byte, error) { return s.encodeProfile(look, f, after, debug == 1) }
	var body []byte
	if body, err = s.looks.of(r.Context(), after, fmt.Sprint("profile ", name, debug, " ", f), build); err != nil {
		return err
	}
	h := w.Header()
	if debug == 1 {
		h.Set("Content-Type", "text/plain; charset=utf-8")
	} else {
		h.Set("Content-Type", "application/octet-stream")
		h.Set("Content-Disposition", `attachment; filename="gpumem.pb.gz"`)
	}
	_, err = w.Write(body)
	return err
}

// window waits for a window of time, unless long is 0, and returns the snapshot at its end.
// look returns the snapshot to show, and the length of the window. name tells windows apart
// that end with the same snapshot.
func (s *Server) window(w http.ResponseWriter, r *http.Request, long time.Duration) (after *shot, look func() (*snapshot.Snapshot, time.Duration), name string, err error) {
	ctx := r.Context()
	if long == 0 {
		if after, err = s.looks.now(ctx); err != nil {
			return nil, nil, "", err
		}
		return after, func() (*snapshot.Snapshot, time.Duration) { return after.Snapshot.Snapshot, 0 }, "", nil
	}
	select {
	case s.windows <- struct{}{}:
		defer func() { <-s.windows }()
	default:
		return nil, nil, "", errBusy
	}
	if err := takesTime(w, long); err != nil {
		return nil, nil, "", err
	}
	first, err := s.looks.now(ctx)
	if err != nil {
		return nil, nil, "", err
	}
	was, since, name := turnovers(first.Snapshot), elapsed(first.Snapshot), fmt.Sprint("since ", first.begun.UnixNano(), " ")
	end := time.Now().Add(long)
	if err := s.sleep(ctx, long); err != nil {
		return nil, nil, "", err
	}
	if after, err = s.looks.since(ctx, end); err != nil {
		return nil, nil, "", err
	}
	return after, func() (*snapshot.Snapshot, time.Duration) {
		return between(was, after.Snapshot), elapsed(after.Snapshot).Sub(since)
	}, name, nil
}

// takesTime extends the deadlines of a request by more.
func takesTime(w http.ResponseWriter, more time.Duration) error {
	c := http.NewResponseController(w)
	// The end of the time for reading a request would cancel its context.
	return errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Now().Add(more+answerWithin)))
}

// sleep waits, unless the request or the server ends before.
func (s *Server) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.ending:
		return errEnding
	}
}

// elapsed returns the moment of a snapshot.
func elapsed(l *live.Snapshot) time.Time {
	m := &l.Snapshot.Meta
	return m.Start.Add(m.Duration)
}

// encodeProfile returns the selected part of a snapshot, as a profile or as text. A profile has
// the time of the snapshot. It has a duration only for a window, because readers take every
// profile with a duration for one.
func (s *Server) encodeProfile(look func() (*snapshot.Snapshot, time.Duration), f filter, at *shot, text bool) ([]byte, error) {
	all, long := look()
	part, err := f.of(all)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if text {
		err = export.Table(&b, part, export.Options{Top: -1, Width: 160})
		return b.Bytes(), err
	}
	p, err := pprof.Profile(part)
	if err != nil {
		return nil, err
	}
	s.label(p, part)
	p.TimeNanos, p.DurationNanos = elapsed(at.Snapshot).UnixNano(), long.Nanoseconds()
	err = p.Write(&b)
	return b.Bytes(), err
}

// label adds the labels of workloads to the samples of p. p is the profile of the snapshot of.
func (s *Server) label(p *profile.Profile, of *snapshot.Snapshot) {
	known := map[string]map[string]string{}
	for i := range of.Processes {
		x := &of.Processes[i]
		if pid := strconv.Itoa(x.PID); known[pid] == nil || !x.Exited {
			known[pid] = s.opts.Labels(x)
		}
	}
	only := "" // the process, if there is only one: then samples have no label for it
	if !of.Several() && len(of.Samples) > 0 {
		only = strconv.Itoa(of.Samples[0].PID)
	}
	for _, x := range p.Sample {
		pid := only
		if has := x.Label["pid"]; len(has) > 0 {
			pid = has[0]
		}
		for name, value := range known[pid] {
			if x.Label[name] == nil {
				x.Label[name] = []string{value}
			}
		}
	}
}
