// Stream capture: what is put on a captured stream becomes nodes of a graph.
// Any value but the legacy stream is a stream. None joins another's capture.
#include <pthread.h>
#include <stdlib.h>

#include "driver.h"

struct capture {
	CUstream stream;
	pthread_t thread; // of the stream, where each thread has its own
	CUgraph graph;
	struct capture *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures;

void capture_reset(void)
{
	pthread_mutex_init(&lock, NULL);
	captures = NULL;
}

static struct capture **find(CUstream stream) // under lock
{
	struct capture **link = &captures;
	while (*link && ((*link)->stream != stream ||
			 (stream == (CUstream)CU_STREAM_PER_THREAD && !pthread_equal((*link)->thread, pthread_self()))))
		link = &(*link)->next;
	return link;
}

CUgraph capture_graph(CUstream stream)
{
	pthread_mutex_lock(&lock);
	struct capture *c = *find(stream);
	CUgraph graph = c ? c->graph : NULL;
	pthread_mutex_unlock(&lock);
	return graph;
}

static CUresult begin(CUstream stream, CUgraph graph)
{
	if (!stream || stream == (CUstream)CU_STREAM_LEGACY)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (graph && !block_find(SPACE_OBJECT, (uint64_t)graph, NULL))
		return CUDA_ERROR_INVALID_HANDLE;
	struct capture *c = malloc(sizeof *c);
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*c = (struct capture){stream, pthread_self(), graph, NULL};
	CUresult result = graph ? CUDA_SUCCESS : graph_new(&c->graph);
	pthread_mutex_lock(&lock);
	if (result == CUDA_SUCCESS && *find(stream))
		result = CUDA_ERROR_ILLEGAL_STATE;
	if (result == CUDA_SUCCESS) {
		c->next = captures;
		captures = c;
	}
	pthread_mutex_unlock(&lock);
	if (result != CUDA_SUCCESS)
		free(c);
	return result;
}

static CUresult end(CUstream stream, CUgraph *graph)
{
	if (!graph)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&lock);
	struct capture **link = find(stream), *c = *link;
	if (c)
		*link = c->next;
	pthread_mutex_unlock(&lock);
	*graph = c ? c->graph : NULL;
	free(c);
	return c ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

ON_STREAM(cuStreamBeginCapture, (CUstream stream), 0, begin(stream, NULL))
ON_STREAM(cuStreamBeginCapture_v2, (CUstream stream, int mode), 0, begin(stream, NULL))
ON_STREAM(cuStreamBeginCaptureToGraph, (CUstream stream, CUgraph graph, const CUgraphNode *deps, const void *edges, size_t n, int mode),
	  0, graph ? begin(stream, graph) : CUDA_ERROR_INVALID_HANDLE)
ON_STREAM(cuStreamEndCapture, (CUstream stream, CUgraph *graph), 0, end(stream, graph))
