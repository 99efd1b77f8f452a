package testcuda

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
)

// Options say how [Start] runs a program.
type Options struct {
	Args []string // a Workload without any reads its script from Send
	Env  []string // beside the caller's environment
	Libs Libs     // LibsDefault unless set
	// User runs the program, a number; the caller unless set. The user must be able to
	// read the kit: see Kit.Copy.
	User uint32
}

// A Process is a running program. Its methods but Close are for one goroutine.
type Process struct {
	cmd    *exec.Cmd
	ctx    context.Context
	cancel context.CancelFunc
	stdin  io.WriteCloser
	lines  chan string // closed at the end of stdout
	stderr lockedBuffer
	exited chan struct{}
	err    error // of Wait, once exited is closed
	marks  int
}

// Start runs a program. When ctx ends, the process is killed and every method
// that waits for it fails.
func Start(ctx context.Context, kit *Kit, program Program, opts Options) (*Process, error) {
	ctx, cancel := context.WithCancel(ctx)
	p := &Process{ctx: ctx, cancel: cancel, lines: make(chan string), exited: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, kit.Path(program), opts.Args...)
	p.cmd.Env = append(append(os.Environ(), kit.Env(opts.Libs)...), opts.Env...)
	p.cmd.Stderr = &p.stderr
	if opts.User != 0 {
		p.cmd.Dir = "/"
		p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: opts.User, Gid: opts.User}}
	}
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	go p.read(stdout)
	return p, nil
}

func (p *Process) read(stdout io.Reader) {
	scanner := bufio.NewScanner(stdout)
	scanner.Buffer(nil, 64<<20)
	for scanner.Scan() {
		select {
		case p.lines <- scanner.Text():
		case <-p.ctx.Done():
		}
	}
	close(p.lines)
	p.err = p.cmd.Wait()
	close(p.exited)
}

// PID returns the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal.
func (p *Process) Signal(sig os.Signal) error { return p.cmd.Process.Signal(sig) }

// Send writes each text as one line to stdin: a Workload's next command, or
// what its "wait" waits for.
func (p *Process) Send(texts ...string) error {
	for _, text := range texts {
		if _, err := io.WriteString(p.stdin, text+"\n"); err != nil {
			return p.explain(fmt.Errorf("send %q: %w", text, err))
		}
	}
	return nil
}

// line returns the next line of stdout. It fails at the end of it.
func (p *Process) line() (string, error) {
	select {
	case line, ok := <-p.lines:
		if !ok {
			<-p.exited
			return "", p.explain(fmt.Errorf("read a line: %w", io.ErrUnexpectedEOF))
		}
		return line, nil
	case <-p.ctx.Done():
		return "", p.explain(fmt.Errorf("read a line: %w", context.Cause(p.ctx)))
	}
}

// Expect reads lines until one equals want, and returns those before it.
func (p *Process) Expect(want string) (before []string, err error) {
	for {
		line, err := p.line()
		if err != nil {
			return before, fmt.Errorf("expect %q: %w", want, err)
		}
		if line == want {
			return before, nil
		}
		before = append(before, line)
	}
}

// Run sends commands to a Workload without arguments and returns what they
// print, when they are done.
func (p *Process) Run(commands ...string) ([]string, error) {
	p.marks++
	mark := fmt.Sprintf("done-%d", p.marks)
	if err := p.Send(append(commands, "echo "+mark)...); err != nil {
		return nil, err
	}
	return p.Expect(mark)
}

// Stats asks a Workload without arguments for its driver's ledger.
func (p *Process) Stats() (*Stats, error) {
	s := new(Stats)
	err := p.query("stats", s)
	return s, err
}

// Objects asks a Workload without arguments what it keeps, newest first.
func (p *Process) Objects() ([]Object, error) {
	var objects []Object
	err := p.query("objects", &objects)
	return objects, err
}

func (p *Process) query(command string, v any) error {
	lines, err := p.Run(command)
	if err != nil {
		return err
	}
	if len(lines) != 1 {
		return fmt.Errorf("%s: %d lines, want 1: %q", command, len(lines), lines)
	}
	return json.Unmarshal([]byte(lines[0]), v)
}

// Wait closes stdin, reads what is left of stdout, and returns it with the
// exit code. A process that a signal ended has the code -1.
func (p *Process) Wait() (rest []string, code int, err error) {
	p.stdin.Close()
	for {
		select {
		case line, ok := <-p.lines:
			if ok {
				rest = append(rest, line)
				continue
			}
			<-p.exited
			if _, ok := errors.AsType[*exec.ExitError](p.err); p.err != nil && !ok {
				return rest, -1, p.explain(p.err)
			}
			return rest, p.cmd.ProcessState.ExitCode(), nil
		case <-p.ctx.Done():
			return rest, -1, p.explain(context.Cause(p.ctx))
		}
	}
}

// Close kills the process if it still runs, and waits for its end.
func (p *Process) Close() error {
	p.stdin.Close()
	p.cancel()
	<-p.exited
	return nil
}

func (p *Process) explain(err error) error {
	if text := strings.TrimSpace(p.stderr.String()); text != "" {
		return fmt.Errorf("%w (stderr: %s)", err, text)
	}
	return err
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
