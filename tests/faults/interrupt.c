/* Raises a signal at the n-th step of Python code of this thread. A step is an instruction after
 * which CPython checks for signals. The tracer is C and runs no Python itself, so the handler runs
 * where a signal of that moment would have been handled. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

static unsigned char checks[256]; /* by instruction: whether CPython checks for signals after it */
static long wanted, seen;
static int number;
/* Suspended frames outlive the call. CPython 3.12 crashes where another thread ends one that still
 * wants its opcodes traced (sys_trace_instruction_func calls a trace function that is NULL). */
static PyObject *suspendable;

static int is_check(PyFrameObject *frame) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    PyObject *bytes = PyObject_GetAttrString((PyObject *)code, "co_code");
    const int at = PyFrame_GetLasti(frame);
    int result = 1;
    if (bytes == NULL)
        PyErr_Clear();
    else if (at >= 0 && at < PyBytes_GET_SIZE(bytes))
        result = checks[(unsigned char)PyBytes_AS_STRING(bytes)[at]];
    Py_XDECREF(bytes);
    Py_DECREF(code);
    return result;
}

static int trace_opcodes(PyFrameObject *frame) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    const int kinds = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR;
    const int is_suspendable = (code->co_flags & kinds) != 0;
    Py_DECREF(code);
    if (is_suspendable && PyList_Append(suspendable, (PyObject *)frame) < 0) return -1;
    return PyObject_SetAttrString((PyObject *)frame, "f_trace_opcodes", Py_True);
}

static int trace(PyObject *self, PyFrameObject *frame, int kind, PyObject *value) {
    (void)self;
    (void)value;
    if (kind == PyTrace_CALL) {
        if (trace_opcodes(frame) < 0) return -1;
    } else if (kind != PyTrace_OPCODE || !is_check(frame)) {
        return 0;
    }
    if (++seen == wanted) PyErr_SetInterruptEx(number);
    return 0;
}

/* Raises signal `number` at step `at`; `which` is a table of 256 instructions. */
void interrupt_at(long at, int signal_number, const char *which) {
    memcpy(checks, which, sizeof checks);
    wanted = at;
    seen = 0;
    number = signal_number;
    suspendable = PyList_New(0);
    if (suspendable == NULL) return;
    PyEval_SetTrace(trace, NULL);
}

/* Returns the number of steps. */
long interrupt_end(void) {
    PyEval_SetTrace(NULL, NULL);
    for (Py_ssize_t at = 0; suspendable != NULL && at < PyList_GET_SIZE(suspendable); at++) {
        PyObject *frame = PyList_GET_ITEM(suspendable, at);
        if (PyObject_SetAttrString(frame, "f_trace_opcodes", Py_False) < 0) PyErr_Clear();
    }
    Py_CLEAR(suspendable);
    return seen;
}
