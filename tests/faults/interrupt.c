/* Raises a signal at the n-th step of Python code of this thread. A step is an instruction behind
 * which CPython looks for signals; the tracer is C and runs no Python itself, so that the handler
 * runs where a signal of that moment would have been handled. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>

static unsigned char checks[256]; /* by instruction: whether signals are looked for behind it */
static long wanted, seen;
static int number;

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

static int trace(PyObject *self, PyFrameObject *frame, int kind, PyObject *value) {
    (void)self;
    (void)value;
    if (kind == PyTrace_CALL) {
        if (PyObject_SetAttrString((PyObject *)frame, "f_trace_opcodes", Py_True) < 0) return -1;
    } else if (kind != PyTrace_OPCODE || !is_check(frame)) {
        return 0;
    }
    if (++seen == wanted) PyErr_SetInterruptEx(number);
    return 0;
}

/* The signal `number` at step `at`; `which` is a table of 256 instructions. */
void interrupt_at(long at, int signal_number, const char *which) {
    memcpy(checks, which, sizeof checks);
    wanted = at;
    seen = 0;
    number = signal_number;
    PyEval_SetTrace(trace, NULL);
}

/* How many steps there were. */
long interrupt_end(void) {
    PyEval_SetTrace(NULL, NULL);
    return seen;
}
