// The libraries whose mutations FuzzObjects reads: objects-amd64.so and
// objects-arm64.so, stripped, are each machine's
// gcc -shared -nostdlib -fPIC -Os -s -fno-asynchronous-unwind-tables -Wl,-Bsymbolic,-z,noseparate-code,-z,max-page-size=4096,--build-id=none -o objects-MACHINE.so objects.c

extern void elsewhere(void);
static void here(void) {}
static const char text[] = "text";

// Pointers to data and to code of this file, to another file's, and to nothing.
struct {
	const char *text;
	void (*here)(void);
	void (*elsewhere)(void);
	void *none;
} pointers = { text, here, elsewhere, 0 };

char empty[4096];
