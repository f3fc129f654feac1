/* Python is not linked: its functions are looked up when it is needed first, in the process or in a library that is opened then. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "location.h"
#include "python.h"
#include "status.h"
#include "text.h"

#define STRING_OF(number) #number
#define TEXT_OF(number) STRING_OF(number)
#define PYTHON_VERSION TEXT_OF(PY_MAJOR_VERSION) "." TEXT_OF(PY_MINOR_VERSION)

#define FUNCTIONS(X) \
    X(Py_IsInitialized) X(Py_GetVersion) X(Py_PreInitialize) X(PyPreConfig_InitIsolatedConfig) X(PyConfig_InitIsolatedConfig) X(PyConfig_SetBytesString) \
    X(PyConfig_Clear) X(Py_InitializeFromConfig) X(PyStatus_Exception) X(PyGILState_Ensure) X(PyGILState_Release) X(PyEval_SaveThread) X(PyCapsule_Import) \
    X(PyErr_Fetch) X(PyErr_NormalizeException) X(PyObject_Str) X(PyUnicode_AsUTF8) X(PyErr_Clear) X(PySys_GetObject) X(PyUnicode_DecodeFSDefault) \
    X(PyList_Insert) X(PyGILState_GetThisThreadState) X(PyImport_ImportModule)
#define MEMBER(name) __typeof__(&name) name;
static struct { FUNCTIONS(MEMBER) } python;

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t attached_threads;
static const Bridge *table;     /* atomic; NULL before the start */
static bool is_forked;
static __thread bool is_ready;

/* Look all functions up. Returns the name of the first that is not found, or NULL. */
static const char *look_up(void *library) {
#define LOOK_UP(name) if ((python.name = (__typeof__(&name))(uintptr_t)dlsym(library, #name)) == NULL) return #name;
    FUNCTIONS(LOOK_UP)
    return NULL;
}

static OrtStatus *require_version(const char *found, const char *where) {
    size_t length = strlen(PYTHON_VERSION);
    if (strncmp(found, PYTHON_VERSION, length) == 0 && (found[length] < '0' || found[length] > '9'))
        return NULL;
    return make_status(ORT_FAIL, "expected Python " PYTHON_VERSION ", for which this libonnxruntime was built, got %.20s (%s)", found, where);
}

/* Open libpython. Its symbols become those of the process, because extension modules expect them there. */
static OrtStatus *open_python(const Location *location) {
    RETURN_IF(require_version(location->version, location->executable));
    void *library = dlopen(location->library, RTLD_NOW | RTLD_GLOBAL);
    if (library == NULL)
        return make_status(ORT_FAIL, "expected the shared library of Python " PYTHON_VERSION " at %s: %s", location->library, dlerror());
    const char *absent = look_up(library);
    if (absent != NULL)
        return make_status(ORT_FAIL, "expected the shared library of Python " PYTHON_VERSION " at %s, it has no function %s", location->library, absent);
    return NULL;
}

static OrtStatus *failed(const PyStatus *status, const Location *location) {
    return make_status(ORT_FAIL, "expected Python to start with %s, got: %s", location->executable, status->err_msg != NULL ? status->err_msg : "an error");
}

/* Start the interpreter, isolated from the environment variables of Python; signals, locale, arguments and streams of the process stay as they are. */
static OrtStatus *initialize(const Location *location) {
    PyPreConfig before;
    python.PyPreConfig_InitIsolatedConfig(&before);
    before.configure_locale = 0;
    before.utf8_mode = 1;
    PyStatus status = python.Py_PreInitialize(&before);
    if (python.PyStatus_Exception(status))
        return failed(&status, location);
    PyConfig config;
    python.PyConfig_InitIsolatedConfig(&config);
    config.install_signal_handlers = 0;
    config.parse_argv = 0;
    status = python.PyConfig_SetBytesString(&config, &config.program_name, location->executable);
    if (!python.PyStatus_Exception(status))
        status = python.PyConfig_SetBytesString(&config, &config.executable, location->executable);
    if (!python.PyStatus_Exception(status))
        status = python.Py_InitializeFromConfig(&config);
    python.PyConfig_Clear(&config);
    if (python.PyStatus_Exception(status))
        return failed(&status, location);
    if (location->path[0] != '\0') {
        PyObject *folder = python.PyUnicode_DecodeFSDefault(location->path);       /* stays for the life of the process */
        if (folder == NULL || python.PyList_Insert(python.PySys_GetObject("path"), 0, folder) < 0)
            python.PyErr_Clear();
    }
    return NULL;
}

