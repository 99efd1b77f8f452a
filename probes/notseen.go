package probes

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/source/tenant"
)

// An absence is the reason why a process is not seen, or not in full.
type absence string

const (
	noSlot     absence = "no free slot for a library"
	waitsLong  absence = "too many of its user's libraries wait"
	noAnswer   absence = "a library's file does not answer"
	notTarget  absence = "the table of processes is full"
	unreadable absence = "its libraries could not be looked at"
)

// absenceOf returns the reason for an error.
func absenceOf(err error) absence {
	if errors.Is(err, errNotProbed) {
		return noSlot
	}
	return unreadable
}

// NotSeen counts the processes of one user that map a library of CUDA and are not traced, or
// not in full, for one reason.
type NotSeen struct {
	User      uint32
	Why       string
	Processes int
	More      bool // this user has more of them
}

// String returns it as a short text.
func (n NotSeen) String() string {
	text := fmt.Sprintf("%d processes", n.Processes)
	if n.Processes == 1 {
		text = "1 process"
	}
	if n.More {
		text = "more than " + text
	}
	who := "others"
	if n.User != others {
		who = tenant.Name(n.User)
	}
	return fmt.Sprintf("%s of %s: %s", text, who, n.Why)
}

// Name returns the user's number or the control group, or "others" for all beyond the bound.
func (n NotSeen) Name() string {
	if n.User == others {
		return "others"
	}
	return strings.TrimPrefix(tenant.Name(n.User), "user ")
}
