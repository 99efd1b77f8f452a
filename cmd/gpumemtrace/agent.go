package main

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/agent"
)

const agentExamples = `  sudo gpumemtrace agent                   # until SIGTERM; http://localhost:9844
  sudo gpumemtrace agent --config /etc/gpumemtrace.yaml
  sudo gpumemtrace agent --record /var/lib/gpumemtrace --record-max 512MiB
  sudo GPUMEMTRACE_MEMORY_LIMIT=400MiB gpumemtrace agent`

// agentFlags are the values of flags, as they were given.
type agentFlags struct {
	given  map[string][]string
	config string
	quiet  bool
	once   bool
}

// A settingValue is the flag of a setting: a pflag.Value.
type settingValue struct {
	*agent.Setting
	given map[string][]string
}

// String is the default.
func (v settingValue) String() string {
	if v.Setting == nil { // as pflag makes one to compare with
		return ""
	}
	return v.Default()
}

// Type names the value in help texts.
func (v settingValue) Type() string {
	if v.List {
		return v.Kind + ", repeatable"
	}
	return v.Kind
}

// Set keeps a value that the setting takes.
func (v settingValue) Set(value string) error {
	if err := v.Check(value); err != nil {
		return err
	}
	if !v.List {
		v.given[v.Name] = nil
	}
	v.given[v.Name] = append(v.given[v.Name], value)
	return nil
}

func newAgent() *cobra.Command {
	f := agentFlags{given: map[string][]string{}}
	c := &cobra.Command{
		Use:     "agent",
		Short:   "Trace every process that uses CUDA, always: serve, push and keep what is seen",
		Example: agentExamples,
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			log := logger{quiet: f.quiet}
			o := agent.Options{
				Sources: agent.Sources{Flags: f.given, Environment: os.LookupEnv, File: f.config},
				Warn:    log.warn,
				Insist:  insist,
				Version: version, CommandLine: strings.Join(os.Args, " "),
			}
			if !f.once {
				return agent.Run(o)
			}
			endOnSignal()
			firing, err := agent.Once(o, os.Stdout)
			switch {
			case errors.Is(err, agent.ErrNoRule):
				return usageError{err}
			case err == nil && firing > 0:
				return exitError(exitAlert)
			}
			return err
		},
	}
	groups := []group{{"Configuration", func(s *pflag.FlagSet) {
		s.StringVar(&f.config, "config", "", "YAML file with settings, by the names of these flags; each is also a variable, such as GPUMEMTRACE_MEMORY_LIMIT. A flag counts more than a variable, that more than the file, which SIGHUP reads again; those with * stay as they were")
		s.BoolVar(&f.once, "once", false, "trace for one --interval, print which --alert are true then, and end: with 3 if any is")
		s.BoolVarP(&f.quiet, "quiet", "q", false, "print nothing but errors")
	}}}
	for _, title := range agent.Groups() {
		groups = append(groups, group{title, func(s *pflag.FlagSet) {
			for _, set := range agent.Settings {
				if set.Group != title {
					continue
				}
				help := set.Help
				if set.Fixed {
					help += " *"
				}
				flag := s.VarPF(settingValue{set, f.given}, set.Name, "", help)
				if set.Kind == "bool" {
					flag.NoOptDefVal = "true"
				}
			}
		}})
	}
	setUpHelp(c, groups)
	c.Long = c.Short
	return c
}
