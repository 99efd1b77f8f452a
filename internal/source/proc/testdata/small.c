// The library whose mutations FuzzFunctions reads: small.so is
// gcc -shared -nostdlib -Os -s -Wl,-z,noseparate-code -Wl,--build-id=none -o small.so small.c
// With -DUSELESS it has nothing of CUDA's.
#ifdef USELESS
int nothing(void) { return 0; }
#else
int cuMemAlloc_v2(void) { return 0; }
int cuMemFree_v2(void) { return 1; }
#endif
