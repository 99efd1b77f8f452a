//go:build linux

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/settings"
	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

// remoteFlags say which agent top shows.
type remoteFlags struct {
	address      string
	passwordFile string
	insecure     bool
}

func (f *remoteFlags) add(s *pflag.FlagSet) {
	s.StringVar(&f.address, "agent", "", "show what an agent sees, at its socket ("+settings.DefaultSocket+") or at an address such as https://node7:9844")
	s.StringVar(&f.passwordFile, "password-file", "", "file with the line USER:PASSWORD, for an agent at an address")
	s.BoolVar(&f.insecure, "insecure", false, "send the password without TLS")
}

// maxPasswordFile bounds a file with a password, in bytes.
const maxPasswordFile = 4096

// remote shows what an agent sees.
func (f *topFlags) remote(args []string) error {
	if len(f.pids) > 0 || f.all || f.record != "" || f.Tensors || len(args) > 0 {
		return usagef("--agent cannot be combined with -p, -a, --tensors, --record, a recording or a command")
	}
	if err := f.viewFlags.check(false); err != nil {
		return err
	}
	o := live.RemoteOptions{Address: f.address, Insecure: f.insecure}
	if f.passwordFile != "" {
		text, _, err := userfile.Read(f.passwordFile, maxPasswordFile)
		if err != nil {
			return fmt.Errorf("read the password: %w", err)
		}
		var ok bool
		if o.User, o.Password, ok = strings.Cut(strings.TrimRight(string(text), "\r\n"), ":"); !ok || o.Password == "" {
			return fmt.Errorf("read the password: %s has no line USER:PASSWORD", f.passwordFile)
		}
	}
	source, err := live.Remote(o)
	if err != nil {
		return usagef("%v", err)
	}
	ctx, _ := stopped(watchSignals())
	return f.watch(ctx, source, nil, !f.once && !f.json)
}
