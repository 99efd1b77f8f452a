package testcuda

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// What the kernel driver answers, as nvstatuscodes.h has it.
const (
	ok               = 0
	duplicateName    = 0x19
	invalidArgument  = 0x1f
	invalidClass     = 0x22
	invalidClient    = 0x23
	invalidParent    = 0x36
	invalidPointer   = 0x3d
	noMemory         = 0x51
	objectNotFound   = 0x57
	memoryParams     = "words params 0 0 0x1c101 0 0 0 0x11800000 0x100005 0 0 0 0 0:64 0:64 %s:64 0x200000:64 0:64"
	allocStatus      = 10 // the index of a word
	allocShortStatus = 7
)

// request makes a request on words, and returns them as the driver left them.
func request(t *testing.T, p *Process, nr, size int, words string) []uint32 {
	t.Helper()
	lines := run(t, p, "words r "+words, fmt.Sprintf("ioctl %d %d r", nr, size), "print r")
	var got []uint32
	for w := range strings.FieldsSeq(lines[0]) {
		n, err := strconv.ParseUint(w, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, uint32(n))
	}
	return got
}

func wantStatus(t *testing.T, what string, got, want uint32) {
	t.Helper()
	if got != want {
		t.Errorf("%s: status %#x, want %#x", what, got, want)
	}
}

func TestKernelDriverRequests(t *testing.T) {
	p := start(t, Workload, Options{})
	run(t, p, "raw cuInit 0", fmt.Sprintf(memoryParams, "4097"))

	memory := request(t, p, 0x2b, 48, "client device0 0 0x40 &params 0:64 128 0 -1")
	wantStatus(t, "memory", memory[allocStatus], ok)
	wantPhysical(t, p, "4097 bytes", 8192)
	if size := request(t, p, 0x2b, 48, "client device0 0x5c100000 0x40 &params 0:64 128 0 -1"); size[2] != 0x5c100000 || memory[2]>>20 != 0xcaf {
		t.Errorf("handles %#x and %#x, want one of the driver's and the one asked for", memory[2], size[2])
	}
	wantStatus(t, "the same again", request(t, p, 0x2b, 48, "client device0 0x5c100000 0x40 &params 0:64 128 0 -1")[allocStatus], duplicateName)
	if params := run(t, p, "print params"); strings.Fields(params[0])[16] != "8192" {
		t.Errorf("parameters %q, want the size rounded", params)
	}

	short := request(t, p, 0x2b, 32, "client device1 0x5c100001 0x40 &params 128 -1")
	wantStatus(t, "short", short[allocShortStatus], ok)
	if got := stats(t, p).Physical; got[0] != 16384 || got[1] != 8192 {
		t.Errorf("physical %d, want 16384 and 8192", got)
	}

	// Memory lives as long as one object of it, and NVML counts it once.
	dup := request(t, p, 0x34, 28, "client device0 0x5c100002 client 0x5c100000 0 -1")
	wantStatus(t, "dup", dup[6], ok)
	wantStatus(t, "free", request(t, p, 0x29, 16, "client device0 0x5c100000 -1")[3], ok)
	wantPhysical(t, p, "with a dup", 16384)
	wantStatus(t, "free", request(t, p, 0x29, 16, "client device0 0x5c100002 -1")[3], ok)
	wantPhysical(t, p, "without", 8192)
	wantStatus(t, "dup of another process's", request(t, p, 0x34, 28, "client device0 0 0xc1d12345 0x5c000001 0 -1")[6], ok)
	wantStatus(t, "dup of nothing", request(t, p, 0x34, 28, "client device0 0 client 0x5c7fffff 0 -1")[6], objectNotFound)

	heap := request(t, p, 0x4a, 184, "client device0 2 0 0 -1 0:64 0:64 0 0 0 0 0 0 0 0 0 0 0 0 2097152:64")
	wantStatus(t, "heap", heap[5], ok)
	wantPhysical(t, p, "heap", 8192+2*mib)
	free := fmt.Sprintf("client device0 3 0 0 -1 0:64 0:64 0 %d", heap[11])
	wantStatus(t, "heap free", request(t, p, 0x4a, 184, free)[5], ok)
	wantPhysical(t, p, "heap free", 8192)

	run(t, p, "words inner client device0 0x5c100003 0x40 &params 0:64 128 0 -1")
	request(t, p, 211, 16, "0x2b 48 &inner")
	wantPhysical(t, p, "wrapped", 16384)

	ids := request(t, p, 0x2a, 32, "client client 0x201 0 &ids 128 -1")
	wantStatus(t, "attached ids", ids[7], ok)
	run(t, p, "words id ids.1 0 99")
	wantStatus(t, "id info", request(t, p, 0x2a, 32, "client client 0x205 0 &id 32 -1")[7], ok)
	if id := run(t, p, "print id"); !strings.HasPrefix(id[0], "2816 0 1 ") { // 0000:0b:00.0 is instance 1
		t.Errorf("id info %q", id)
	}

	// A parent takes its children along, a client all.
	run(t, p, "words device 1")
	client := request(t, p, 0x2b, 48, "0 0 0 0x41 0:64 0:64 0 0 -1")[2]
	device := request(t, p, 0x2b, 48, fmt.Sprintf("%d %d 7 0x80 &device 0:64 56 0 -1", client, client))
	wantStatus(t, "device", device[allocStatus], ok)
	for range 2 {
		wantStatus(t, "below", request(t, p, 0x2b, 48, fmt.Sprintf("%d 7 8 0x40 &params 0:64 128 0 -1", client))[allocStatus], ok)
		if got := stats(t, p).Physical[1]; got != 16384 {
			t.Errorf("device 1 has %d bytes, want 16384", got)
		}
		request(t, p, 0x29, 16, fmt.Sprintf("%d %d 7 -1", client, client))
		if got := stats(t, p).Physical[1]; got != 8192 {
			t.Errorf("device 1 has %d bytes, want 8192", got)
		}
		wantStatus(t, "device", request(t, p, 0x2b, 48, fmt.Sprintf("%d %d 7 0x80 &device 0:64 56 0 -1", client, client))[allocStatus], ok)
	}
	free = fmt.Sprintf("%d %d %d -1", client, client, client)
	wantStatus(t, "client", request(t, p, 0x29, 16, free)[3], ok)
	wantStatus(t, "client twice", request(t, p, 0x29, 16, free)[3], invalidClient)

	run(t, p, "raw testcuda_close", "expect 9 ioctl 0x29 16 r") // EBADF
	if got := stats(t, p).Physical; got[0] != 0 || got[1] != 0 {
		t.Errorf("physical %d after the descriptor was closed", got)
	}
}

