package proc

import "bytes"

// Comm returns a process's command name, "" if it is gone. The process chose
// it: up to 15 bytes of anything but NUL.
func Comm(pid int) string {
	b, err := read(pid, "comm", maxLine)
	if err != nil {
		return ""
	}
	return string(bytes.TrimSuffix(b, []byte("\n")))
}
