package session

// CheckTarget returns an error that says why pid cannot be traced, nil if
// nothing is known to be in the way.
func CheckTarget(pid int) error { return checkTarget(pid) }
