//go:build race

package ledger

// raceEnabled shortens the random test, which the race detector slows down
// tenfold though the ledger has one goroutine.
const raceEnabled = true
