//go:build ignore

// A Python extension whose objects lie in memory as PyTorch's do: of 1.13 with OLD,
// else of 2.11. It allocates nothing for the tensors that it says are on a GPU.
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { void *table; const char *name; } Info;
static Info impl_info = {0, "N3c1010TensorImplE"}, storage_info = {0, "N3c1011StorageImplE"}, meta_info = {0, "N5torch8autograd12AutogradMetaE"},
            mul_info = {0, "N5torch8autograd9generated12MulBackward0E"}, leaf_info = {0, "N5torch8autograd14AccumulateGradE"};
static void *impl_functions[] = {0, &impl_info, 0}, *storage_functions[] = {0, &storage_info, 0}, *meta_functions[] = {0, &meta_info, 0},
            *mul_functions[] = {0, &mul_info, 0}, *leaf_functions[] = {0, &leaf_info, 0};

typedef struct {
    void **functions;
    uint64_t count;
#ifdef OLD
    uint64_t weak;
#endif
    void *data, *context, *deleter;
    int8_t device, index;
    int64_t bytes;
} Storage;

typedef struct Node Node;
typedef struct Impl Impl;

typedef struct {
    void **functions;
    char name[32];
    Impl *grad;
    Node *graph;
    void *graph_count;
    Node *leaf; // weak
    void *leaf_count;
    void *rest[7];
    int8_t required;
    int64_t retains;
    int32_t view;
} Meta;

struct Impl {
    void **functions;
    uint64_t count;
#ifdef OLD
    uint64_t weak;
#endif
    Storage *storage;
    Meta *meta;
    void *extra, *version;
#ifdef OLD
    void *interpreter;
#endif
    PyObject *object;
    int64_t dims, sizes[5], strides[5], offset, elements;
    uint16_t type;
    int8_t device, index, engaged;
    char rest[64];
};

typedef struct { Node *node; void *count; uint32_t number; } Edge;

struct Node {
    void **functions;
    void *self, *self_count;
    uint64_t number, order, parent, thread, lock[5];
    Edge *begin, *end, *room;
    void *hooks[6];
    Impl *saved[4];
};

typedef struct {
    PyObject_HEAD
#ifdef OLD
    uint64_t borrowed;
#endif
    Impl *impl;
    PyObject *hooks;
} Tensor;

static int64_t counts[4] = {0, 1 | 1ll << 32};

static Meta *meta_of(Tensor *t) {
    if (!t->impl->meta) {
        t->impl->meta = calloc(1, sizeof(Meta));
        t->impl->meta->functions = meta_functions + 2;
        t->impl->meta->retains = -1;
    }
    return t->impl->meta;
}

static PyObject *tensor_new(PyTypeObject *type, PyObject *args, PyObject *kw) {
    Py_ssize_t n;
    int gpu = 0;
    PyObject *share = 0;
    unsigned long long data = 0;
    if (!PyArg_ParseTuple(args, "n|pOK", &n, &gpu, &share, &data))
        return 0;
    Tensor *t = (Tensor *)type->tp_alloc(type, 0);
    Impl *i = t->impl = calloc(1, sizeof(Impl));
    i->functions = impl_functions + 2;
    i->count = 1;
    i->object = (PyObject *)t;
    i->dims = 2;
    i->sizes[0] = n, i->sizes[1] = 2;
    i->strides[0] = 2, i->strides[1] = 1;
    i->elements = 2 * n;
    i->type = 6;
    if (share && share != Py_None) {
        i->storage = ((Tensor *)share)->impl->storage;
        return (PyObject *)t;
    }
    static char *next = (char *)0x7e0000000000;
    Storage *s = i->storage = calloc(1, sizeof(Storage));
    s->functions = storage_functions + 2;
    s->count = 1;
    s->bytes = 8 * n;
    s->device = gpu, s->index = data ? 0 : gpu ? 1 : -1;
    s->data = data ? (void *)data : gpu ? next : malloc(8 * n);
    next += 1 << 24;
    return (PyObject *)t;
}

static PyObject *address(Tensor *t, PyObject *unused) { return PyLong_FromVoidPtr(t->impl->storage->data); }

static PyObject *set_grad(Tensor *t, PyObject *grad) {
    Meta *m = meta_of(t);
    m->grad = ((Tensor *)grad)->impl;
    m->required = 1;
    m->leaf = (Node *)t->impl;
    m->leaf_count = counts;
    // As PyTorch does: the tensor alone keeps the object of its gradient.
    Py_INCREF(grad);
    Py_RETURN_NONE;
}

// graph(tensor, saved, before): tensor is the product of saved, which goes on with
// the graph of the tensor before.
static PyObject *graph(PyObject *self, PyObject *args) {
    Tensor *t, *saved, *before;
    if (!PyArg_ParseTuple(args, "OOO", &t, &saved, &before))
        return 0;
    Node *n = calloc(1, sizeof(Node));
    n->functions = mul_functions + 2;
    n->saved[1] = saved->impl;
    Py_INCREF(saved);
    n->begin = malloc(2 * sizeof(Edge));
    memset(n->begin, 0, 2 * sizeof(Edge));
    n->end = n->room = n->begin + 2;
    if ((PyObject *)before != Py_None) {
        n->begin[0].node = before->impl->meta->graph;
        n->begin[0].count = counts;
    }
    Node *leaf = calloc(1, sizeof(Node));
    leaf->functions = leaf_functions + 2;
    n->begin[1].node = leaf;
    n->begin[1].count = counts;
    meta_of(t)->graph = n;
    meta_of(t)->graph_count = counts;
    Py_RETURN_NONE;
}

static int traverse(Tensor *t, visitproc visit, void *arg) {
#if PY_VERSION_HEX >= 0x03090000
    if (Py_TYPE(t)->tp_flags & Py_TPFLAGS_HEAPTYPE && Py_TYPE(t)->tp_traverse == (traverseproc)traverse)
        Py_VISIT(Py_TYPE(t));
#endif
    Py_VISIT(t->hooks);
    return 0;
}

static int clear(Tensor *t) {
    Py_CLEAR(t->hooks);
    return 0;
}

static void dealloc(Tensor *t) {
    PyObject_GC_UnTrack(t);
    clear(t);
    Py_TYPE(t)->tp_free(t);
}

static PyMethodDef methods[] = {{"address", (PyCFunction)address, METH_NOARGS}, {"set_grad", (PyCFunction)set_grad, METH_O}, {0}};
static PyTypeObject base = {
    PyVarObject_HEAD_INIT(0, 0).tp_name = "torch._C._TensorBase",
    .tp_basicsize = sizeof(Tensor),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = tensor_new,
    .tp_traverse = (traverseproc)traverse,
    .tp_clear = (inquiry)clear,
    .tp_dealloc = (destructor)dealloc,
    .tp_methods = methods,
};
static PyMethodDef functions[] = {{"graph", graph, METH_VARARGS}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "standin", 0, -1, functions};

PyMODINIT_FUNC PyInit_standin(void) {
    PyObject *m = PyModule_Create(&module);
    if (!m || PyType_Ready(&base) < 0)
        return 0;
    Py_INCREF(&base);
    PyModule_AddObject(m, "TensorBase", (PyObject *)&base);
    return m;
}
