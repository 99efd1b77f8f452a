// A process that maps one file after another at the same address, as fast as
// it can: remap BAIT VICTIM. The address stays, so that /proc/PID/map_files has
// one name for all of them. With BAIT alone it maps that and waits.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
	int bait = open(argv[1], O_RDONLY);
	void *at = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, bait, 0);
	if (at == MAP_FAILED)
		return 1;
	puts("up");
	fflush(stdout);
	if (argc == 2)
		return pause();
	for (int victim = open(argv[2], O_RDONLY);;) {
		mmap(at, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, victim, 0);
		mmap(at, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, bait, 0);
	}
}
