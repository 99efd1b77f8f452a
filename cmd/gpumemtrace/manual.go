package main

// manual is what the manual page says before its options, in Markdown. --help leaves it out.
const manual = `gpumemtrace attaches to a running program that uses CUDA and records each allocation and each free of GPU memory, with the complete call stack, Python and native. It writes a profile of the memory in use, by stack. Nothing in the program is changed, and it is not restarted.

**gpumemtrace -p PID** traces until Ctrl-C and then writes a profile, which **gpumemtrace report** prints. With **--record FILE** it also keeps the whole trace: **report**, **diff**, **convert** and **top** show any moment of it. **gpumemtrace agent** traces every process, always. **gpumemtrace doctor** says what is missing here.

Tracing needs root, or the capabilities that **gpumemtrace doctor** names. Reading a profile or a recording needs no privileges and no GPU.

# EXIT STATUS

**0**
: Success.

**1**
: A failure, or a check of **doctor** that failed.

**2**
: The command line is not valid.

**3**
: **agent --once**: an alert is true.

**128+N**
: Signal N ended gpumemtrace before it had written its result. For a trace, this takes a second signal.

After **--**, it is the exit status of the command, or 128 and the number of the signal that ended it.

# FILES

**gpumemtrace-TIME.pb.gz**
: The profile, if **-o** does not name it. **gpumemtrace report** reads it, and so does **go tool pprof**.

**RUN.gmt**
: A recording (**--record**).

**/etc/gpumemtrace/agent.yaml**
: The settings of the agent that systemd starts.

**/var/lib/gpumemtrace**
: Its recordings and out-of-memory reports.

**/var/cache/gpumemtrace**
: Unwind tables of libraries (see **--no-cache**).
`
