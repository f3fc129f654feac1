"""The functions of the engine that the C library calls, in a table that it finds in the capsule `table`.

Every function takes the GIL, catches every error, and returns -1 after storing its code and message."""
from cpython.pycapsule cimport PyCapsule_New
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport calloc
from libc.string cimport memset, strdup
cimport cython
cimport numpy as cnp
from ortrain._core.fast_path cimport FastPath
from ortrain._native.values cimport (BucketReceiver, BufferContents, BufferKind, BufferList, Call, Content, Description, Descriptions, Failure, Metadata,
                                     ModelInterface, OrtGradientsReadyFunction, PropertyValue, Settings, Source, Strings, TrainingNames, array_of, cbool,
                                     content_of, describe, set_strings, text_copy, value_of, view_of, GRADIENTS, MOMENTS, PARAMETERS)

import atexit
import gc

from ortrain._facade_runtime.outcomes import code_of, message_of
from ortrain._native import sessions
from ortrain.enums import PropertyType

cnp.import_array()

cdef extern from "Python.h":
    int PyGILState_Ensure() nogil
    void *PyEval_SaveThread() nogil
    void PyEval_RestoreThread(void *) nogil
    void PyThreadState_Clear(void *) nogil
    void PyThreadState_DeleteCurrent() nogil

cdef extern from "bridge.h":
    const char *BRIDGE_CAPSULE
    size_t BRIDGE_LAYOUT
    ctypedef struct Bridge:
        size_t layout
        const cbool *is_closed
        void (*own_interpreter)() noexcept nogil
        void *(*attach_thread)() noexcept nogil
        void (*detach_thread)(void *) noexcept nogil
        void (*release)(void *) noexcept nogil
        int (*set_seed)(int64_t, Failure *) noexcept nogil
        int (*register_operators)(const char *, Failure *) noexcept nogil
        int (*load_state)(const Source *, void **, Failure *) noexcept nogil
        int (*save_state)(void *, const char *, cbool, Failure *) noexcept nogil
        int (*set_property)(void *, const char *, const PropertyValue *, Failure *) noexcept nogil
        int (*get_property)(void *, const char *, PropertyValue *, Failure *) noexcept nogil
        int (*describe_parameter)(void *, const char *, Description *, Failure *) noexcept nogil
        int (*get_parameter)(void *, const char *, Content **, Failure *) noexcept nogil
        int (*update_parameter)(void *, const char *, Content *, Failure *) noexcept nogil
        int (*create_training_session)(const Settings *, void *, const Source *, TrainingNames *, void **, Failure *) noexcept nogil
        int (*train_step)(void *, const Call *, Failure *) noexcept nogil
        int (*eval_step)(void *, const Call *, Failure *) noexcept nogil
        int (*optimizer_step)(void *, const uint8_t *, Failure *) noexcept nogil
        int (*reset_gradients)(void *, Failure *) noexcept nogil
        int (*set_learning_rate)(void *, float, Failure *) noexcept nogil
        int (*get_learning_rate)(void *, float *, Failure *) noexcept nogil
        int (*register_linear_schedule)(void *, int64_t, int64_t, float, Failure *) noexcept nogil
        int (*schedule_step)(void *, Failure *) noexcept nogil
        int (*parameters_size)(void *, cbool, size_t *, Failure *) noexcept nogil
        int (*copy_parameters)(void *, Content *, cbool, Failure *) noexcept nogil
        int (*copy_buffer)(void *, Content *, cbool, Failure *) noexcept nogil
        int (*export_model)(void *, const char *, const char *const *, size_t, Failure *) noexcept nogil
        int (*moment_names)(void *, Strings *, Failure *) noexcept nogil
        int (*flat_buffers)(void *, BufferKind, const char *, BufferList *, Failure *) noexcept nogil
        int (*buffer_value)(void *, const char *, Content **, Failure *) noexcept nogil
        int (*on_gradients_ready)(void *, BucketReceiver, OrtGradientsReadyFunction, void *, size_t, Failure *) noexcept nogil
        void (*close_training_session)(void *) noexcept nogil
        int (*create_session)(const Settings *, const Source *, ModelInterface *, void **, Failure *) noexcept nogil
        int (*run)(void *, const Call *, Failure *) noexcept nogil
        int (*end_profiling)(void *, const char *, Failure *) noexcept nogil
        void (*close_session)(void *) noexcept nogil


cdef int fail(Failure *failure, object error) except -2:
    """Store an error; return -1."""
    failure.code = code_of(error)
    failure.message = strdup(message_of(error).encode("utf-8", "replace"))
    return -1


