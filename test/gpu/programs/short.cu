// A short CUDA program: takes as many MiB as it is told, and ends without
// giving them back.
#include <cstdio>
#include <cstdlib>

int main(int argc, char **argv)
{
	void *p = nullptr;
	size_t bytes = strtoull(argv[1], nullptr, 10) << 20;
	cudaError_t err = cudaMalloc(&p, bytes);
	if (err == cudaSuccess)
		err = cudaMemset(p, 0, bytes);
	if (err == cudaSuccess)
		err = cudaDeviceSynchronize();
	if (err != cudaSuccess)
		fprintf(stderr, "%s\n", cudaGetErrorString(err));
	return err != cudaSuccess;
}
