// Mkkit builds the stand-in CUDA libraries and workloads and prints their
// folder, for those who run them by hand.
//
//	mkkit [DIR]
package main

import (
	"fmt"
	"os"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

func run(args []string) error {
	dir, err := testcuda.DefaultDir()
	if len(args) > 0 {
		dir, err = args[0], nil
	}
	if err != nil {
		return fmt.Errorf("find the cache directory: %w", err)
	}
	kit, err := testcuda.Build(dir)
	if err != nil {
		return err
	}
	_, err = fmt.Println(kit.Dir)
	return err
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "mkkit:", err)
		os.Exit(1)
	}
}
