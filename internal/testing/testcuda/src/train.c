// train looks like a training loop: a model of 110 million parameters in half
// precision with Adam, its activations, a cache that grows, and a leak.
//
//   train [-steps N] [-interval MS]
//
// -steps 0 goes on for ever. log_metrics keeps 2 MiB of each step and forgets to
// give it back.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cudart.h"

#define NOINLINE __attribute__((noinline))

enum { LAYERS = 12, HIDDEN = 768, VOCABULARY = 50257, SEQUENCE = 1024, BATCH = 8, HALF = 2, FLOAT = 4 };

struct tensor {
	void *data;
	size_t bytes;
};
struct layer {
	struct tensor attention, projection, expand, contract, norm; // weights
	struct tensor saved[4];                                      // activations for backward
};
static struct model {
	struct tensor embedding;
	struct layer layers[LAYERS];
} weights, gradients;
static struct tensor moments[2 * LAYERS];
static struct tensor *cache;
static size_t cached;

static void must(cudaError_t error, const char *what, size_t bytes)
{
	if (error) {
		fprintf(stderr, "train: %s of %zu bytes: %s\n", what, bytes, cudaGetErrorString(error));
		exit(1);
	}
}

NOINLINE static struct tensor tensor_empty(size_t bytes)
{
	struct tensor t = {NULL, bytes};
	must(cudaMalloc(&t.data, bytes), "cudaMalloc", bytes);
	return t;
}

NOINLINE static void tensor_release(struct tensor *t)
{
	must(cudaFree(t->data), "cudaFree", t->bytes);
	t->data = NULL;
}

NOINLINE static void load_layer(struct layer *l)
{
	l->attention = tensor_empty(3ul * HIDDEN * HIDDEN * HALF);
	l->projection = tensor_empty(1ul * HIDDEN * HIDDEN * HALF);
	l->expand = tensor_empty(4ul * HIDDEN * HIDDEN * HALF);
	l->contract = tensor_empty(4ul * HIDDEN * HIDDEN * HALF);
	l->norm = tensor_empty(4ul * HIDDEN * HALF);
}

NOINLINE static void load_model(struct model *m)
{
	m->embedding = tensor_empty(1ul * VOCABULARY * HIDDEN * HALF);
	for (int i = 0; i < LAYERS; i++)
		load_layer(&m->layers[i]);
}

NOINLINE static void optimizer_init(void)
{
	for (int i = 0; i < 2 * LAYERS; i++)
		moments[i] = tensor_empty(12ul * HIDDEN * HIDDEN * FLOAT);
}

NOINLINE static struct tensor load_batch(void)
{
	struct tensor pinned = {NULL, 1ul * BATCH * SEQUENCE * 8};
	must(cudaMallocHost(&pinned.data, pinned.bytes), "cudaMallocHost", pinned.bytes);
	memset(pinned.data, 1, pinned.bytes);
	struct tensor batch = tensor_empty(pinned.bytes);
	must(cudaFreeHost(pinned.data), "cudaFreeHost", pinned.bytes);
	return batch;
}

NOINLINE static void attention_forward(struct layer *l)
{
	struct tensor scores = tensor_empty(12ul * BATCH * SEQUENCE * SEQUENCE * HALF); // twelve heads
	l->saved[0] = tensor_empty(3ul * BATCH * SEQUENCE * HIDDEN * HALF);
	l->saved[1] = tensor_empty(1ul * BATCH * SEQUENCE * HIDDEN * HALF);
	tensor_release(&scores);
}

NOINLINE static void mlp_forward(struct layer *l)
{
	l->saved[2] = tensor_empty(4ul * BATCH * SEQUENCE * HIDDEN * HALF);
	l->saved[3] = tensor_empty(1ul * BATCH * SEQUENCE * HIDDEN * HALF);
}

NOINLINE static struct tensor forward(void)
{
	for (int i = 0; i < LAYERS; i++) {
		attention_forward(&weights.layers[i]);
		mlp_forward(&weights.layers[i]);
	}
	return tensor_empty(1ul * BATCH * SEQUENCE * VOCABULARY * HALF); // logits
}

NOINLINE static void layer_backward(struct layer *l)
{
	struct tensor workspace = tensor_empty(4ul * BATCH * SEQUENCE * HIDDEN * HALF);
	for (int i = 3; i >= 0; i--)
		tensor_release(&l->saved[i]);
	tensor_release(&workspace);
}

NOINLINE static void backward(struct tensor *logits)
{
	struct tensor loss = tensor_empty(logits->bytes);
	tensor_release(logits);
	for (int i = LAYERS - 1; i >= 0; i--)
		layer_backward(&weights.layers[i]);
	tensor_release(&loss);
}

NOINLINE static void optimizer_step(void)
{
	struct tensor norm = {NULL, LAYERS * 12 * FLOAT};
	must(cudaMallocAsync(&norm.data, norm.bytes, NULL), "cudaMallocAsync", norm.bytes);
	must(cudaFreeAsync(norm.data, NULL), "cudaFreeAsync", norm.bytes);
}

NOINLINE static void cache_put(int step)
{
	if (step % 4 || cached == 64)
		return;
	if (!(cache = realloc(cache, (cached + 1) * sizeof *cache)))
		exit(1);
	cache[cached++] = tensor_empty(2ul * SEQUENCE * HIDDEN * HALF);
}

NOINLINE static void log_metrics(void)
{
	struct tensor histogram = tensor_empty(2ul << 20);
	(void)histogram; // the leak
}

NOINLINE static void train_step(int step)
{
	struct tensor batch = load_batch();
	struct tensor logits = forward();
	backward(&logits);
	optimizer_step();
	cache_put(step);
	log_metrics();
	tensor_release(&batch);
}

int main(int argc, char **argv)
{
	long steps = 100, interval = 10;
	for (int i = 1; i < argc; i++) {
		if (i + 1 < argc && strcmp(argv[i], "-steps") == 0)
			steps = atol(argv[++i]);
		else if (i + 1 < argc && strcmp(argv[i], "-interval") == 0)
			interval = atol(argv[++i]);
		else
			return fprintf(stderr, "usage: train [-steps N] [-interval MS]\n"), 2;
	}
	load_model(&weights);
	load_model(&gradients);
	optimizer_init();
	for (long step = 0; steps == 0 || step < steps; step++) {
		train_step((int)step);
		struct timespec pause = {interval / 1000, interval % 1000 * 1000000};
		nanosleep(&pause, NULL);
	}
	size_t free_bytes, total;
	must(cudaMemGetInfo(&free_bytes, &total), "cudaMemGetInfo", 0);
	printf("in use %zu MiB of %zu MiB\n", (total - free_bytes) >> 20, total >> 20);
	return 0;
}
