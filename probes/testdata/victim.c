// A process that says, for each line that it reads, how many bytes of its own
// code are not as its file had them when it began.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static unsigned char before[1 << 16];

int main(int argc, char **argv) {
	int fd = open(argv[1], O_RDONLY);
	struct stat st;
	if (argc != 2 || fstat(fd, &st) || st.st_size > (long)sizeof before)
		return 1;
	if (pread(fd, before, st.st_size, 0) != st.st_size)
		return 1;
	volatile unsigned char *code = mmap(0, st.st_size, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	if (code == MAP_FAILED)
		return 1;
	puts("up");
	fflush(stdout);
	for (char line[8]; fgets(line, sizeof line, stdin);) {
		int changed = 0;
		for (long i = 0; i < st.st_size; i++)
			changed += code[i] != before[i];
		printf("changed %d\n", changed);
		fflush(stdout);
	}
}
