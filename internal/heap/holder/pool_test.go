package holder_test

import (
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
)

func ExamplePoolID() {
	fmt.Printf("%q %q %q\n", holder.PoolID{}, holder.PoolID{Second: 2}, holder.UnknownPool)
	// Output: "" "0.2" "unknown"
}
