package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/output/findings"
	"github.com/gpumemtrace/gpumemtrace/internal/output/holders"
)

// completeValues makes shells offer the values of --by, --format and --no-finding.
func completeValues(root *cobra.Command) {
	for _, c := range append(root.Commands(), root) {
		by, format := export.ByNames(), formats().Names()
		switch c.Name() {
		case root.Name():
			format = ofMoments().Names()
		case "diff":
			by = slices.DeleteFunc(by, func(name string) bool {
				one, err := export.ParseBy(name)
				return err != nil || one.Parts()
			})
		case "holders":
			by, format = holders.Names(), ofHeaps().Names()
		case "check":
			format = checkFormats
		}
		complete(c, "by", by)
		complete(c, "no-finding", append(findings.Names(), "all"))
		complete(c, "format", format)
	}
}

// complete makes shells offer the values of a flag. If the flag takes a list, shells offer
// them after each comma too. A command may lack the flag.
func complete(c *cobra.Command, name string, values []string) {
	flag := c.Flag(name)
	if flag == nil {
		return
	}
	_ = c.RegisterFlagCompletionFunc(name, func(_ *cobra.Command, _ []string, typed string) (out []string, _ cobra.ShellCompDirective) {
		begun := ""
		if flag.Value.Type() == "stringSlice" {
			begun = typed[:strings.LastIndex(typed, ",")+1]
		}
		for _, v := range values {
			if strings.HasPrefix(begun+v, typed) {
				out = append(out, begun+v)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}) // this cannot fail: the flag exists, and is registered only once
}
