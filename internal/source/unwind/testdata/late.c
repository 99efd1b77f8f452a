/* Code that nobody can know before it calls: a library that was just loaded
 * (argument: its path), or without one code that the program makes, with a frame
 * pointer and then without. Two more arguments have a new thread call the library: how
 * many bytes of its stack lie between the calls, and whether they are written to. */
#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
int gm_test_alloc(unsigned long *, size_t);
__attribute__((noinline)) static int calls(int (*f)(size_t), size_t n)
{
	volatile char room[56];
	room[n] = f(n);
	return room[n];
}
__attribute__((noinline)) static int helper(size_t n)
{
	volatile unsigned long p[6];
	return gm_test_alloc((unsigned long *)&p[n], n) + p[n];
}
struct job {
	int (*f)(size_t);
	size_t room;
	int written;
};
__attribute__((noinline)) static int deep(struct job *j)
{
	volatile char *room = alloca(j->room);
	if (j->written)
		memset((char *)room, 1, j->room);
	int r = calls(j->f, 1);
	return r + room[0];
}
static void *thread(void *arg)
{
	volatile int r = deep(arg);
	return r ? arg : NULL;
}
#if defined(__x86_64__)
static const unsigned char with[] = { 0x55, 0x48, 0x89, 0xe5,	/* push rbp; mov rsp, rbp */
				      0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, /* mov helper, rax */
				      0xff, 0xd0, 0x5d, 0xc3 };		/* call rax; pop rbp; ret */
enum { address = 6 };
#endif
int main(int argc, char **argv)
{
	char line[8];
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	if (argc > 1) {
		void *plugin = dlopen(argv[1], RTLD_NOW);
		if (!plugin)
			return 2;
		struct job j = { (int (*)(size_t))dlsym(plugin, "plugin_allocate"), 0, 0 };
		if (argc < 4) {
			calls(j.f, 1);
		} else {
			pthread_t t;
			j.room = atoi(argv[2]);
			j.written = atoi(argv[3]);
			pthread_create(&t, NULL, thread, &j);
			pthread_join(t, NULL);
		}
	} else {
#if defined(__x86_64__)
		unsigned char *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		int (*f)(size_t) = helper;
		memcpy(code, with, sizeof(with));
		memcpy(code + address, &f, sizeof(f));
		for (int i = 0; i < 10; i++)
			calls((int (*)(size_t))code, 1);
#endif
	}
	puts("done");
	fflush(stdout);
	return fgets(line, sizeof(line), stdin) == NULL;
}
