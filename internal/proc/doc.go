// Package proc is the only reader of /proc: of the mappings and the state of
// processes, and of the files that they map.
//
// Every process that is looked at is hostile: it chooses its names and paths,
// what is in its files, and when all of that changes. So a file is opened once,
// the descriptor is checked, and nothing but the descriptor is used from then
// on; and what is read is bounded before it is read.
package proc
