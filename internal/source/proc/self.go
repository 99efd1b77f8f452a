package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
)

// Resident returns how many bytes of this process are in memory.
func Resident() (int64, error) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, fmt.Errorf("read own memory: %w", err)
	}
	fields := bytes.Fields(b) // size, resident, ...: in pages
	if len(fields) < 2 {
		return 0, errors.New("read own memory: /proc/self/statm is cut short")
	}
	pages, err := strconv.ParseInt(string(fields[1]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read own memory: %w", err)
	}
	return pages * int64(os.Getpagesize()), nil
}
