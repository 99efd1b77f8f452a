package probes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
)

// Identify returns who has a PID now, as events name it: /proc does not tell apart two
// processes that had one PID within a hundredth of a second. The error is os.ErrNotExist
// if nobody has it.
func (t *Tracer) Identify(pid int) (event.Process, error) {
	id, err := t.identify(uint32(pid))
	if err != nil {
		err = fmt.Errorf("find out when process %d began: %w", pid, err)
	}
	return id, err
}

func (t *Tracer) identify(pid uint32) (event.Process, error) {
	iterator, err := tasks(t.coll.Programs[startsProgram], pid)
	if err != nil {
		return event.Process{}, err
	}
	defer iterator.Close()
	r, err := iterator.Open()
	if err != nil {
		return event.Process{}, err
	}
	defer r.Close()
	var s struct { // struct gm_start
		Start       uint64
		PID, Unused uint32
	}
	for {
		switch err := binary.Read(r, binary.NativeEndian, &s); {
		case errors.Is(err, io.EOF):
			return event.Process{}, os.ErrNotExist
		case err != nil:
			return event.Process{}, err
		case s.PID == pid:
			return process(s.PID, s.Start), nil
		}
	}
}

// tasks returns an iterator that runs a program on the process with a PID; before Linux
// 6.1, which does not look at that, on all of them.
func tasks(prog *ebpf.Program, pid uint32) (*link.Iter, error) {
	fd, err := linkCreate(unsafe.Pointer(&struct {
		prog, target, attachType, flags uint32
		info                            *uint32 // union bpf_iter_link_info: a thread's number
		size, _                         uint32
	}{
		prog: uint32(prog.FD()), attachType: uint32(ebpf.AttachTraceIter), info: &pid, size: uint32(unsafe.Sizeof(pid)),
	}), 32)
	runtime.KeepAlive(prog)
	if err != nil {
		return nil, err
	}
	l, err := link.NewFromFD(fd)
	if err != nil {
		return nil, err
	}
	return l.(*link.Iter), nil
}
