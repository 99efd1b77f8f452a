package main

import (
	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/server"
	"github.com/gpumemtrace/gpumemtrace/internal/live"
)

// remoteFlags say which agent top shows.
type remoteFlags struct {
	url       string
	tokenFile string
	insecure  bool
}

func (f *remoteFlags) add(s *pflag.FlagSet) {
	s.StringVar(&f.url, "agent", "", "show what an agent at this address sees")
	s.StringVar(&f.tokenFile, "token-file", "", "file with the agent's token")
	s.BoolVar(&f.insecure, "insecure", false, "send the token without TLS")
}

// remote shows what an agent sees.
func (f *topFlags) remote(args []string) error {
	switch {
	case len(f.pids) > 0 || f.all || f.record != "" || f.Tensors || len(args) > 0:
		return usagef("--agent cannot be combined with -p, -a, --tensors, --record, a recording or a command")
	case f.at.text != "":
		return usagef("--at is for a recording")
	}
	if err := f.check(); err != nil {
		return err
	}
	o := live.RemoteOptions{URL: f.url, Insecure: f.insecure}
	if f.tokenFile != "" {
		var err error
		if o.Token, err = server.ReadToken(f.tokenFile); err != nil {
			return err
		}
	}
	source, err := live.Remote(o)
	if err != nil {
		return usagef("%v", err)
	}
	ctx, _ := stopped(watchSignals())
	return f.watch(ctx, source, nil, !f.once && !f.json)
}
