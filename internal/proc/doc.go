// Package proc is the only reader of /proc: of what processes are, map, hold open
// and were started with, of the files that they map, and of what is said there of
// this process and of the kernel.
//
// Every process that is looked at is hostile: it chooses its names and paths,
// what is in its files, and when all of that changes. So a file is opened once,
// the descriptor is checked, and nothing but the descriptor is used from then
// on; and what is read is bounded before it is read.
package proc