cdef str text_of(const char *data):
    """Return a text of the program; what is not UTF-8 survives the way back, as in paths."""
    return (<bytes>data).decode("utf-8", "surrogateescape")


cdef list texts_of(const Strings *strings):
    return [text_of(strings.items[i]) for i in range(strings.count)]


cdef object source_of(const Source *source):
    """Return a path, bytes, or None."""
    if source.path != NULL:
        return text_of(source.path)
    return None if source.data == NULL else (<const char *>source.data)[:source.size]


cdef object settings_of(const Settings *given):
    """Return the options of a session."""
    values = {text_of(given.initializers.items[i]): array_of(given.initializer_values[i]) for i in range(given.initializers.count)}
    dimensions = [(text_of(given.dimensions.items[i]), given.sizes[i], bool(given.by_denotation[i])) for i in range(given.dimensions.count)]
    files = {text_of(given.files.items[i]): view_of(&given.file_contents[i]) for i in range(given.files.count)}
    return sessions.Settings(given.threads, bool(given.profiles), dict(zip(texts_of(&given.keys), texts_of(&given.values))), dimensions, values, files)


cdef object run_options_of(const uint8_t *terminate):
    """Return the run options of a call, None without a flag."""
    cdef cnp.npy_intp size = 1
    if terminate == NULL:
        return None
    return sessions.ProgramRunOptions(cnp.PyArray_SimpleNewFromData(1, &size, cnp.NPY_UINT8, <void *>terminate))


cdef void *handed_over(object made) noexcept:
    """Return an object with a reference that the program owns."""
    Py_INCREF(made)
    return <void *>made


# ---- threads and objects

cdef cbool is_closed = 0


def close():
    """Make the library refuse calls from now on; called when the interpreter begins to end."""
    global is_closed
    is_closed = 1


cdef bint owns_interpreter = False


cdef void own_interpreter() noexcept with gil:
    """Collect cycles when sessions are closed from now on, which is quick because the objects of the start are not looked at again."""
    global owns_interpreter
    owns_interpreter = True
    gc.collect()
    gc.freeze()


cdef void *attach_thread() noexcept nogil:
    """Give a thread of the program a state that stays until detach_thread(), and return it."""
    PyGILState_Ensure()
    return PyEval_SaveThread()


cdef void detach_thread(void *thread) noexcept nogil:
    """Delete the state of a thread, at its end, when it cannot be looked up by PyGILState_Ensure any more."""
    PyEval_RestoreThread(thread)
    PyThreadState_Clear(thread)
    PyThreadState_DeleteCurrent()


cdef void release(void *made) noexcept with gil:
    Py_DECREF(<object>made)


cdef int set_seed(int64_t seed, Failure *failure) noexcept with gil:
    try:
        sessions.set_seed(seed)
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int register_operators(const char *path, Failure *failure) noexcept with gil:
    try:
        sessions.register_operators(text_of(path))
        return 0
    except BaseException as error:
        return fail(failure, error)


# ---- states

cdef int load_state(const Source *source, void **state, Failure *failure) noexcept with gil:
    try:
        state[0] = handed_over(sessions.load_state(source_of(source)))
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int save_state(void *state, const char *path, cbool with_optimizer, Failure *failure) noexcept with gil:
    try:
        (<object>state).save(text_of(path), bool(with_optimizer))
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int set_property(void *state, const char *name, const PropertyValue *value, Failure *failure) noexcept with gil:
    try:
        found = value.integer if value.type == <int>PropertyType.INT else value.number if value.type == <int>PropertyType.FLOAT else text_of(value.text)
        sessions.set_property(<object>state, text_of(name), found)
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int get_property(void *state, const char *name, PropertyValue *value, Failure *failure) noexcept with gil:
    try:
        found = (<object>state).property(text_of(name))
        if isinstance(found, str):
            value.type, value.text = PropertyType.STRING, text_copy(found)
        elif isinstance(found, float):
            value.type, value.number = PropertyType.FLOAT, found
        else:
            value.type, value.integer = PropertyType.INT, found
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int describe_parameter(void *state, const char *name, Description *description, Failure *failure) noexcept with gil:
    try:
        kind = sessions.parameter_type(<object>state, text_of(name))
        describe(description, None, kind)
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int get_parameter(void *state, const char *name, Content **content, Failure *failure) noexcept with gil:
    try:
        content[0] = content_of((<object>state).array(text_of(name)).copy())
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int update_parameter(void *state, const char *name, Content *content, Failure *failure) noexcept with gil:
    try:
        (<object>state).replace(text_of(name), array_of(content))
        return 0
    except BaseException as error:
        return fail(failure, error)


