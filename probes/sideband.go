package probes

import (
	"context"
	"fmt"
	"os"
	"runtime"

	"github.com/elastic/go-perf"
	"golang.org/x/sys/unix"
)

// A sideband reports new executable mappings of every process. It is a dummy
// software event on each CPU, which needs no tracefs: perf_event_open(2),
// PERF_COUNT_SW_DUMMY.
type sideband struct {
	events []*perf.Event
	epoll  int
	stop   int // eventfd
}

// A mapping is one new executable file mapping.
type mapping struct {
	pid  int
	path string
}

// ringPages bounds each CPU's buffer: 32 KiB hold some two hundred mappings.
const ringPages = 8

func openSideband() (_ *sideband, err error) {
	s := &sideband{}
	if s.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("watch mappings: %w", err)
	}
	if s.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		unix.Close(s.epoll)
		return nil, fmt.Errorf("watch mappings: %w", err)
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := s.watch(s.stop, -1); err != nil {
		return nil, err
	}
	attr := &perf.Attr{Options: perf.Options{Mmap: true, Mmap2: true}}
	if err := perf.Dummy.Configure(attr); err != nil {
		return nil, fmt.Errorf("watch mappings: %w", err)
	}
	attr.SetWakeupWatermark(1)
	for cpu := range onlineCPUs() {
		ev, err := perf.Open(attr, perf.AllThreads, cpu, nil)
		if err != nil {
			return nil, fmt.Errorf("watch mappings on CPU %d: %w", cpu, err)
		}
		s.events = append(s.events, ev)
		if err := ev.MapRingNumPages(ringPages); err != nil {
			return nil, fmt.Errorf("watch mappings on CPU %d: %w", cpu, err)
		}
		fd, err := ev.FD()
		if err != nil {
			return nil, err
		}
		if err := s.watch(fd, len(s.events)-1); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *sideband) watch(fd, index int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(index)}
	if err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return fmt.Errorf("watch mappings: %w", err)
	}
	return nil
}

// onlineCPUs yields the CPUs that may run a task.
func onlineCPUs() map[int]bool {
	cpus := map[int]bool{}
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err == nil {
		for _, span := range splitList(string(text)) {
			for c := span[0]; c <= span[1] && c < 1<<16; c++ {
				cpus[c] = true
			}
		}
	}
	if len(cpus) == 0 {
		for c := range runtime.NumCPU() {
			cpus[c] = true
		}
	}
	return cpus
}

// run calls f for every new executable mapping until close. lost is called
// with the number of mappings that the kernel could not report.
func (s *sideband) run(f func(mapping), lost func(uint64)) {
	ready := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(s.epoll, ready, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		for _, r := range ready[:n] {
			if r.Fd < 0 {
				return
			}
			s.drain(s.events[r.Fd], f, lost)
		}
	}
}

func (s *sideband) drain(ev *perf.Event, f func(mapping), lost func(uint64)) {
	for ev.HasRecord() {
		rec, err := ev.ReadRecord(context.Background())
		if err != nil {
			lost(1)
			return
		}
		switch r := rec.(type) {
		case *perf.Mmap2Record:
			f(mapping{int(r.Pid), r.Filename})
		case *perf.LostRecord:
			lost(r.Lost)
		}
	}
}

// halt makes run return.
func (s *sideband) halt() { _, _ = unix.Write(s.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// close releases everything; run must have returned.
func (s *sideband) close() {
	for _, ev := range s.events {
		ev.Close()
	}
	unix.Close(s.stop)
	unix.Close(s.epoll)
}
