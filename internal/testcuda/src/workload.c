// workload runs a script of CUDA calls, from its arguments, from -f FILE, or
// from stdin line by line. Commands are separated by ";" or a line's end.
//
//   API [SIZE]           call it; what it allocates is kept
//   FREE-API             end the newest object that this call can end
//   free all | free API  end every object (of that API), newest first
//   raw API [VALUE...]   call it with up to six integers; nothing is kept
//   row API [N [BASE]]   N calls (23) of sizes BASE+i (4096), then their frees
//   repeat N COMMAND     SIZE may be BASE+i, i being the round
//   threads N COMMAND    in N threads; what they leave is the caller's
//   via lrl COMMAND      under a stack of via_left and via_right
//   { COMMAND; ... }     one command made of many
//   try COMMAND          a call's failure is no end; prints "result N"
//   expect N COMMAND     calls must return N
//   fail API NTH CODE    inject a failure
//   init | noinit        set up the primary context now | never by itself
//   device N             its primary context becomes current
//   dlopen [PATH]        load libcuda.so.1, or PATH, now
//   fork COMMAND         in a child, awaited; prints "child PID status N"
//   exec PATH ARG...     replace this process
//   ready | echo WORD    print "ready" | WORD
//   wait                 until a line on stdin or SIGUSR1
//   sleep MS | exit [N] | _exit [N] | kill SIGNAL
//   stats | objects      print the driver's ledger | what is kept, as JSON
//   rows                 print every API with a row, and what ends it
//
// A call that fails ends the program with 3, unless try or expect is around it.
#define _GNU_SOURCE
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "script.h"

static volatile sig_atomic_t signalled;

static void run(const char *text);

// Stacks.

static void via(const char *path, const char *command);

__attribute__((noinline)) void via_left(const char *path, const char *command)
{
	via(path, command);
	__asm__ volatile(""); // keeps the call from becoming a jump
}

__attribute__((noinline)) void via_right(const char *path, const char *command)
{
	via(path, command);
	__asm__ volatile("");
}

static inline __attribute__((always_inline)) void via(const char *path, const char *command)
{
	if (*path == 'l')
		via_left(path + 1, command);
	else if (*path == 'r')
		via_right(path + 1, command);
	else
		run(command);
}

// Threads and processes.

struct thread {
	pthread_t id;
	const char *command;
	struct object *left;
	uint64_t round;
	int expected;
	bool tolerant;
};

static void *thread_main(void *arg)
{
	struct thread *t = arg;
	round_i = t->round;
	expected = t->expected;
	tolerant = t->tolerant;
	run(t->command);
	t->left = objects;
	return NULL;
}

static void threads(size_t n, const char *command)
{
	struct thread *all = calloc(n, sizeof *all);
	for (size_t i = 0; i < n; i++) {
		all[i] = (struct thread){.command = command, .round = i, .expected = expected, .tolerant = tolerant};
		if (pthread_create(&all[i].id, NULL, thread_main, &all[i]) != 0) {
			sleep(1); /* a thread before may be on its way to an exec, which ends this one */
			die("cannot start a thread");
		}
	}
	for (size_t i = 0; i < n; i++) {
		pthread_join(all[i].id, NULL);
		struct object **link = &all[i].left;
		while (*link)
			link = &(*link)->next;
		*link = objects;
		objects = all[i].left;
	}
	free(all);
}