# ---- training sessions

@cython.final
cdef class Training:
    """A training session with what its steps need, found once."""
    cdef object session
    cdef FastPath steps

    def __init__(self, session):
        self.session, self.steps = session, session.steps


cdef int create_training_session(const Settings *settings, void *state, const Source *models, TrainingNames *names, void **made,
                                 Failure *failure) noexcept with gil:
    try:
        session = sessions.create_training_session(settings_of(settings), <object>state, *[source_of(&models[i]) for i in range(3)])
        set_strings(&names.training_inputs, session.input_names(True))
        set_strings(&names.training_outputs, session.output_names(True))
        names.has_eval_model = session.eval_model is not None
        if names.has_eval_model:
            set_strings(&names.eval_inputs, session.input_names(False))
            set_strings(&names.eval_outputs, session.output_names(False))
        made[0] = handed_over(Training(session))
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef tuple inputs_of(const Call *call):
    """Return the inputs of a call."""
    cdef size_t i
    cdef list values = []
    for i in range(call.n_inputs):
        values.append(value_of(call.inputs[i]))
    return tuple(values)


cdef list outputs_of(const Call *call):
    """Return the arrays that receive outputs, None for new ones; None where all are new."""
    cdef size_t i
    cdef list out = None
    for i in range(call.n_outputs):
        if call.outputs[i] != NULL:
            if out is None:
                out = [None] * call.n_outputs
            out[i] = array_of(call.outputs[i])
    return out


cdef int deliver(const Call *call, list results) except -1:
    """Store the new outputs of a call."""
    cdef size_t i
    for i in range(call.n_outputs):
        if call.outputs[i] == NULL:
            call.outputs[i] = content_of(results[i])
    return 0


cdef int train_step(void *made, const Call *call, Failure *failure) noexcept with gil:
    cdef Training training = <Training>made
    cdef tuple values
    cdef list out, results
    try:
        values, out = inputs_of(call), outputs_of(call)
        results = training.steps.train_into(values, out, call.terminate)
        if results is None:
            results = training.session.train_step(*values, out=out, run_options=run_options_of(call.terminate))
        return deliver(call, results)
    except BaseException as error:
        return fail(failure, error)


cdef int eval_step(void *made, const Call *call, Failure *failure) noexcept with gil:
    try:
        results = (<Training>made).session.eval_step(*inputs_of(call), out=outputs_of(call), run_options=run_options_of(call.terminate))
        return deliver(call, results)
    except BaseException as error:
        return fail(failure, error)


cdef int optimizer_step(void *made, const uint8_t *terminate, Failure *failure) noexcept with gil:
    cdef Training training = <Training>made
    try:
        if terminate != NULL and terminate[0] or not training.steps.update():
            training.session.optimizer_step(run_options=run_options_of(terminate))
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int reset_gradients(void *made, Failure *failure) noexcept with gil:
    try:
        (<Training>made).steps.reset()
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int set_learning_rate(void *made, float rate, Failure *failure) noexcept with gil:
    try:
        (<Training>made).session.learning_rate = rate
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int get_learning_rate(void *made, float *rate, Failure *failure) noexcept with gil:
    try:
        rate[0] = (<Training>made).session.learning_rate
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int register_linear_schedule(void *made, int64_t warmup, int64_t total, float rate, Failure *failure) noexcept with gil:
    try:
        sessions.register_linear_schedule((<Training>made).session, warmup, total, rate)
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int schedule_step(void *made, Failure *failure) noexcept with gil:
    try:
        (<Training>made).session.schedule_step()
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int parameters_size(void *made, cbool trainable_only, size_t *size, Failure *failure) noexcept with gil:
    try:
        size[0] = (<Training>made).session.parameters_size(bool(trainable_only))
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int copy_parameters(void *made, Content *buffer, cbool trainable_only, Failure *failure) noexcept with gil:
    try:
        sessions.copy_parameters((<Training>made).session, array_of(buffer), bool(trainable_only))
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int copy_buffer(void *made, Content *buffer, cbool trainable_only, Failure *failure) noexcept with gil:
    try:
        (<Training>made).session.from_buffer(array_of(buffer), bool(trainable_only))
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int export_model(void *made, const char *path, const char *const *names, size_t n_names, Failure *failure) noexcept with gil:
    try:
        sessions.export((<Training>made).session, text_of(path), [text_of(names[i]) for i in range(n_names)])
        return 0
    except BaseException as error:
        return fail(failure, error)


