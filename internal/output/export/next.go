package export

import (
	"io"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

// A Command is a command of gpumemtrace, without that name, and what it answers.
type Command struct{ Args, Answers string }

// Next writes the commands that answer the next questions, after a page.
func Next(w io.Writer, o Options, commands ...Command) error {
	page := render.NewPage(w, o.Width, o.Color)
	if _, err := io.WriteString(w, "\n"); err != nil {
		return err
	}
	nextCommands(page, commands)
	return page.Flush("write the next commands")
}

func nextCommands(page *render.Page, commands []Command) {
	page.Heading("Next")
	for _, c := range commands {
		page.Line("  %s:", c.Answers)
		page.Verbatim("    gpumemtrace " + c.Args)
	}
}

// isRecording tells a recording, or a snapshot of PyTorch, from a profile by its name.
func isRecording(file string) bool { return file != "" && !userfile.IsProfile(file) }

// thePage makes a page of a recording.
func thePage(file string) Command {
	return Command{"convert " + file + " " + userfile.Stem(file) + ".html", "All of it over time, as a page"}
}

// whatIf tries other settings of PyTorch's allocator.
func whatIf(file string) Command {
	return Command{"whatif " + file, "What fragmentation costs, and whether another setting would help"}
}

// theWords explains them.
var theWords = Command{"help terms", "What the words mean"}

// OfEach reports whether m is the peak of each process that s shows.
func (m *Moment) OfEach(s *snapshot.Snapshot) bool {
	sum := sumOf(onGPU(s))
	return m.At == m.Peak && sum.InuseBytes == sum.PeakBytes
}

// at returns the flag that shows the moment again, with a space before it, "" where it is the
// default.
func (o *Options) at() string {
	switch m := o.Moment; {
	case m == nil || m.At == m.Peak:
		return ""
	case m.At >= m.duration():
		return " --at end"
	}
	return " --at " + o.Moment.At.String()
}

// afterBy names what follows the rows of o.By: the lines of the program in each row, or what the
// memory of each line is for.
func afterBy(page *render.Page, o *Options, asked []string) {
	if o.File == "" || o.Before != nil {
		return
	}
	more, answers := "line", "Which lines of the program that is, in each row"
	if slices.Contains(asked, "line") {
		more, answers = "category", "What the memory of each line is for"
	}
	var commands []Command
	if !slices.Contains(asked, more) && !o.By.Parts() {
		turnover := ""
		if o.Turnover {
			turnover = " --turnover"
		}
		commands = append(commands, Command{"report " + o.File + " --by " + strings.Join(append(slices.Clone(asked), more), ",") + turnover + o.at(), answers})
	}
	if isRecording(o.File) {
		commands = append(commands, thePage(o.File))
	}
	nextCommands(page, append(commands, theWords))
}
