// A type of objects as CPython has it, or otherwise.
static void code_dealloc(void *code) { __asm__ volatile("" : : "r"(code)); }
static long no_code[2];

struct type {
#ifdef LARGE // objects of a Python without the GIL
	long more[2];
#endif
	long head[3];
	const char *name;
	long sizes[2];
	void *dealloc;
};

#ifdef USER
extern struct type PyCode_Type;
struct type *use(void) { return &PyCode_Type; }
int main(void) { return use()->head[0]; }
#else
struct type PyCode_Type = {
#ifdef NAME
	.name = NAME,
#else
	.name = "code",
#endif
	.sizes = { 176, 1 },
#ifdef DATA
	.dealloc = no_code,
#elif !defined(NONE)
	.dealloc = code_dealloc,
#endif
};
// Neither is left out.
void *uses[] = { code_dealloc, no_code };
#endif