include "flat_buffers.pxi"


cdef void close_object(object made) noexcept:
    """Close a session; an error has nobody to tell."""
    try:
        made.close()
    except Exception:
        return


cdef void collect() noexcept:
    """Free the memory of closed sessions, whose objects refer to each other: a program in C makes too few objects for Python to do it by itself."""
    if owns_interpreter:
        gc.collect()


cdef void close_training_session(void *made) noexcept with gil:
    close_object((<Training>made).session)
    Py_DECREF(<object>made)
    collect()


# ---- inference sessions

cdef int set_descriptions(Descriptions *found, list names, dict types) except -1:
    found.items = <Description *>calloc(len(names) + 1, sizeof(Description))
    if found.items == NULL:
        raise MemoryError
    for name in names:
        describe(&found.items[found.count], name, types.get(name))
        found.count += 1
    return 0


cdef int set_interface(ModelInterface *found, object session) except -1:
    """Set what the interface tells about a model."""
    cdef Metadata *metadata = <Metadata *>calloc(1, sizeof(Metadata))
    if metadata == NULL:
        raise MemoryError
    found.metadata = metadata
    metadata.references = 1
    metadata.producer, metadata.graph, metadata.domain = text_copy(session.producer), text_copy(session.graph_name), text_copy(session.domain)
    metadata.description, metadata.graph_description = text_copy(session.description), text_copy(session.graph_description)
    metadata.version = session.version
    set_strings(&metadata.keys, list(session.metadata))
    set_strings(&metadata.values, list(session.metadata.values()))
    set_descriptions(&found.inputs, session.inputs, session.types)
    set_descriptions(&found.outputs, session.outputs, session.types)
    set_descriptions(&found.initializers, session.initializers, session.types)
    return 0


cdef int create_session(const Settings *settings, const Source *model, ModelInterface *found, void **made, Failure *failure) noexcept with gil:
    try:
        session = sessions.Inference(settings_of(settings), source_of(model))
        set_interface(found, session)
        made[0] = handed_over(session)
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int run(void *made, const Call *call, Failure *failure) noexcept with gil:
    try:
        inputs = [text_of(call.input_names[i]) for i in range(call.n_inputs)]
        outputs = [text_of(call.output_names[i]) for i in range(call.n_outputs)]
        results = (<object>made).run(inputs, inputs_of(call), outputs, outputs_of(call), run_options_of(call.terminate))
        return deliver(call, results)
    except BaseException as error:
        return fail(failure, error)


cdef int end_profiling(void *made, const char *path, Failure *failure) noexcept with gil:
    try:
        (<object>made).end_profiling(text_of(path))
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef void close_session(void *made) noexcept with gil:
    close_object(<object>made)
    Py_DECREF(<object>made)
    collect()


cdef Bridge bridge
bridge.layout = BRIDGE_LAYOUT
bridge.is_closed, bridge.own_interpreter = &is_closed, own_interpreter
bridge.attach_thread, bridge.detach_thread, bridge.release = attach_thread, detach_thread, release
bridge.set_seed, bridge.register_operators = set_seed, register_operators
bridge.load_state, bridge.save_state, bridge.set_property, bridge.get_property = load_state, save_state, set_property, get_property
bridge.describe_parameter, bridge.get_parameter, bridge.update_parameter = describe_parameter, get_parameter, update_parameter
bridge.create_training_session, bridge.train_step, bridge.eval_step = create_training_session, train_step, eval_step
bridge.optimizer_step, bridge.reset_gradients = optimizer_step, reset_gradients
bridge.set_learning_rate, bridge.get_learning_rate = set_learning_rate, get_learning_rate
bridge.register_linear_schedule, bridge.schedule_step, bridge.parameters_size = register_linear_schedule, schedule_step, parameters_size
bridge.copy_parameters, bridge.copy_buffer, bridge.export_model = copy_parameters, copy_buffer, export_model
bridge.moment_names, bridge.flat_buffers, bridge.buffer_value = moment_names, flat_buffers, buffer_value
bridge.on_gradients_ready = on_gradients_ready
bridge.close_training_session, bridge.create_session, bridge.run = close_training_session, create_session, run
bridge.end_profiling, bridge.close_session = end_profiling, close_session

table = PyCapsule_New(&bridge, BRIDGE_CAPSULE, NULL)
"""The table of functions, struct Bridge of source/bridge.h."""

atexit.register(close)
