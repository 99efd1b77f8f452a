// churn calls CUDA from very many stacks, processes and libraries.
//
//   churn short DIR LIBRARIES PROCESSES   so many processes, one after the other:
//       each maps DIR/N/libcuda.so.1, allocates once and ends. It stops ten
//       times, prints "part" and waits for a line.
//   churn long LIBRARY STACKS             allocates and frees from so many
//       different stacks, again and again, and keeps one in a hundred of the
//       first round. A line on stdin ends it: it prints what it holds, and waits
//       for another.
#include <dlfcn.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int (*allocate)(uint64_t *, size_t), (*release)(uint64_t);

static void library(const char *path)
{
	void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!h || !(allocate = dlsym(h, "cuMemAlloc_v2")) || !(release = dlsym(h, "cuMemFree_v2"))) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
}

// Each bit of path is one of two calls: 17 of them make 131,072 stacks.
__attribute__((noinline)) static uint64_t walk(unsigned path, int left, size_t bytes)
{
	uint64_t p = 0;
	if (left == 0) {
		if (allocate(&p, bytes) != 0)
			exit(2);
		return p;
	}
	if (path & 1)
		p = walk(path >> 1, left - 1, bytes);
	else
		p = walk(path >> 1, left - 1, bytes);
	__asm__ volatile("" : "+r"(p)); // no tail call, and two calls that differ
	return p;
}

static void line(void)
{
	char buffer[64];
	if (!fgets(buffer, sizeof buffer, stdin))
		exit(3);
}

static int shorts(const char *dir, int libraries, int processes)
{
	for (int i = 0; i < processes; i++) {
		pid_t child = fork();
		if (child == 0) {
			char path[4096];
			snprintf(path, sizeof path, "%s/%d/libcuda.so.1", dir, i % libraries);
			library(path);
			walk(i, 17, 4096);
			_exit(0);
		}
		int status;
		if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
			return 4;
		if ((i + 1) % (processes / 10) == 0) {
			puts("part");
			fflush(stdout);
			line();
		}
	}
	return 0;
}

static int lasts(const char *path, unsigned stacks)
{
	library(path);
	puts("ready");
	fflush(stdout);
	line();
	uint64_t held = 0;
	struct pollfd in = {.fd = 0, .events = POLLIN};
	for (int round = 0;; round++) {
		for (unsigned i = 0; i < stacks; i++) {
			uint64_t p = walk(i, 17, 1024);
			if (round == 0 && i % 100 == 0)
				held += 1024;
			else if (release(p) != 0)
				return 5;
			if (i % 64 == 0)
				usleep(1000); // some tens of thousands a second
		}
		if (round < 2) {
			puts("round");
			fflush(stdout);
		}
		if (poll(&in, 1, 0) > 0)
			break;
	}
	line();
	printf("%lu\n", (unsigned long)held);
	fflush(stdout);
	line();
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 5 && strcmp(argv[1], "short") == 0)
		return shorts(argv[2], atoi(argv[3]), atoi(argv[4]));
	if (argc == 4 && strcmp(argv[1], "long") == 0)
		return lasts(argv[2], atoi(argv[3]));
	return 64;
}
