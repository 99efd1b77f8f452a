package main

import (
	"strings"
	"testing"
)

// Shells offer the values of --by and --format, of every command that has them.
func TestCompletion(t *testing.T) {
	for args, want := range map[string]string{
		"report x --by ca":          "cause category category_from",
		"report x --by kind,ow":     "kind,owner",
		"holders --by p":            "path parameter",
		"holders --format j":        "json",
		"convert x --format p":      "pprof pickle",
		"-p 1 --format p":           "pprof pickle",
		"convert x y --format time": "timeline",
		"rep":                       "report",
	} {
		v := command(t, append([]string{"__complete"}, strings.Fields(args)...)...).start().ends(exitDone)
		lines := strings.Split(strings.TrimSpace(v.stdout.String()), "\n")
		var offered []string
		for _, line := range lines[:len(lines)-1] {
			name, _, _ := strings.Cut(line, "\t")
			offered = append(offered, name)
		}
		if strings.Join(offered, " ") != want || lines[len(lines)-1] != ":4" {
			t.Errorf("%s: %q, want %q", args, lines, want)
		}
	}
	root := newRoot()
	for _, c := range append(root.Commands(), root) {
		for _, flag := range []string{"by", "format"} {
			if _, found := c.GetFlagCompletionFunc(flag); c.Flag(flag) != nil && !found {
				t.Errorf("%s does not complete --%s", c.Name(), flag)
			}
		}
	}
}
