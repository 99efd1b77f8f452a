// Command gocaller calls the probed function through cgo.
package main

// int gm_test_alloc(unsigned long *, unsigned long);
import "C"

import (
	"bufio"
	"fmt"
	"os"
)

//go:noinline
func allocate(n int) {
	var p C.ulong
	C.gm_test_alloc(&p, C.ulong(n))
}

func main() {
	in := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	in.ReadString('\n')
	for range 10 {
		allocate(1)
	}
	fmt.Println("done")
	in.ReadString('\n')
}
