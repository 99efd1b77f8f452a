package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// nearness is how many letters of a word may be wrong for a suggestion.
const nearness = 2

// unexpected says what may be meant by an argument that no command is.
func unexpected(root *cobra.Command, arg string) error {
	if near := root.SuggestionsFor(arg); len(near) > 0 {
		return usagef("%q is not a command: did you mean %s?", arg, strings.Join(near, " or "))
	}
	if info, err := os.Stat(arg); err == nil && info.Mode().IsRegular() {
		return usagef("unexpected argument %q: to read this file, use gpumemtrace report %s; to run it, put it after --", arg, arg)
	}
	return usagef("unexpected argument %q: a command to run goes after --", arg)
}

// flagError says what may be meant by a flag that is not there, or what a flag takes.
func flagError(c *cobra.Command, err error) error {
	if !c.HasParent() && c.Flags().NArg() > 0 { // the flags of a command that is not there
		return unexpected(c, c.Flags().Arg(0))
	}
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "":
		err = unknownFlag(c, unknown.GetSpecifiedName(), err)
	case errors.As(err, &invalid):
		flag := invalid.GetFlag()
		_, explains := flag.Value.(interface{ Values() []string }) // a setting
		if want := wanted[flag.Value.Type()]; want != "" && !explains {
			err = fmt.Errorf("invalid argument %q for --%s: give %s", invalid.GetValue(), flag.Name, want)
		}
	}
	return usageError{err}
}

// misplaced say what to give instead of flags that people expect.
var misplaced = map[string]string{
	"peak":   "give --at peak",
	"end":    "give --at end",
	"format": "give --csv or --json for the rows of a page; gpumemtrace convert FILE --format writes a whole file",
	"table":  "a page is what it prints by itself; --csv and --json write rows",
	"csv":    "gpumemtrace report and gpumemtrace diff have --csv",
	"json":   "gpumemtrace report, diff, whatif, fit and top have --json",
	"rank":   "give --ranks, of gpumemtrace diff",
	"ranks":  "gpumemtrace diff has --ranks",
	"output": "redirect what it prints (> FILE)",
}

// unknownFlag adds to err what may be meant by a flag that c does not have: another one of c's, or
// one of another command's.
func unknownFlag(c *cobra.Command, name string, err error) error {
	if text := misplaced[name]; text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	if near := nearFlags(c, name); len(near) > 0 {
		return fmt.Errorf("%w: did you mean --%s?", err, strings.Join(near, " or --"))
	}
	for _, other := range append([]*cobra.Command{c.Root()}, c.Root().Commands()...) {
		if near := nearFlags(other, name); len(near) > 0 && other != c {
			return fmt.Errorf("%w: %s has --%s", err, other.CommandPath(), strings.Join(near, " and --"))
		}
	}
	return err
}

// wanted are what flags take, by type, where the package of flags would name its parser.
var wanted = map[string]string{
	"int":          "a whole number",
	"intSlice":     "a whole number",
	"uint32":       "a whole number, not below 0",
	"float64Slice": "a number",
	"duration":     "a duration such as 90s or 1h30m",
	"bool":         "true or false",
}

// nearFlags returns the flags with names like one that is not there, as cobra finds
// commands.
func nearFlags(c *cobra.Command, name string) []string {
	all := &cobra.Command{SuggestionsMinimumDistance: nearness}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		all.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
	})
	return all.SuggestionsFor(name)
}
