/* Extension types as Cython makes them, of any words: words.type(name, words, objects, gc, base, weak) makes a type
 * whose objects have so many words after their head, of which those with a bit are objects, and one is for weak references. words.fill(object, ...) sets
 * them: to a number, or to a reference. Nothing is ever freed. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static struct made {
	PyTypeObject *type;
	unsigned objects; /* a bit for each word */
} all[64];
static int made;

static unsigned objects_of(PyTypeObject *t)
{
	unsigned objects = 0;
	for (; t; t = t->tp_base)
		for (int i = 0; i < made; i++)
			if (all[i].type == t)
				objects |= all[i].objects;
	return objects;
}

static int traverse(PyObject *o, visitproc visit, void *arg)
{
	PyObject **words = (PyObject **)((char *)o + sizeof(PyObject));
	unsigned objects = objects_of(Py_TYPE(o));
	for (int i = 0; i < 32; i++)
		if (objects & 1u << i)
			Py_VISIT(words[i]);
	return 0;
}

static PyObject *new_type(PyObject *self, PyObject *args)
{
	const char *name;
	int words, objects, gc, weak = 0;
	PyObject *base = NULL;
	if (!PyArg_ParseTuple(args, "siii|Oi", &name, &words, &objects, &gc, &base, &weak) || made == 64)
		return NULL;
	PyTypeObject *t = calloc(1, sizeof *t);
	((PyObject *)t)->ob_refcnt = 1000;
	t->tp_name = strdup(name);
	t->tp_basicsize = sizeof(PyObject) + 8 * words;
	t->tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | (gc ? Py_TPFLAGS_HAVE_GC : 0);
	t->tp_traverse = gc ? traverse : NULL;
	t->tp_new = PyType_GenericNew;
	t->tp_weaklistoffset = weak ? sizeof(PyObject) + 8 * weak : 0;
	t->tp_base = (PyTypeObject *)(base == Py_None ? NULL : base);
	if (PyType_Ready(t) < 0)
		return NULL;
	all[made].type = t, all[made++].objects = objects;
	return (PyObject *)t;
}

static PyObject *fill(PyObject *self, PyObject *args)
{
	PyObject *o = PyTuple_GetItem(args, 0);
	char *to = (char *)o + sizeof(PyObject);
	unsigned objects = objects_of(Py_TYPE(o));
	for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(args); i++, to += 8) {
		PyObject *x = PyTuple_GET_ITEM(args, i);
		if (objects & 1u << (i - 1)) {
			Py_INCREF(x);
			*(PyObject **)to = x;
		} else {
			*(unsigned long long *)to = PyLong_AsUnsignedLongLongMask(x);
		}
	}
	Py_INCREF(o);
	return o;
}

static PyMethodDef methods[] = {{"type", new_type, METH_VARARGS, ""}, {"fill", fill, METH_VARARGS, ""}, {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "words", "", -1, methods};
PyMODINIT_FUNC PyInit_words(void) { return PyModule_Create(&module); }
