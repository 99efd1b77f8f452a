package server

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

const (
	// maxQuery bounds the parameters of a request, in bytes.
	maxQuery = 1 << 10
	// maxWindow bounds ?seconds.
	maxWindow = time.Hour
	// maxStacks bounds ?stacks.
	maxStacks = 10_000
)

// A badRequest says what is wrong with a request.
type badRequest string

func (b badRequest) Error() string { return string(b) }

// params are the parameters of a request. The endpoint knows all of them.
type params map[string]string

// paramsOf returns a request's parameters. It refuses a parameter that is unknown, empty or
// there twice.
func paramsOf(r *http.Request, known ...string) (params, error) {
	if len(r.URL.RawQuery) > maxQuery {
		return nil, badRequest("the parameters are too long")
	}
	all, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest("the parameters cannot be read")
	}
	out := params{}
	for name, values := range all {
		switch {
		case !slices.Contains(known, name) && len(known) == 0:
			return nil, badRequest("there are no parameters here")
		case !slices.Contains(known, name):
			return nil, badRequest("the parameters here are " + strings.Join(known, ", "))
		case len(values) != 1 || values[0] == "":
			return nil, badRequest("give " + name + " one value")
		}
		out[name] = values[0]
	}
	return out, nil
}

// number returns a parameter that must be a whole number in a range. Without the parameter it
// returns otherwise.
func (p params) number(name string, low, high, otherwise int) (int, error) {
	text, ok := p[name]
	if !ok {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high || strconv.Itoa(n) != text {
		return 0, badRequest(fmt.Sprintf("%s must be a number from %d to %d", name, low, high))
	}
	return n, nil
}

// A filter selects a part of a snapshot. The zero value selects all.
type filter struct {
	pid int    // 0 for all
	gpu string // "" for all
}

var gpuLabel = regexp.MustCompile(`^[0-9A-Za-z:._/-]{1,64}$`)

func (p params) filter() (f filter, err error) {
	if f.gpu = p["gpu"]; f.gpu != "" && !gpuLabel.MatchString(f.gpu) {
		return f, badRequest("gpu is a GPU's label, such as 0")
	}
	f.pid, err = p.number("pid", 1, 1<<31-1, 0)
	return f, err
}

func (f filter) String() string { return strconv.Itoa(f.pid) + " " + f.gpu }

func (f filter) has(l *snapshot.Labels) bool {
	return (f.pid == 0 || l.PID == f.pid) && (f.gpu == "" || l.GPU == f.gpu)
}

// errNothing means that the requested thing does not exist.
type errNothing string

func (e errNothing) Error() string { return string(e) }

// of returns the selected part of s, or an errNothing if s has no such process or GPU.
func (f filter) of(s *snapshot.Snapshot) (*snapshot.Snapshot, error) {
	if f == (filter{}) {
		return s, nil
	}
	out := *s
	out.Samples, out.Processes, out.Allocators, out.Windowed = nil, nil, nil, nil
	pid, gpu := f.pid == 0, f.gpu == ""
	for i := range s.Samples {
		l := &s.Samples[i].Labels
		pid, gpu = pid || l.PID == f.pid, gpu || l.GPU == f.gpu
		if f.has(l) {
			out.Samples = append(out.Samples, s.Samples[i])
		}
	}
	for i := range s.Processes {
		if f.pid == 0 || s.Processes[i].PID == f.pid {
			pid = true
			out.Processes = append(out.Processes, s.Processes[i])
		}
	}
	for i := range s.Allocators {
		if a := &s.Allocators[i]; f.has(&snapshot.Labels{PID: a.PID, GPU: a.GPU}) {
			out.Allocators = append(out.Allocators, *a)
		}
	}
	for i := range s.Windowed {
		if x := &s.Windowed[i]; f.has(&snapshot.Labels{PID: x.PID, GPU: x.GPU}) {
			out.Windowed = append(out.Windowed, *x)
		}
	}
	for i := range s.GPUs {
		gpu = gpu || s.GPUs[i].GPU == f.gpu
	}
	switch {
	case !pid:
		return nil, errNothing(fmt.Sprintf("process %d is not traced", f.pid))
	case !gpu:
		return nil, errNothing("no GPU is called " + f.gpu)
	}
	return &out, nil
}
