//go:build man

// Built with this tag, the program only writes its manual pages and shell completions,
// which packages contain:
//
//	go run -tags man ./cmd/gpumemtrace DIR
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra/doc"
)

func init() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "give a directory")
		os.Exit(exitUsage)
	}
	if err := writeManual(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitFailed)
	}
	os.Exit(exitDone)
}

// writeManual writes man1/*.1 and completions into a directory. Pages have the date of
// SOURCE_DATE_EPOCH, in seconds since 1970.
func writeManual(dir string) error {
	pages, completions := filepath.Join(dir, "man1"), filepath.Join(dir, "completions")
	if err := errors.Join(os.MkdirAll(pages, 0o755), os.MkdirAll(completions, 0o755)); err != nil {
		return err
	}
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	root := newRoot()
	root.CompletionOptions.HiddenDefaultCmd = true
	root.DisableAutoGenTag = true
	date := time.Unix(epoch, 0).UTC()
	head := &doc.GenManHeader{Section: "1", Date: &date, Source: "gpumemtrace " + version, Manual: "User Commands"}
	return errors.Join(
		doc.GenManTree(root, head, pages),
		root.GenBashCompletionFileV2(filepath.Join(completions, "gpumemtrace.bash"), true),
		root.GenZshCompletionFile(filepath.Join(completions, "_gpumemtrace")),
		root.GenFishCompletionFile(filepath.Join(completions, "gpumemtrace.fish"), true),
	)
}
