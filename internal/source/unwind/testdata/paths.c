/* Calls the probed function by 64 paths that agree in ip, sp and depth and
 * differ in six return addresses, 42 frames deep. Arguments: calls, and how
 * the paths follow each other: 0 one path, 1 in turns, 2 at random. */
#include <stdio.h>
#include <stdlib.h>
int gm_test_alloc(unsigned long *, size_t);
static volatile unsigned long sink;
#define FRAME __attribute__((noinline))
FRAME static int deep(int depth, size_t n)
{
	volatile char room[40];
	room[depth] = depth;
	unsigned long p;
	int r = depth ? deep(depth - 1, n) : gm_test_alloc(&p, n);
	return r + room[depth];
}
FRAME static int walk(int level, unsigned path)
{
	volatile char room[24];
	int r;
	room[0] = level;
	if (level == 0)
		r = deep(30, path);
	else if (path >> (level - 1) & 1)
		r = walk(level - 1, path) + 3;
	else
		r = walk(level - 1, path) + 5;
	return r + room[0];
}
int main(int argc, char **argv)
{
	unsigned long count = atol(argv[1]), order = atol(argv[2]), x = 88172645463325252;
	char line[8];
	puts("ready");
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		return 1;
	for (unsigned long i = 0; i < count; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		sink += walk(6, order == 0 ? 0 : order == 1 ? i % 64 : x % 64);
	}
	puts("done");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin))
		;
	return 0;
}
