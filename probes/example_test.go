package probes_test

import (
	"context"
	"fmt"
	"log"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

type printer struct{}

func (printer) Event(e *probes.Event) {
	if e.Op == probes.OpAlloc {
		fmt.Printf("%s: %d bytes of %s memory\n", probes.Entries[e.API].Symbol, e.Size, e.Kind)
	}
}

func (printer) Stack(*probes.Stack) {}

// What a process allocates with CUDA.
func Example() {
	process := program()
	defer process.Close()
	tracer, err := probes.Open(probes.Options{API: probes.APIDriver})
	if err != nil {
		log.Panic(err)
	}
	defer tracer.Close()
	if _, err := tracer.Target(process.PID()); err != nil {
		log.Panic(err)
	}
	done := make(chan error)
	go func() { done <- tracer.Run(printer{}, nil) }()
	if _, err := process.Run("cuMemAlloc_v2 7m", "cuMemAllocManaged 1m"); err != nil {
		log.Panic(err)
	}
	if err := tracer.Stop(); err != nil {
		log.Panic(err)
	}
	if err := <-done; err != nil {
		log.Panic(err)
	}
	// Output:
	// cuMemAlloc_v2: 7340032 bytes of device memory
	// cuMemAllocManaged: 1048576 bytes of managed memory
}

// program starts one with a stand-in for libcuda, which waits for commands.
func program() *testcuda.Process {
	dir, err := testcuda.DefaultDir()
	if err != nil {
		log.Panic(err)
	}
	kit, err := testcuda.Build(dir)
	if err != nil {
		log.Panic(err)
	}
	process, err := testcuda.Start(context.Background(), kit, testcuda.Workload, testcuda.Options{})
	if err != nil {
		log.Panic(err)
	}
	if _, err := process.Run("echo up"); err != nil { // its libraries are mapped
		log.Panic(err)
	}
	return process
}
