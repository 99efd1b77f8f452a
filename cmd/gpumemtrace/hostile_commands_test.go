package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// noRecording are the commands that read no recording, with the reason.
var noRecording = map[string]string{
	"gpumemtrace": "it traces processes",
	"agent":       "it traces processes, and reads only recordings that it has written",
	"doctor":      "it checks the machine",
	"holders":     "it reads the heap of a process",
	"terms":       "it explains words",
	"help":        "it prints manuals",
}

// withFlag has for each other command how it reads a recording with each of its flags, "" for
// none. FILE is the recording, OTHER a copy of it, and VALUE each value that the flag
// offers. A flag with an empty list does not change what is read.
var withFlag = map[string]map[string][]string{
	"report": {
		"":        {"FILE -n -1"},
		"at":      {"FILE --at 1s"},
		"from":    {"FILE --from 1s"},
		"to":      {"FILE --from 0s --to 2s"},
		"pattern": nil, // with --by pattern
		"by":      {"FILE --by VALUE -n -1", "FILE --by shape", "FILE --by owner,kind -n -1"},
		"csv":     {"FILE --by line,kind --csv", "FILE --steps --csv"},
		"json":    {"FILE --by size --json"},
		"steps":   {"FILE --steps"},
		"windows": {"FILE --windows"}, "segments": {"FILE --segments"}, "oom": {"FILE --oom"},
		"leaks": {"FILE --leaks"}, "leak-interval": {"FILE --leaks --leak-interval 1s"},
		"turnover": {"FILE --by category --turnover"}, "top": {"FILE -n 5"},
	},
	"check": {
		"":         nil,
		"max-peak": {"FILE --max-peak 1GiB"}, "max-growth-per-step": {"FILE --max-growth-per-step 1MiB"},
		"no-finding": {"FILE --no-finding VALUE"}, "format": {"FILE --no-finding all,hook --format VALUE"},
		"against": {"FILE --against OTHER"}, "within": {"FILE --against OTHER --within 0%"},
	},
	"diff": {
		"":       {"FILE OTHER"},
		"before": {"FILE --before 2s -n -1"}, "after": {"FILE OTHER --after end"},
		"at":      {"--ranks FILE OTHER --at 2s"},
		"pattern": nil, // with --by pattern
		"by":      {"FILE OTHER --by VALUE", "FILE OTHER --ranks --by line"},
		"output":  {"FILE OTHER -o page.html"}, "force": nil,
		"ranks": {"--ranks FILE OTHER", "--ranks FILE"},
		"csv":   {"FILE OTHER --by line --csv"}, "json": {"FILE OTHER --ranks --json"}, "top": {"FILE OTHER -n -1"},
	},
	"whatif": {
		"":     {"FILE"},
		"set":  {"FILE --set max_split_size_mb:64 --set expandable_segments:True"},
		"own":  {"FILE --own max_split_size_mb:64"},
		"json": {"FILE --json"}, "output": {"FILE -o page.html"}, "force": nil,
	},
	"fit": {
		"":       nil,
		"to":     {"1=FILE 2=OTHER --to 4"},
		"memory": {"1=FILE 2=OTHER --to 4 --memory 80GiB"}, "beside": {"1=FILE 2=OTHER --to 4 --memory 80GiB --beside 1GiB"}, "reserved": {"1=FILE 2=OTHER --to 4 --reserved 40GiB"},
		"json": {"1=FILE 2=OTHER --to 4 --json"},
	},
	"convert": {
		"":       {"FILE"},
		"at":     {"FILE --at peak"},
		"format": {"FILE --format VALUE -o -"},
		"native": {"FILE --native all -o - --format folded", "FILE --native none -o - --format csv"},
		"output": {"FILE -o -"}, "force": nil, "quiet": nil, "verbose": nil,
		"oom-dir":     {"FILE --format table --oom-dir reports -o -"},
		"no-residual": {"FILE --format table --no-residual -o -"},
		"trace-max":   {"FILE --format pickle --trace-max 100000000 -o -"},
	},
	"top": {
		"":     {"FILE --once"},
		"at":   {"FILE --once --at 1s"},
		"json": {"FILE --once --json"}, "once": {"FILE --once -n 5"}, "top": {"FILE --once -n -1"},
		// These are of a trace or an agent.
		"pid": nil, "all": nil, "no-follow": nil, "require-cuda": nil, "record": nil, "tensors": nil, "tensors-window": nil,
		"tensors-every": nil, "max-live": nil, "record-max": nil, "api": nil, "stacks": nil, "no-cache": nil, "ready-file": nil,
		"force": nil, "interval": nil, "agent": nil, "password-file": nil, "insecure": nil,
	},
}

// recordingCommands returns how each command of the program reads a recording with each of its
// flags, and with each value that a flag offers. It fails for a command or a flag that is in
// none of the tables above.
func recordingCommands(t *testing.T) (all []string) {
	t.Helper()
	root := newRoot()
	for _, c := range append(root.Commands(), root) {
		if noRecording[c.Name()] != "" {
			continue
		}
		flags := withFlag[c.Name()]
		if flags == nil {
			t.Errorf("does %s read recordings? Say so in noRecording or withFlag", c.Name())
		}
		names := []string{""}
		c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		for _, name := range names {
			ways, known := flags[name]
			if !known && name != "help" {
				t.Errorf("how does %s read a recording with --%s? Say so in withFlag", c.Name(), name)
			}
			values := offered(t, c, name)
			if len(values) > 0 && !slices.ContainsFunc(ways, func(way string) bool { return strings.Contains(way, "VALUE") }) {
				t.Errorf("%s --%s is not read with each of %q", c.Name(), name, values)
			}
			for _, way := range ways {
				if !strings.Contains(way, "VALUE") {
					all = append(all, c.Name()+" "+way)
					continue
				}
				for _, value := range values {
					if value == "pattern" {
						value += " --pattern forward=forward"
					}
					all = append(all, c.Name()+" "+strings.ReplaceAll(way, "VALUE", value))
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// offered returns the values that shells offer for a flag.
func offered(t *testing.T, c *cobra.Command, flag string) []string {
	t.Helper()
	complete, ok := c.GetFlagCompletionFunc(flag)
	if !ok {
		return nil
	}
	values, _ := complete(c, nil, "")
	return values
}
