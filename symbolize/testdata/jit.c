// Maps anonymous code and, with an argument, describes it in the map file that
// perf reads, by the number that the process knows itself by.
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int main(int argc, char **argv) {
	unsigned char *code = mmap(0, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char *bare = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char name[64];
	if (argc > 1) {
		snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
		FILE *f = fopen(name, "w");
		fprintf(f, "%lx 40 first\n", (unsigned long)code);
		fprintf(f, "%lx 80 py::forward:/home/user/train.py\n", (unsigned long)code + 64);
		fprintf(f, "%lx 40 second\n", (unsigned long)code);
		fclose(f);
	}
	printf("code %lx\nbare %lx\nmain %lx\n", (unsigned long)code, (unsigned long)bare, (unsigned long)main);
	fflush(stdout);
	while (getchar() != EOF) {}
	return 0;
}
