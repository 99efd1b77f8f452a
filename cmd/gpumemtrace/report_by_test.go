package main

import (
	"strings"
	"testing"
)

// --by groups a profile, several of it together; without it the page has none of that.
func TestReportBy(t *testing.T) {
	path := savedProfile(t)
	for _, c := range []struct {
		args []string
		says string // a line of the page
	}{
		{[]string{"--by", "cause"}, "   184 MiB   22.8%        9  ~20.5 MiB   224 MiB  allocations      cuMemAlloc_v2\n"},
		{[]string{"--by", "owner,kind"}, "   120 MiB   14.9%        6   20.0 MiB   160 MiB  pytorch  device\n"},
		{[]string{"--by", "owner", "--by", "kind", "-n", "-1"}, "   120 MiB   14.9%        6   20.0 MiB   160 MiB  pytorch  device\n"},
		{nil, "By owner\n"},
	} {
		v := command(t, append([]string{"report", path}, c.args...)...).start().ends(exitDone)
		if !strings.Contains(v.stdout.String(), c.says) {
			t.Errorf("%q: it printed\n%s, want %q", c.args, v.stdout.String(), c.says)
		}
	}
}
