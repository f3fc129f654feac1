"""The structures that the C library and the bridge share, and conversions between contents of values and arrays."""
from libc.stdint cimport int64_t, uint8_t

cdef extern from "<stdbool.h>":
    ctypedef unsigned char cbool "bool"

cdef extern from "bridge.h":
    enum: MAX_RANK
    enum: ONNX_TYPE_TENSOR
    enum: ONNX_TYPE_SEQUENCE
    enum: ONNX_TYPE_OPTIONAL

    ctypedef struct Failure:
        int code
        char *message

    ctypedef struct Strings:
        size_t count
        char **items

    ctypedef struct Content:
        int references, kind, element_type, rank
        int64_t dims[8]
        size_t count, bytes
        void *data
        void *array
        char **strings
        size_t *lengths
        Content **items

    ctypedef struct Description:
        char *name
        int element_type
        cbool is_sequence, is_optional
        int rank
        int64_t dims[8]
        char *symbols[8]

    ctypedef struct Descriptions:
        size_t count
        Description *items

    ctypedef struct Metadata:
        int references
        char *producer
        char *graph
        char *domain
        char *description
        char *graph_description
        int64_t version
        Strings keys, values

    ctypedef struct ModelInterface:
        Descriptions inputs, outputs, initializers
        Metadata *metadata

    ctypedef struct TrainingNames:
        Strings training_inputs, training_outputs, eval_inputs, eval_outputs
        cbool has_eval_model

    ctypedef struct Source:
        const char *path
        const void *data
        size_t size

    ctypedef struct Settings:
        int threads
        cbool profiles
        Strings keys, values, dimensions
        int64_t *sizes
        cbool *by_denotation
        Strings initializers
        Content **initializer_values
        Strings files
        Source *file_contents

    ctypedef struct PropertyValue:
        int type
        int64_t integer
        float number
        char *text

    ctypedef enum BufferKind:
        GRADIENTS
        PARAMETERS
        MOMENTS
        RUNNING_STATISTICS

    ctypedef struct BufferContents:
        void *object
        Strings names
        size_t *offsets

    ctypedef struct BufferList:
        size_t count
        BufferContents *items

    ctypedef struct OrtFlatBuffer:
        pass

    ctypedef void (*OrtGradientsReadyFunction)(void *, OrtFlatBuffer *) noexcept nogil
    ctypedef int (*BucketReceiver)(OrtGradientsReadyFunction, void *, BufferContents *) noexcept nogil

    ctypedef struct Call:
        const uint8_t *terminate
        size_t n_inputs, n_outputs
        Content **inputs
        Content **outputs
        const char **input_names
        const char **output_names

cdef object array_of(Content *content)
cdef object view_of(const Source *source)
cdef object value_of(Content *content)
cdef Content *content_of(object value) except NULL
cdef char *text_copy(str text) except NULL
cdef int set_strings(Strings *strings, object texts) except -1
cdef void describe(Description *description, str name, object kind) except *