static OrtStatus *import_bridge(const Bridge **found) {
    PyObject *module = python.PyImport_ImportModule("ortrain._native.bridge");      /* stays for the life of the process */
    *found = module == NULL ? NULL : python.PyCapsule_Import(BRIDGE_CAPSULE, 0);
    if (*found != NULL)
        return (*found)->layout == BRIDGE_LAYOUT ? NULL : make_status(ORT_FAIL, "expected the ortrain that this libonnxruntime belongs to, got another "
                                                                      "version: `python -m ortrain native install` puts the right library in place");
    PyObject *type = NULL, *value = NULL, *trace = NULL;
    python.PyErr_Fetch(&type, &value, &trace);
    python.PyErr_NormalizeException(&type, &value, &trace);
    PyObject *text = value == NULL ? NULL : python.PyObject_Str(value);
    const char *message = text == NULL ? NULL : python.PyUnicode_AsUTF8(text);
    OrtStatus *status = make_status(ORT_FAIL, "expected Python to import ortrain, got: %s", message != NULL ? message : "an error");
    python.PyErr_Clear();
    return status;
}

static void after_fork(void) { is_forked = true; }

/* At the end of a thread. */
static void detach(void *thread) {
    const Bridge *bridge = running_bridge();
    if (bridge != NULL)
        bridge->detach_thread(thread);
}

/* Start the interpreter and import the engine with the signal handlers of the process as they were: importing Python's signal module replaces that of SIGINT. */
static OrtStatus *initialize_and_import(const Location *location, const Bridge **found) {
    struct sigaction before[NSIG], now;
    bool is_known[NSIG] = { false };
    for (int number = 1; number < NSIG; number++)
        is_known[number] = sigaction(number, NULL, &before[number]) == 0;
    OrtStatus *status = initialize(location);
    if (status == NULL) {
        status = import_bridge(found);
        if (status == NULL)
            (*found)->own_interpreter();
        python.PyEval_SaveThread();
    }
    for (int number = 1; number < NSIG; number++)
        if (is_known[number] && sigaction(number, NULL, &now) == 0 && now.sa_handler != before[number].sa_handler)
            sigaction(number, &before[number], NULL);
    return status;
}

/* Join the interpreter of the process, or start one. The caller holds `starting`. */
static OrtStatus *start(void) {
    const Bridge *found = NULL;
    bool is_running = look_up(RTLD_DEFAULT) == NULL && python.Py_IsInitialized();
    OrtStatus *status = NULL;
    if (!is_running) {
        Location location = { NULL, NULL, NULL, NULL };
        status = find_python(&location);
        if (status == NULL)
            status = open_python(&location);
        is_running = status == NULL && python.Py_IsInitialized();          /* by a host that does not show its symbols */
        if (status == NULL && !is_running)
            status = initialize_and_import(&location, &found);
        free_location(&location);
    }
    if (status == NULL && is_running) {
        RETURN_IF(require_version(python.Py_GetVersion(), "the host's"));
        PyGILState_STATE state = python.PyGILState_Ensure();
        status = import_bridge(&found);
        python.PyGILState_Release(state);
    }
    if (status == NULL) {
        pthread_key_create(&attached_threads, detach);
        pthread_atfork(NULL, NULL, after_fork);
        __atomic_store_n(&table, found, __ATOMIC_RELEASE);
    }
    return status;
}

static OrtStatus *start_once(void) {
    fenv_t mode;
    pthread_mutex_lock(&starting);
    fegetenv(&mode);
    OrtStatus *status = __atomic_load_n(&table, __ATOMIC_ACQUIRE) == NULL ? start() : NULL;
    fesetenv(&mode);
    pthread_mutex_unlock(&starting);
    return status;
}

const Bridge *running_bridge(void) {
    const Bridge *bridge = __atomic_load_n(&table, __ATOMIC_ACQUIRE);
    return bridge == NULL || is_forked || *bridge->is_closed ? NULL : bridge;
}

OrtStatus *enter_engine(const Bridge **bridge) {
    *bridge = running_bridge();
    if (*bridge == NULL) {
        if (is_forked)
            return make_status(ORT_FAIL, "expected the process that first called libonnxruntime, this is a child that it has forked");
        RETURN_IF(start_once());
        if ((*bridge = running_bridge()) == NULL)
            return make_status(ORT_FAIL, "expected a running Python, the interpreter of this process has ended");
    }
    if (!is_ready) {
        /* a state of the thread that is kept, because making one for every call would take longer than a small step */
        is_ready = true;
        if (python.PyGILState_GetThisThreadState() == NULL)
            pthread_setspecific(attached_threads, (*bridge)->attach_thread());
    }
    return NULL;
}

void release_object(void *object) {
    const Bridge *bridge;
    if (running_bridge() == NULL)
        return;
    OrtStatus *status = enter_engine(&bridge);
    if (status == NULL)
        bridge->release(object);
    else
        api_ReleaseStatus(status);
}
