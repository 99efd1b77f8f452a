package pprofout_test

import (
	"bytes"
	"fmt"
	"log"

	"github.com/gpumemtrace/gpumemtrace/pprofout"
)

// A profile of one call stack, written and read again.
func Example() {
	stack := []*pprofout.Location{
		{Lines: []pprofout.Line{{Function: "load_weights", File: "model.py", Line: 7}}},
		{Lines: []pprofout.Line{{Function: "main", File: "train.py", Line: 12}}},
	}
	var file bytes.Buffer
	if err := pprofout.Write(&file, &pprofout.Profile{Target: "pid 4711 (python3)", Samples: []pprofout.Sample{{
		Stack:  stack,
		Labels: pprofout.Labels{GPU: "0", Kind: "device"},
		Values: pprofout.Values{AllocObjects: 1, AllocBytes: 1 << 20, InuseObjects: 1, InuseBytes: 1 << 20},
	}}}); err != nil {
		log.Fatal(err)
	}
	p, err := pprofout.Read(&file)
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range p.Samples {
		fmt.Println(s.Stack[0].Lines[0].Function, "holds", s.InuseBytes, "bytes on GPU", s.GPU)
	}
	// Output: load_weights holds 1048576 bytes on GPU 0
}
