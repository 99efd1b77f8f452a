/* Calls the probed function from a signal handler, between two instructions. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
int gm_test_alloc(unsigned long *, size_t);
static volatile unsigned long sink;
static volatile int *page;
static void handler(int sig)
{
	unsigned long p;
	sink += gm_test_alloc(&p, sig);
	mprotect((void *)page, 4096, PROT_READ);
}
__attribute__((noinline)) static void interrupted(void)
{
	sink += *page; /* SIGSEGV, and once more after the handler */
	sink++;
}
int main(void)
{
	char line[8];
	page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	signal(SIGSEGV, handler);
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		return 1;
	volatile int count = 10;
	for (int i = 0; i < count; i++) {
		interrupted();
		mprotect((void *)page, 4096, PROT_NONE);
	}
	puts("done");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin))
		;
	return 0;
}
