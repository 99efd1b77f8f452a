//go:build linux

package main

import (
	"errors"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/agent"
	"github.com/gpumemtrace/gpumemtrace/internal/agent/settings"
)

const agentExamples = `  sudo gpumemtrace agent                   # until SIGTERM; gpumemtrace top --agent /run/gpumemtrace/agent.sock
  sudo gpumemtrace agent --config /etc/gpumemtrace.yaml
  sudo gpumemtrace agent --record /var/lib/gpumemtrace --record-max 512MiB
  sudo GPUMEMTRACE_MEMORY_LIMIT=400MiB gpumemtrace agent`

// agentFlags are the flags of the agent that are not settings.
type agentFlags struct {
	config string
	quiet  bool
	once   bool
}

func newAgent() *cobra.Command {
	var f agentFlags
	table := settings.New().Table()
	c := &cobra.Command{
		Use:     "agent",
		Short:   "Trace every process that uses CUDA until stopped; serve, push and record the results",
		Example: agentExamples,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			given := map[string][]string{}
			c.Flags().Visit(func(flag *pflag.Flag) {
				if set, ok := flag.Value.(*settings.Setting); ok {
					given[set.Name] = set.Values()
				}
			})
			log := logger{quiet: f.quiet}
			o := agent.Options{
				Sources: settings.Sources{Flags: given, Environment: os.LookupEnv, File: f.config},
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
		s.StringVar(&f.config, "config", "", "YAML file with settings; its keys are the names of these flags. Each setting is also an environment variable, such as GPUMEMTRACE_MEMORY_LIMIT. A flag overrides a variable, and a variable overrides the file. On SIGHUP the agent reads the file again; settings marked * keep their values")
		s.BoolVar(&f.once, "once", false, "trace for one --interval, print the alerts that are then true, and exit; the exit code is 3 if any is true")
		s.BoolVarP(&f.quiet, "quiet", "q", false, "print nothing but errors")
	}}}
	for _, title := range settings.Groups {
		groups = append(groups, group{title, func(s *pflag.FlagSet) {
			for _, set := range table {
				if set.Group == title {
					addSetting(s, set, map[bool]string{true: " *"}[set.Fixed])
				}
			}
		}})
	}
	setUpHelp(c, groups)
	return c
}

// addSetting makes a flag of a setting.
func addSetting(s *pflag.FlagSet, set *settings.Setting, mark string) {
	flag := s.VarPF(set, set.Name, "", set.Help+mark)
	if set.Type() == "bool" {
		flag.NoOptDefVal = "true"
	}
}
