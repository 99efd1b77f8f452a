#define HIDDEN __attribute__((visibility("hidden"), noinline))

HIDDEN void *hidden_helper(void) {
	void *p = __builtin_return_address(0);
	__asm__ volatile("" ::: "memory");
	return p;
}
void *library_return_address(void) {
	void *p = hidden_helper();
	__asm__ volatile("" ::: "memory");
	return p;
}
HIDDEN void *hidden_caller(void) {
	void *p = hidden_helper();
	__asm__ volatile("" ::: "memory");
	return p;
}
void *library_inner(void) {
	void *p = hidden_caller();
	__asm__ volatile("" ::: "memory");
	return p;
}