static void fork_child(const char *command)
{
	fflush(NULL);
	pid_t pid = fork();
	if (pid < 0)
		die("cannot fork: %s", strerror(errno));
	if (pid == 0) {
		has_context = false;
		objects = NULL; // the parent's, which mean nothing here
		run(command);
		exit(0);
	}
	int status;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	printf("child %d status %d\n", pid, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static void exec_program(const char *rest)
{
	char words[16][1024], *argv[17];
	int n = 0;
	while (*rest && n < 16) {
		rest = word(rest, words[n], sizeof words[n]);
		argv[n] = words[n];
		n++;
	}
	argv[n] = NULL;
	fflush(NULL);
	if (n > 0)
		execvp(argv[0], argv);
	die("cannot exec: %s", strerror(errno));
}

// Commands.

static void on_signal(int signal)
{
	(void)signal;
	signalled = 1;
}

// The script's and wait's lines come from stdin unbuffered, so that a forked
// child and its parent do not read ahead of each other. False at its end.
static bool read_line(char *line, size_t cap)
{
	size_t n = 0;
	char c;
	for (;;) {
		if (signalled) {
			signalled = 0;
			break;
		}
		ssize_t got = read(STDIN_FILENO, &c, 1);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0 && n == 0)
			return false;
		if (got <= 0 || c == '\n')
			break;
		if (n + 1 == cap)
			die("line too long");
		line[n++] = c;
	}
	line[n] = 0;
	return true;
}

static void sleep_ms(uint64_t ms)
{
	struct timespec left = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
	while (nanosleep(&left, &left) < 0 && errno == EINTR)
		;
}

static void scoped(bool tolerate, int expect, const char *command)
{
	bool was_tolerant = tolerant;
	int was_expected = expected;
	tolerant = tolerate;
	expected = expect;
	run(command);
	tolerant = was_tolerant;
	expected = was_expected;
}

static void command(const char *text)
{
	char verb[64], arg[1024];
	const char *rest = word(text, verb, sizeof verb);
	word(rest, arg, sizeof arg);
#define IS(name) (strcmp(verb, name) == 0)
	if (!*verb || *verb == '#') {
		return;
	} else if (IS("repeat")) {
		uint64_t n = next_number(&rest, 1), before = round_i;
		for (round_i = 0; round_i < n; round_i++)
			run(rest);
		round_i = before;
	} else if (IS("threads")) {
		uint64_t n = next_number(&rest, 1);
		threads(n, rest);
	} else if (IS("via")) {
		via(arg, word(rest, arg, sizeof arg));
	} else if (IS("row")) {
		row(rest);
	} else if (IS("raw")) {
		raw(rest);
	} else if (IS("rows")) {
		const struct op *op;
		for (size_t i = 0; (op = op_at(i)); i++)
			printf("%s %s\n", op->name, op->undo ? op->undo : "-");
	} else if (IS("free")) {
		release_all(arg);
	} else if (IS("try")) {
		scoped(true, 0, rest);
	} else if (IS("expect")) {
		int code = (int)next_number(&rest, 0);
		scoped(false, code, rest);
	} else if (IS("fail")) {
		rest = word(rest, arg, sizeof arg);
		long nth = (long)next_number(&rest, 1);
		int code = (int)next_number(&rest, 1);
		if (((int (*)(const char *, long, int))driver("testcuda_fail"))(arg, nth, code) != 0)
			die("cannot inject a failure into %s", arg);
	} else if (IS("init")) {
		make_current();
	} else if (IS("noinit")) {
		auto_init = false;
	} else if (IS("device")) {
		current_device = (int)next_number(&rest, 0);
		make_current();
	} else if (IS("dlopen")) {
		if (!*arg)
			load_driver();
		else if (!dlopen(arg, RTLD_NOW | RTLD_GLOBAL))
			die("%s", dlerror());
	} else if (IS("fork")) {
		fork_child(rest);
	} else if (IS("exec")) {
		exec_program(rest);
	} else if (IS("ready")) {
		puts("ready");
	} else if (IS("echo")) {
		puts(arg);
	} else if (IS("wait")) {
		fflush(stdout);
		read_line(arg, sizeof arg);
	} else if (IS("sleep")) {
		sleep_ms(next_number(&rest, 0));
	} else if (IS("stats")) {
		must("stats", ((int (*)(void))driver("testcuda_print_stats"))());
	} else if (IS("objects")) {
		print_objects();
	} else if (IS("exit")) {
		exit((int)next_number(&rest, 0));
	} else if (IS("_exit")) {
		fflush(NULL);
		_exit((int)next_number(&rest, 0));
	} else if (IS("kill")) {
		kill(getpid(), (int)next_number(&rest, SIGKILL));
	} else {
		call(verb, rest);
	}
	fflush(stdout);
}

// run splits text at ";" and line ends outside braces.
static void run(const char *text)
{
	while (*text) {
		text = skip(text);
		int depth = 0;
		size_t n = 0;
		for (; text[n] && (depth > 0 || (text[n] != ';' && text[n] != '\n')); n++)
			depth += (text[n] == '{') - (text[n] == '}');
		if (depth != 0)
			die("unbalanced braces: %s", text);
		size_t len = n;
		while (len > 0 && isspace((unsigned char)text[len - 1]))
			len--;
		bool group = len > 1 && text[0] == '{' && text[len - 1] == '}';
		char *copy = strndup(text + group, len - 2 * group);
		if (group)
			run(copy);
		else
			command(copy);
		free(copy);
		text += n + (text[n] != 0);
	}
}

static char *read_file(const char *path)
{
	char *text = NULL;
	size_t cap = 0;
	FILE *f = fopen(path, "r");
	if (!f)
		die("cannot open %s: %s", path, strerror(errno));
	if (getdelim(&text, &cap, 0, f) < 0)
		die("cannot read %s", path);
	fclose(f);
	return text;
}

int main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = on_signal}; // without SA_RESTART
	sigaction(SIGUSR1, &action, NULL);
	if (argc == 3 && strcmp(argv[1], "-f") == 0) {
		run(read_file(argv[2]));
		return 0;
	}
	for (int i = 1; i < argc; i++)
		run(argv[i]);
	char line[65536];
	while (argc == 1 && read_line(line, sizeof line))
		run(line);
	return 0;
}
