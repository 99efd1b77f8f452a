package unwind

import (
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// Nothing is idle while copies are being unwound that are no longer in the ring.
func TestCopiesIdle(t *testing.T) {
	ring, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(os.Getpagesize())})
	if err != nil {
		t.Fatal(err)
	}
	defer ring.Close()
	begun, end := make(chan struct{}), make(chan struct{})
	var c copies
	if err := c.start(ring, func([][]byte) {
		select {
		case begun <- struct{}{}:
		case <-end:
		}
		<-end
	}); err != nil {
		t.Fatal(err)
	}
	<-begun
	if c.idle() {
		t.Error("idle while a batch is being unwound")
	}
	close(end)
	for !c.idle() {
		time.Sleep(time.Millisecond)
	}
	if err := c.reader.Close(); err != nil {
		t.Fatal(err)
	}
	<-c.done
}
