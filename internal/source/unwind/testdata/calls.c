/* Calls the probed function through frames whose order is known, from main and
 * from a thread. Waits for a line before, and for the end of input after. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
int gm_test_alloc(unsigned long *, size_t);
static volatile unsigned long sink;
__attribute__((noinline)) static int leaf(size_t n)
{
	unsigned long p = 0;
	int r = gm_test_alloc(&p, n);
	sink += p;
	return r + 1;
}
__attribute__((noinline)) static int recurse(int depth, size_t n)
{
	volatile char room[64];
	room[depth & 63] = depth;
	int r = depth ? recurse(depth - 1, n) : leaf(n);
	return r + room[depth & 63];
}
__attribute__((noinline)) static int middle(size_t n) { return recurse(30, n) + 1; }
static void *thread(void *arg)
{
	sink += middle(2);
	return NULL;
}
int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 1;
	char line[8];
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		return 1;
	for (int i = 0; i < count; i++)
		sink += middle(1);
	pthread_t t;
	pthread_create(&t, NULL, thread, NULL);
	pthread_join(t, NULL);
	puts("done");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin))
		;
	return 0;
}
