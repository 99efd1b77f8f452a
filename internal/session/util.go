package session

import (
	"fmt"
	"strings"
)

// join lists names, and counts those past the tenth.
func join(names []string) string {
	const most = 10
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
