// Processes that have one PID in turn, each of which allocates. "23 40" from stdin
// makes 40 of PID 23, one after the other, and answers how many there were.
#define _GNU_SOURCE
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int cuMemAlloc_v2(unsigned long *, size_t);

// Only the system call says which PID the child is to have.
static pid_t fork_as(pid_t pid)
{
	struct clone_args args = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&pid, .set_tid_size = 1};
	return syscall(SYS_clone3, &args, sizeof args);
}

int main(void)
{
	int pid, n;
	puts("up");
	fflush(stdout);
	while (scanf("%d %d", &pid, &n) == 2) {
		int made = 0;
		for (int i = 0; i < n; i++) {
			pid_t child = fork_as(pid);
			if (child == 0) {
				unsigned long p;
				cuMemAlloc_v2(&p, 100 + i);
				_exit(0);
			}
			if (child == pid && waitpid(pid, NULL, 0) == pid)
				made++;
		}
		printf("%d\n", made);
		fflush(stdout);
	}
	return 0;
}
