// workload runs a script of CUDA calls, from its arguments or from stdin line
// by line. Commands are separated by ";" or a line's end.
//
//   API [SIZE]           call it; what it allocates is kept
//   FREE-API             end the newest object that this call can end
//   free all | free API  end every object (of that API), newest first
//   raw API [VALUE...]   call it with up to eight integers, and do no more
//   row API [N [BASE]]   N calls (23) of sizes BASE+i (4096), then their frees
//   repeat N COMMAND     SIZE may be BASE+i, i being the round
//   threads N COMMAND    in N threads; what they leave is the caller's
//   via lrl COMMAND      under a stack of via_left and via_right
//   { COMMAND; ... }     one command made of many
//   try COMMAND          a call's failure is no end; prints "result N"
//   expect N COMMAND     calls must return N
//   fail API NTH CODE    inject a failure
//   init                 make the primary context current: otherwise a thread's
//                        first driver call does, unless it is raw
//   device N             its primary context becomes current
//   dlopen [PATH]        load libcuda.so.1, or PATH, now
//   fork COMMAND         in a child, awaited; prints "child PID status N"
//   exec PATH ARG...     replace this process
//   ready | echo WORD    print "ready" | WORD
//   sleep MS | exit [N] | _exit [N] | kill SIGNAL
//   stats | objects      print the driver's ledger | what is kept, as JSON
//   rows                 print every API with a row, and what ends it
//   export FILE          write the newest object's cuIpcMemHandle
//   import FILE          open the one in it
//   words NAME WORD...   fill a buffer of the thread's own: a WORD is a number,
//                        N+i, N:64, another buffer's NAME.INDEX or &NAME, or
//                        client or deviceN, as the kernel driver calls them;
//                        to=N goes to word N
//   ioctl NR SIZE NAME   a request to the kernel driver, with a buffer or an
//                        address; its result is 0 or errno
//   print NAME           print a buffer's words
//   tensor SIZE          of a caching allocator, which tells libc10 of it, or, with
//                        result 2, that it has no memory left
//   untensor [N]         take back the Nth (0) that is left
//   empty_cache          give its free segments back
//   tensors              print the bytes that it has handed out, and holds
//   pool FIRST SECOND    its requests on this thread are met from a private pool,
//   unpool               which libc10_cuda is told of, until then
//   segments [FIRST SECOND]  print how they are divided: see print_segments
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
#include <unistd.h>

#include "script.h"

static void run(const char *text);

// Stacks.

static void via(const char *path, const char *command);

__attribute__((noinline)) void via_left(const char *path, const char *command)
{
	via(path, command);
}

__attribute__((noinline)) void via_right(const char *path, const char *command)
{
	via(path, command);
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
	struct script script; // at its start, then at its end
};

static void *thread_main(void *arg)
{
	struct thread *t = arg;
	script = t->script;
	run(t->command);
	t->script = script;
	return NULL;
}

static void threads(size_t n, const char *command)
{
	struct thread *all = calloc(n, sizeof *all);
	for (size_t i = 0; i < n; i++) {
		all[i] = (struct thread){.command = command, .script = {.round = i, .expected = script.expected, .tolerant = script.tolerant}};
		if (pthread_create(&all[i].id, NULL, thread_main, &all[i]) != 0) {
			sleep(1); // a thread before may be on its way to an exec, which ends this one
			die("cannot start a thread");
		}
	}
	for (size_t i = 0; i < n; i++) {
		pthread_join(all[i].id, NULL);
		struct object **link = &all[i].script.objects;
		while (*link)
			link = &(*link)->next;
		*link = script.objects;
		script.objects = all[i].script.objects;
	}
	free(all);
}

