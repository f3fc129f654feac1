# Flat buffers of training sessions, and what programs are told of gradients that become ready: a part of bridge.pyx.

cdef int moment_names(void *made, Strings *names, Failure *failure) noexcept with gil:
    try:
        set_strings(names, list((<Training>made).session.moment_buffers()))
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef list buffers_of(object session, BufferKind kind, const char *moment):
    """Return the flat buffers of a session. moment: the name of the moment."""
    if kind == GRADIENTS:
        return session.gradient_buffers()
    if kind == PARAMETERS:
        return session.parameter_buffers()
    if kind == MOMENTS:
        return sessions.moment_buffers(session, text_of(moment))
    return session.running_statistics_buffers()


cdef int set_contents(BufferContents *contents, object buffer) except -1:
    """Set the contents of a flat buffer."""
    cdef Py_ssize_t index
    contents.offsets = <size_t *>calloc(len(buffer.offsets) + 1, sizeof(size_t))
    if contents.offsets == NULL:
        raise MemoryError
    for index, offset in enumerate(buffer.offsets.values()):
        contents.offsets[index] = offset
    set_strings(&contents.names, list(buffer.offsets))
    contents.object = handed_over(buffer)
    return 0


cdef int flat_buffers(void *made, BufferKind kind, const char *moment, BufferList *buffers, Failure *failure) noexcept with gil:
    try:
        found = buffers_of((<Training>made).session, kind, moment)
        buffers.items = <BufferContents *>calloc(len(found) + 1, sizeof(BufferContents))
        if buffers.items == NULL:
            raise MemoryError
        for buffer in found:
            set_contents(&buffers.items[buffers.count], buffer)
            buffers.count += 1
        return 0
    except BaseException as error:
        return fail(failure, error)


cdef int buffer_value(void *made, const char *parameter, Content **content, Failure *failure) noexcept with gil:
    try:
        content[0] = content_of((<object>made).array if parameter == NULL else (<object>made).view(text_of(parameter)))
        return 0
    except BaseException as error:
        return fail(failure, error)


@cython.final
cdef class ReadyFunction:
    """Calls a function of the program with buckets of gradients, without the GIL, which other threads of the program may need before it returns."""
    cdef BucketReceiver receive
    cdef OrtGradientsReadyFunction function
    cdef void *parameter

    def __call__(self, bucket):
        cdef BufferContents contents
        cdef int result
        memset(&contents, 0, sizeof(contents))
        set_contents(&contents, bucket)
        with nogil:
            result = self.receive(self.function, self.parameter, &contents)
        if result < 0:
            raise MemoryError


cdef int on_gradients_ready(void *made, BucketReceiver receive, OrtGradientsReadyFunction function, void *parameter, size_t bucket_bytes,
                            Failure *failure) noexcept with gil:
    cdef ReadyFunction ready = None
    try:
        if function != NULL:
            ready = ReadyFunction()
            ready.receive, ready.function, ready.parameter = receive, function, parameter
        (<Training>made).session.on_gradients_ready(ready, bucket_bytes)
        return 0
    except BaseException as error:
        return fail(failure, error)
