package symbolize_test

import (
	"fmt"
	"os"
	"reflect"

	"github.com/gpumemtrace/gpumemtrace/symbolize"
)

// The name of a function of this process.
func Example() {
	s := symbolize.New(symbolize.Config{})
	defer s.Close()
	at := reflect.ValueOf(os.Getpid).Pointer()
	l := s.Resolve(s.Locate(uint32(os.Getpid()), uint64(at), symbolize.Exact))
	fmt.Println(l.Lines[0].Function)
	// Output: os.Getpid
}
