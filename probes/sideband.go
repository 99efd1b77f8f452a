package probes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/elastic/go-perf"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A sideband reports the new executable mappings of every process, by a dummy software event on each CPU.
// It needs no tracefs: perf_event_open(2), PERF_COUNT_SW_DUMMY.
type sideband struct {
	events []*perf.Event
	epoll  int
	stop   int // eventfd
	halted atomic.Bool
}

// A mapping is one new executable file mapping.
type mapping struct {
	proc.Mapping
	pid  int
	time time.Duration // CLOCK_MONOTONIC
}

// ringPages bounds each CPU's buffer: 128 KiB hold some eight hundred mappings.
const ringPages = 32

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
	attr := &perf.Attr{
		Options:      perf.Options{Mmap: true, Mmap2: true, SampleIDAll: true, UseClockID: true},
		SampleFormat: perf.SampleFormat{Time: true},
		ClockID:      unix.CLOCK_MONOTONIC,
	}
	if err := perf.Dummy.Configure(attr); err != nil {
		return nil, fmt.Errorf("watch mappings: %w", err)
	}
	attr.SetWakeupWatermark(1)
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		cpus = runtime.NumCPU() // /sys is not mounted
	}
	for cpu := range cpus {
		ev, err := perf.Open(attr, perf.AllThreads, cpu, nil)
		if errors.Is(err, unix.ENODEV) {
			continue // offline
		}
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
	if len(s.events) == 0 {
		return nil, errors.New("watch mappings: every CPU is offline")
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

// A wakeup costs a tenth of a millisecond, most of it in the Go runtime. On a machine that starts hundreds of
// programs a second, a wakeup for each mapping is several percent of a core. So after restless wakeups in a
// row without a library to probe, each less than calm after the one before, mappings wait for rest, to be
// read together. A ring holds many times more, and a CUDA program needs longer from the mapping of the
// driver to its first call.
const (
	restless = 32
	calm     = 30 * time.Millisecond
	rest     = 20 * time.Millisecond
)

// run calls f for every new executable mapping until halt. f returns whether it is of a library to probe. run
// calls lost with the number of mappings that the kernel could not report.
func (s *sideband) run(f func(mapping) (library bool), lost func(uint64)) {
	ready := make([]unix.EpollEvent, 64)
	var last time.Time
	row := 0
	for {
		if row >= restless {
			time.Sleep(rest)
		}
		n, err := unix.EpollWait(s.epoll, ready, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		now := time.Now()
		if row++; now.Sub(last) >= calm {
			row = 0
		}
		last = now
		for _, r := range ready[:n] {
			if r.Fd < 0 {
				return
			}
			if s.drain(s.events[r.Fd], f, lost) {
				row = 0
			}
		}
	}
}

// drain reads one ring, and reports whether there was a library to probe.
func (s *sideband) drain(ev *perf.Event, f func(mapping) bool, lost func(uint64)) (library bool) {
	var raw perf.RawRecord
	for ev.HasRecord() && !s.halted.Load() {
		if err := ev.ReadRawRecord(context.Background(), &raw); err != nil {
			lost(1)
			return library
		}
		var m perf.Mmap2Record
		var l perf.LostRecord
		switch {
		case raw.Header.Type == perf.RecordTypeMmap2 && m.DecodeFrom(&raw, ev) == nil && len(raw.Data) >= 8:
			library = f(mapping{pid: int(m.Pid), time: recordTime(&raw), Mapping: proc.Mapping{
				Start: m.Addr, End: m.Addr + m.Len, Offset: m.PageOffset, Path: m.Filename,
				File: proc.FileID{Dev: unix.Mkdev(m.MajorID, m.MinorID), Ino: m.Inode},
			}}) || library
		case raw.Header.Type == perf.RecordTypeLost && l.DecodeFrom(&raw, ev) == nil:
			lost(l.Lost)
		}
	}
	return library
}

// recordTime returns the time of a record. It is the record's sample_id, at its end (perf_event_open(2)). The
// perf package expects it right after the path, and does not skip padding.
func recordTime(raw *perf.RawRecord) time.Duration {
	return time.Duration(binary.NativeEndian.Uint64(raw.Data[len(raw.Data)-8:]))
}

// halt makes run return.
func (s *sideband) halt() {
	s.halted.Store(true)
	_, _ = unix.Write(s.stop, []byte{1, 0, 0, 0, 0, 0, 0, 0})
}

// close releases everything; run must have returned.
func (s *sideband) close() {
	for _, ev := range s.events {
		ev.Close()
	}
	unix.Close(s.stop)
	unix.Close(s.epoll)
}
