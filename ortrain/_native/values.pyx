"""Conversions between the C library's contents of values and arrays."""
from cpython.buffer cimport PyBUF_READ
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.ref cimport Py_INCREF
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, strdup
cimport numpy as cnp
from ortrain._core.arrays cimport numpy_type_number

import numpy as np

from ortrain._core.arrays import register_extension_dtype
from ortrain.dtypes import NUMBERS, name_of
from ortrain.errors import InputTypeError, OutputShapeError

cnp.import_array()

register_extension_dtype("bfloat16")
cdef int STRING = NUMBERS["string"]


cdef char *text_copy(str text) except NULL:
    """Return a copy of a text, to be freed."""
    copy = text.encode("utf-8", "surrogateescape")
    cdef char *found = strdup(copy)
    if found == NULL:
        raise MemoryError
    return found


cdef int set_strings(Strings *strings, object texts) except -1:
    """Set an empty list of strings."""
    strings.items = <char **>calloc(len(texts) + 1, sizeof(char *))
    if strings.items == NULL:
        raise MemoryError
    for text in texts:
        strings.items[strings.count] = text_copy(text)
        strings.count += 1
    return 0


cdef void describe(Description *description, str name, object kind) except *:
    """Set the description of a value. name: None for none. kind: its TensorType, None where it is not known."""
    cdef int axis = 0
    description.name = NULL if name is None else text_copy(name)
    if kind is None:
        return
    description.element_type = NUMBERS[kind.dtype]
    description.is_sequence, description.is_optional = kind.sequence, kind.optional
    for size in kind.shape or ():
        description.dims[axis] = -1 if isinstance(size, str) else size
        if isinstance(size, str):
            description.symbols[axis] = text_copy(size)
        axis += 1
    description.rank = axis


# ---- contents to arrays

cdef object view_of(const Source *source):
    """Return a view of bytes in the program's memory."""
    return PyMemoryView_FromMemory(<char *>source.data, source.size, PyBUF_READ) if source.size else memoryview(b"")


cdef object array_of(Content *content):
    """Return a tensor as an array that shares its memory; strings are copied."""
    cdef cnp.npy_intp dims[8]
    cdef int axis
    cdef object array
    if content.array != NULL:
        return <object>content.array
    if content.kind != ONNX_TYPE_TENSOR:
        raise InputTypeError("expected a tensor, got a sequence or an absent optional")
    for axis in range(content.rank):
        dims[axis] = content.dims[axis]
    if content.element_type == STRING:
        array = np.empty([dims[axis] for axis in range(content.rank)], object)
        flat = array.reshape(-1)
        for index in range(content.count):
            flat[index] = content.strings[index][:content.lengths[index]].decode("utf-8", "surrogateescape")
        return array
    array = cnp.PyArray_SimpleNewFromData(content.rank, dims, numpy_type_number(content.element_type), content.data)
    Py_INCREF(array)                    # the content owns it, and its release gives it back
    content.array = <void *>array
    return array


cdef object value_of(Content *content):
    """Return a value as the engine takes it: an array, a list of arrays, None for an absent optional."""
    if content.kind == ONNX_TYPE_SEQUENCE:
        return [array_of(content.items[index]) for index in range(content.count)]
    return None if content.kind == ONNX_TYPE_OPTIONAL else array_of(content)


# ---- arrays to contents

cdef Content *content_of(object value) except NULL:
    """Return new contents of a result: an array, whose memory they share, a list of arrays, or None."""
    cdef Content *content = <Content *>calloc(1, sizeof(Content))
    if content == NULL:
        raise MemoryError
    content.references = 1
    try:
        if value is None:
            content.kind = ONNX_TYPE_OPTIONAL
        elif isinstance(value, list):
            fill_sequence(content, value)
        else:
            fill_tensor(content, value)
    except BaseException:
        free_content(content)
        raise
    return content


cdef void fill_tensor(Content *content, object value) except *:
    cdef cnp.ndarray array
    cdef int axis
    if cnp.PyArray_CheckExact(value) and cnp.PyArray_IS_C_CONTIGUOUS(<cnp.ndarray>value):
        array = value                   # outputs of the engine; the conversion takes more than a microsecond
    else:
        array = np.ascontiguousarray(value).reshape(np.shape(value))
    if array.ndim > MAX_RANK:
        raise OutputShapeError(f"expected at most {MAX_RANK} dimensions, got {array.ndim}")
    content.kind = ONNX_TYPE_TENSOR
    content.element_type = element_type_of(array)
    content.rank = array.ndim
    for axis in range(content.rank):
        content.dims[axis] = array.shape[axis]
    content.count = array.size
    if content.element_type == STRING:
        fill_strings(content, array)
        return
    content.bytes = array.nbytes
    content.data = cnp.PyArray_DATA(array)
    Py_INCREF(array)
    content.array = <void *>array


cdef int element_type_of(cnp.ndarray array) except -1:
    """Return the ONNX number of an array's dtype; the types of nearly all outputs are found without a look-up by name."""
    cdef int kind = cnp.PyArray_TYPE(array)
    if kind == cnp.NPY_FLOAT32:
        return 1
    if kind == cnp.NPY_INT64:
        return 7
    return NUMBERS[name_of(array.dtype)]


cdef void fill_strings(Content *content, cnp.ndarray array) except *:
    cdef Py_ssize_t index, length
    cdef char *copy
    content.strings = <char **>calloc(content.count + 1, sizeof(char *))
    content.lengths = <size_t *>calloc(content.count + 1, sizeof(size_t))
    if content.strings == NULL or content.lengths == NULL:
        raise MemoryError
    for index, text in enumerate(array.reshape(-1)):
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else bytes(text)
        length = len(data)
        copy = <char *>calloc(length + 1, 1)
        if copy == NULL:
            raise MemoryError
        memcpy(copy, <const char *>data, length)
        content.strings[index], content.lengths[index] = copy, length


cdef void fill_sequence(Content *content, list values) except *:
    content.kind = ONNX_TYPE_SEQUENCE
    content.items = <Content **>calloc(len(values) + 1, sizeof(Content *))
    if content.items == NULL:
        raise MemoryError
    for value in values:
        content.items[content.count] = content_of(value)
        content.element_type = content.items[content.count].element_type
        content.count += 1


cdef void free_content(Content *content) noexcept:
    """Free contents that could not be completed, which have no array yet."""
    cdef size_t index
    for index in range(content.count):
        if content.strings != NULL:
            free(content.strings[index])
        if content.items != NULL:
            free_content(content.items[index])
    free(content.strings)
    free(content.lengths)
    free(content.items)
    free(content)
