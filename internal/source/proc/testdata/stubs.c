// The libraries whose mutations FuzzStubs reads: stubs-amd64.so and
// stubs-arm64.so, stripped, are each machine's
// gcc -shared -nostdlib -Os -fno-asynchronous-unwind-tables -s -Wl,-z,noseparate-code -Wl,-z,max-page-size=4096 -Wl,--build-id=none -o stubs-MACHINE.so stubs.c
// calls-amd64.so, whose calls can be told, is
// gcc -shared -nostdlib -Os -fasynchronous-unwind-tables -fcf-protection=none -fplt -s -Wl,-z,lazy -Wl,-z,max-page-size=4096 -Wl,--build-id=none -o calls-amd64.so stubs.c

int ioctl(int fd, unsigned long request, void *arg);
int close(int fd);

// ask takes the address of close, too, so that its slot may be filled in by
// R_X86_64_GLOB_DAT and its stub lie in .plt.got.
void *ask(int fd, void *arg) {
	ioctl(fd, 0x46, arg);
	close(fd);
	return close;
}
