/* Reads the pickle of a flight-recorder dump into columns without building objects for its entries.
 *
 * In: the bytes of a file, which are foreign and may be hostile. Out: numbers as columns, and the few distinct
 * values of what repeats (groups, signatures, stacks). Values are interned by content while the opcodes are
 * walked; an entry becomes a row of the columns as soon as its dict is complete, so only what differs is kept.
 * Most entries repeat an earlier one but for their numbers: those are copied, not read (_pickle_forms.h).
 *
 * Whatever is unusual is declined by returning None: an opcode that is no plain data, a value of another type
 * than the recorder writes, a container that is changed after it was used, a bound that is reached, memory that
 * is not there. The plain reader then decides, so there is one place for messages and for tolerance.
 *
 * Bounds: every read is checked against the end; stack, marks, memo, nodes, children, depth, probes and forms
 * have the limits of _pickle_reader.h. Opcodes: Python's Lib/pickletools.py, Modules/_pickle.c.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_pickle_walk.h"

static PyObject *made(Reader *r, Value value);

static PyObject *made_sequence(Reader *r, const Node *node)
{
    int listed = node->kind == LIST;
    PyObject *whole = listed ? PyList_New(node->count) : PyTuple_New(node->count);
    for (uint32_t i = 0; whole && i < node->count; i++) {
        PyObject *item = made(r, r->children[node->start + i]);
        if (!item || (listed ? PyList_SetItem(whole, i, item) : PyTuple_SetItem(whole, i, item)) < 0)
            Py_CLEAR(whole);
    }
    return whole;
}

static PyObject *made_dict(Reader *r, const Node *node)
{
    PyObject *whole = PyDict_New();
    for (uint32_t i = 0; whole && i < node->count; i += 2) {
        PyObject *key = made(r, r->children[node->start + i]);
        PyObject *value = key ? made(r, r->children[node->start + i + 1]) : NULL;
        if (!value || PyDict_SetItem(whole, key, value) < 0) Py_CLEAR(whole);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return whole;
}

/* The Python object of a value; each node is made once. Recursion is bounded by DEPTH_MAX. */
static PyObject *made(Reader *r, Value value)
{
    double real;
    switch (value.tag) {
    case TRUE_: return PyBool_FromLong(1);
    case FALSE_: return PyBool_FromLong(0);
    case INTEGER: return PyLong_FromLongLong((int64_t)value.bits);
    case FLOATING:
        memcpy(&real, &value.bits, sizeof real);
        return PyFloat_FromDouble(real);
    case NODE: break;
    default: Py_RETURN_NONE;
    }
    Node *node = &r->nodes[value.bits];
    if (!node->made) {
        const char *text = (const char *)r->data + node->start;
        node->made = node->kind == TEXT ? PyUnicode_DecodeUTF8(text, node->count, "strict")
            : node->kind == DICT        ? made_dict(r, node)
                                        : made_sequence(r, node);
    }
    Py_XINCREF(node->made);
    return node->made;
}

static PyObject *made_table(Reader *r, const Table *table)
{
    PyObject *list = PyList_New((Py_ssize_t)table->count);
    for (size_t i = 0; list && i < table->count; i++) {
        PyObject *item = made(r, (Value){NODE, 0, table->nodes[i]});
        if (!item || PyList_SetItem(list, (Py_ssize_t)i, item) < 0) Py_CLEAR(list);
    }
    return list;
}

static int set_column(PyObject *columns, const char *name, const void *items, size_t size)
{
    PyObject *bytes = PyBytes_FromStringAndSize(items, (Py_ssize_t)size);
    int failed = !bytes || PyDict_SetItemString(columns, name, bytes) < 0;
    Py_XDECREF(bytes);
    return !failed;
}

static PyObject *made_columns(const Reader *r)
{
    PyObject *columns = PyDict_New();
    int done = columns != NULL;
    for (int i = 0; done && i < WIDE; i++)
        done = set_column(columns, wide_name[i], r->wide[i], r->rows * sizeof(int64_t));
    for (int i = 0; done && i < TABLES; i++)
        done = set_column(columns, table_name[i], r->narrow[i], r->rows * sizeof(int32_t));
    done = done && set_column(columns, "state", r->state, r->rows)
        && set_column(columns, "retired", r->retired, r->rows);
    if (!done) Py_CLEAR(columns);
    return columns;
}

static PyObject *result(Reader *r)
{
    PyObject *parts[] = {
        made(r, r->stack[0]), made_columns(r), made_table(r, &r->tables[GROUPS]),
        made_table(r, &r->tables[SIGNATURES]), made_table(r, &r->tables[STACKS]),
    };
    int complete = 1;
    for (int i = 0; i < 5; i++) complete = complete && parts[i];
    PyObject *whole = complete ? PyTuple_Pack(5, parts[0], parts[1], parts[2], parts[3], parts[4]) : NULL;
    for (int i = 0; i < 5; i++) Py_XDECREF(parts[i]);
    return whole;
}

