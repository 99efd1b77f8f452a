package unwind

import (
	"os"
	"testing"

	"github.com/cilium/ebpf"
)

// Who asks while copies are being unwound waits for those that came meanwhile, too: what
// others asked before says nothing of these.
func TestCopiesAskedMeanwhile(t *testing.T) {
	ring, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.RingBuf, MaxEntries: uint32(os.Getpagesize())})
	if err != nil {
		t.Fatal(err)
	}
	defer ring.Close()
	begun, end := make(chan struct{}), make(chan struct{})
	var c copies
	if err := c.start(ring, func([][]byte) { begun <- struct{}{}; <-end }); err != nil {
		t.Fatal(err)
	}
	first := c.request()
	<-begun
	second, third := c.request(), c.request()
	end <- struct{}{}
	<-begun // what came meanwhile, and what came before if the reader had not seen first yet
	for _, asked := range []<-chan struct{}{second, third} {
		select {
		case <-asked:
			t.Error("told before what came meanwhile is unwound")
		default:
		}
	}
	end <- struct{}{}
	for _, asked := range []<-chan struct{}{first, second, third} {
		<-asked
	}
	if err := c.reader.Close(); err != nil {
		t.Fatal(err)
	}
	close(end)
	for {
		select {
		case <-begun:
		case <-c.done:
			return
		}
	}
}