func TestKernelDriverRefuses(t *testing.T) {
	p := start(t, Workload, Options{})
	run(t, p, "raw cuInit 0", fmt.Sprintf(memoryParams, "4096"))
	for words, want := range map[string]uint32{
		"client device0 0 0x40 0:64 0:64 128 0 -1":          invalidPointer,
		"client device0 0 0x40 4096:64 0:64 128 0 -1":       invalidPointer,
		"client device0 0 0x7777 &params 0:64 128 0 -1":     invalidClass,
		"client 0x5cffffff 0 0x40 &params 0:64 128 0 -1":    invalidParent,
		"client client 0 0x40 &params 0:64 128 0 -1":        invalidParent,
		"0xc1dfffff device0 0 0x40 &params 0:64 128 0 -1":   invalidClient,
		"client client 0 0x80 0:64 0:64 56 0 -1":            invalidPointer,
		"client client 0 0x80 &params 0:64 56 0 -1":         ok,
		"client client 0 0x41 0:64 0:64 0 0 -1":             invalidClient,
		"0 0 client 0x41 0:64 0:64 0 0 -1":                  duplicateName,
		"client device0 device0 0x40 &params 0:64 128 0 -1": duplicateName,
	} {
		wantStatus(t, words, request(t, p, 0x2b, 48, words)[allocStatus], want)
	}
	for size, want := range map[string]uint32{"0": invalidArgument, "0x8000000000000000": noMemory, "0xffffffffffffffff": noMemory} {
		run(t, p, fmt.Sprintf(memoryParams, size))
		wantStatus(t, size, request(t, p, 0x2b, 48, "client device0 0 0x40 &params 0:64 128 0 -1")[allocStatus], want)
	}
	run(t, p, "expect 14 ioctl 0x2b 48 0", "expect 14 ioctl 0x2b 48 4096", "expect 14 ioctl 211 16 0", // EFAULT
		"expect 22 ioctl 0x2b 47 r", "expect 22 ioctl 0x2b 0 r", "expect 22 ioctl 0x99 48 r") // EINVAL
	if got := stats(t, p).Physical; got[0] != 0 || got[1] != 0 {
		t.Errorf("physical %d of requests that were refused", got)
	}
	for _, q := range []string{"words wrap 0x2b 0x7fffffff &r", "words wrap 211 16 &wrap"} {
		run(t, p, q, "expect 22 ioctl 211 16 wrap")
	}
}

func TestKernelDriverKeepsManyObjects(t *testing.T) {
	p := start(t, Workload, Options{})
	run(t, p, "raw cuInit 0", fmt.Sprintf(memoryParams, "4096"),
		"repeat 100000 { words r client device0 0x60000000+i 0x40 &params 0:64 128 0 -1; ioctl 0x2b 48 r }")
	wantPhysical(t, p, "100,000 objects", 100000*4096)
	run(t, p, "repeat 100000 { words r client device0 0x60000000+i; ioctl 0x29 16 r }")
	wantPhysical(t, p, "all freed", 0)
	// Two threads use each other's handles.
	run(t, p, "threads 2 repeat 1000 { "+fmt.Sprintf(memoryParams, "4096")+
		"; words r client device0 0x70000000 0x40 &params 0:64 128 0 -1; ioctl 0x2b 48 r; words f client device0 0x70000000; ioctl 0x29 16 f }")
	wantPhysical(t, p, "two threads", 0)
}

func TestGPUInstance(t *testing.T) {
	for env, want := range map[string]uint32{"": ok, "TESTCUDA_INSTANCE=3": duplicateName} {
		p := start(t, Workload, Options{Env: []string{env}})
		run(t, p, "raw cuInit 0", fmt.Sprintf(memoryParams, "4096"))
		// Without instances each device has two objects, and 0x5c000006 is free.
		wantStatus(t, env, request(t, p, 0x2b, 48, "client device0 0x5c000006 0x40 &params 0:64 128 0 -1")[allocStatus], want)
	}
}
