package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
)

// A group is a set of flags under one heading of --help.
type group struct {
	title string
	add   func(*pflag.FlagSet)
}

// An amount is a flag whose value is an amount of memory, in bytes. Setting the flag calls it.
type amount func(int64)

func (use amount) Set(text string) error {
	n, err := bytefmt.Parse(text)
	if err == nil {
		use(n)
	}
	return err
}

func (amount) String() string { return "" }

// Type is what help calls the flag's value.
func (amount) Type() string { return "size" }

// setUpHelp shows examples first, then flags by group. Lines end with the terminal's.
func setUpHelp(cmd *cobra.Command, groups []group) {
	var sections []string
	width := columns(os.Stdout)
	for _, g := range groups {
		s := pflag.NewFlagSet(g.title, pflag.ContinueOnError)
		g.add(s)
		cmd.Flags().AddFlagSet(s)
		sections = append(sections, fmt.Sprintf("%s:\n%s", g.title, s.FlagUsagesWrapped(width)))
	}
	cmd.Flags().SortFlags = false
	cmd.SetHelpFunc(func(c *cobra.Command, _ []string) {
		out := c.OutOrStdout()
		fmt.Fprintf(out, "%s.\n\n", c.Short)
		if c.HasParent() && c.Long != "" {
			fmt.Fprintf(out, "%s\n\n", strings.TrimSpace(c.Long))
		}
		fmt.Fprintf(out, "Usage: %s\n", c.UseLine())
		if c.Example != "" {
			fmt.Fprintf(out, "\nExamples:\n%s\n", c.Example)
		}
		if c == cmd {
			fmt.Fprintf(out, "\n%s", strings.Join(sections, "\n"))
		} else if u := c.Flags().FlagUsagesWrapped(width); u != "" {
			fmt.Fprintf(out, "\nFlags:\n%s", u)
		}
		if c.HasAvailableSubCommands() {
			fmt.Fprintln(out, "\nCommands:")
			for _, sub := range c.Commands() {
				if sub.IsAvailableCommand() {
					fmt.Fprintf(out, "  %-10s %s\n", sub.Name(), sub.Short)
				}
			}
		}
		if !c.HasParent() {
			fmt.Fprint(out, "\nMore on a command: gpumemtrace COMMAND --help\nWhat the words of the output mean: gpumemtrace help terms\n")
		}
	})
}