static void release(Reader *r)
{
    for (int i = 0; i < WIDE; i++) free(r->wide[i]);
    for (int i = 0; i < TABLES; i++) {
        free(r->narrow[i]);
        free(r->tables[i].nodes);
    }
    free(r->state);
    free(r->retired);
    free(r->stack);
    free(r->memo);
    free(r->nodes);
    free(r->children);
    free(r->slots);
    free(r->forms.known);
    free(r->forms.slots);
    free(r->forms.puts);
    memset(r, 0, sizeof *r);
}

static size_t held_bytes(const Reader *r)
{
    return r->stack_room * sizeof *r->stack + r->memo_room * sizeof *r->memo + r->node_room * sizeof *r->nodes
        + r->child_room * sizeof *r->children + r->slot_count * sizeof *r->slots
        + r->row_room * (WIDE * sizeof(int64_t) + TABLES * sizeof(int32_t) + 2)
        + r->forms.room * sizeof *r->forms.known + r->forms.slot_room * sizeof *r->forms.slots
        + r->forms.put_room * sizeof *r->forms.puts;
}

/* Ready for the next file. Its memory stays unless it is much: to get it anew for each of thousands of files
 * costs more than to read them. */
static void rewind_reader(Reader *r)
{
    for (size_t i = 0; i < r->node_count; i++) Py_XDECREF(r->nodes[i].made);
    if (held_bytes(r) > SPARE_MAX) {
        release(r);
        return;
    }
    r->depth = r->mark_count = r->memo_count = r->memo_end = r->node_count = r->child_count = r->rows = 0;
    r->has_entries = 0;
    for (int i = 0; i < TABLES; i++) r->tables[i].count = 0;
    if (r->slots) memset(r->slots, 0, r->slot_count * sizeof *r->slots);
    Forms *f = &r->forms;
    f->count = f->slot_end = f->put_end = 0;
    f->last = 0;
    f->recording = f->off = 0;
    memset(f->recent, 0, sizeof f->recent);
}

typedef struct { Reader reader; int busy; } State;

static PyObject *read_pickle(PyObject *module, PyObject *args)
{
    PyObject *held;
    char *data;
    Py_ssize_t size, rows_max;
    if (!PyArg_ParseTuple(args, "Sn:read", &held, &rows_max)) return NULL;
    if (PyBytes_AsStringAndSize(held, &data, &size) < 0) return NULL;
    State *state = PyModule_GetState(module);
    if (!state) return NULL;
    Reader own = {0}, *r = state->busy ? &own : &state->reader;
    int nested = state->busy;  /* making objects may run anything, this function too */
    state->busy = 1;
    r->data = (const uint8_t *)data;
    r->size = (size_t)size;
    r->at = 0;
    r->rows_max = rows_max > 0 ? (size_t)rows_max : 0;
    PyObject *answer = walk(r) ? result(r) : Py_NewRef(Py_None);
    rewind_reader(r);
    if (nested) release(r);
    state->busy = nested;
    return answer;
}

#define BOUNDS(type)                                             \
    do {                                                         \
        const type *items = view.buf;                            \
        type low = items[0], high = items[0];                    \
        for (Py_ssize_t i = 1; i < view.len / view.itemsize; i++) { \
            low = items[i] < low ? items[i] : low;               \
            high = items[i] > high ? items[i] : high;            \
        }                                                        \
        least = low, most = high;                                \
    } while (0)

static PyObject *bounds(PyObject *Py_UNUSED(module), PyObject *column)
{
    Py_buffer view;
    long long least = 0, most = 0;
    if (PyObject_GetBuffer(column, &view, PyBUF_FORMAT | PyBUF_ND) < 0) return NULL;
    char kind = view.format && !view.format[1] ? view.format[0] : 0;
    int known = 1;
    if (view.len < 1) PyErr_SetString(PyExc_ValueError, "an empty column has no bounds");
    else if (kind == 'b' && view.itemsize == 1) BOUNDS(int8_t);
    else if (kind == 'i' && view.itemsize == 4) BOUNDS(int32_t);
    else if (kind == 'q' && view.itemsize == 8) BOUNDS(int64_t);
    else known = 0;
    PyBuffer_Release(&view);
    if (!known) PyErr_SetString(PyExc_TypeError, "a column of another type");
    return PyErr_Occurred() ? NULL : Py_BuildValue("(LL)", least, most);
}

static void free_state(void *module)
{
    State *state = PyModule_GetState(module);
    if (state) release(&state->reader);
}

static PyMethodDef methods[] = {
    {"read", read_pickle, METH_VARARGS,
     "read(data, entries_max, /)\n--\n\n"
     "(top of the dump, columns, groups, signatures, stacks), or None where the pickle is unusual."},
    {"bounds", bounds, METH_O,
     "bounds(column, /)\n--\n\n"
     "(least, greatest) of an array of type b, i or q that holds something."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_pickle_columns", .m_size = sizeof(State), .m_methods = methods,
    .m_free = free_state,
};

PyMODINIT_FUNC PyInit__pickle_columns(void)
{
    return PyModuleDef_Init(&definition);
}