static void fork_child(const char *command)
{
	int status;
	pid_t pid = fork();
	if (pid < 0)
		die("cannot fork: %s", strerror(errno));
	if (pid == 0) {
		script.has_context = false;
		script.objects = NULL; // the parent's, which mean nothing here
		run(command);
		exit(0);
	}
	if (waitpid(pid, &status, 0) != pid)
		die("cannot wait: %s", strerror(errno));
	printf("child %d status %d\n", pid, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static void exec_program(const char *rest)
{
	char *words = strdup(rest), *argv[17] = {strtok(words, " ")};
	for (int n = 1; n < 16 && argv[n - 1]; n++)
		argv[n] = strtok(NULL, " ");
	execvp(argv[0], argv);
	die("cannot exec: %s", strerror(errno));
}

// Commands.

static void scoped(bool tolerate, int expect, const char *command)
{
	struct script before = script;
	script.tolerant = tolerate;
	script.expected = expect;
	run(command);
	script.tolerant = before.tolerant;
	script.expected = before.expected;
}

static void command(const char *text)
{
	char verb[64], arg[1024];
	const char *rest = word(text, verb, sizeof verb);
	const char *more = word(rest, arg, sizeof arg);
#define IS(name) (strcmp(verb, name) == 0)
	if (!*verb) {
		return;
	} else if (IS("repeat")) {
		uint64_t n = next_number(&rest, 1), before = script.round;
		for (script.round = 0; script.round < n; script.round++)
			run(rest);
		script.round = before;
	} else if (IS("threads")) {
		uint64_t n = next_number(&rest, 1);
		threads(n, rest);
	} else if (IS("via")) {
		via(arg, more);
	} else if (IS("row")) {
		row(rest);
	} else if (IS("raw")) {
		raw(rest);
	} else if (IS("rows")) {
		for (const struct op *op = ops; op->name; op++)
			printf("%s %s\n", op->name, op->undo ? op->undo : "-");
	} else if (IS("free")) {
		release_all(arg);
	} else if (IS("try")) {
		scoped(true, 0, rest);
	} else if (IS("expect")) {
		int code = (int)next_number(&rest, 0);
		scoped(false, code, rest);
	} else if (IS("fail")) {
		uint64_t nth = next_number(&more, 1), code = next_number(&more, 1);
		SETUP("testcuda_fail", (uint64_t)arg, nth, code);
	} else if (IS("init")) {
		make_current();
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
	} else if (IS("ready") || IS("echo")) {
		puts(IS("echo") ? arg : verb);
	} else if (IS("sleep")) {
		usleep((useconds_t)next_number(&rest, 0) * 1000);
	} else if (IS("stats")) {
		SETUP("testcuda_print_stats", 0);
	} else if (IS("objects")) {
		print_objects();
	} else if (IS("export")) {
		if (!script.objects)
			die("nothing to export");
		export_ipc(arg, script.objects);
	} else if (IS("import")) {
		import_ipc(arg);
		call("cuIpcOpenMemHandle_v2", "");
		import_ipc(NULL);
	} else if (IS("words")) {
		words(rest);
	} else if (IS("ioctl")) {
		request(rest);
	} else if (IS("print")) {
		print_words(arg);
	} else if (IS("tensor")) {
		make_current();
		check(verb, tensor(next_number(&rest, 512)));
	} else if (IS("untensor")) {
		tensor_free(next_number(&rest, 0));
	} else if (IS("empty_cache")) {
		empty_cache();
	} else if (IS("tensors")) {
		print_tensors();
	} else if (IS("segments")) {
		uint64_t first = next_number(&rest, 0);
		print_segments(first, next_number(&rest, 0));
	} else if (IS("pool")) {
		make_current();
		uint64_t first = next_number(&rest, 0);
		pool(first, next_number(&rest, 0));
	} else if (IS("unpool")) {
		unpool();
	} else if (IS("exit")) {
		exit((int)next_number(&rest, 0));
	} else if (IS("_exit")) {
		_exit((int)next_number(&rest, 0));
	} else if (IS("kill")) {
		raise((int)next_number(&rest, SIGKILL));
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

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		run(argv[i]);
	// Unbuffered, so that a program that takes this one's place reads on.
	setvbuf(stdin, NULL, _IONBF, 0);
	char *line = NULL;
	size_t cap = 0;
	while (argc == 1 && getline(&line, &cap, stdin) >= 0)
		run(line);
	return 0;
}
