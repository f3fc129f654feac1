/* What the C library and the Cython module ortrain._native.bridge share: the contents of values, descriptions of models, and the table of functions through
   which the library calls the engine. Both allocate with malloc and free with free, so each may free what the other has made. */
#ifndef ORTRAIN_BRIDGE_H
#define ORTRAIN_BRIDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ortrain_extensions.h"

#define MAX_RANK 8              /* the engine's */

/* Why a call failed: the code of an OrtStatus, and a message to be freed. */
typedef struct Failure {
    int code;
    char *message;
} Failure;

typedef struct Strings {
    size_t count;
    char **items;
} Strings;

/* The contents of an OrtValue, which values, bindings and options share. Tensors of numbers have `data`, tensors of strings have `strings`, sequences `items`;
   an absent optional has kind ONNX_TYPE_OPTIONAL and nothing else. */
typedef struct Content {
    int references;             /* atomic */
    int kind;                   /* ONNXType */
    int element_type;           /* ONNXTensorElementDataType */
    int rank;
    int64_t dims[MAX_RANK];
    size_t count, bytes;
    void *data;
    void *array;                /* a NumPy array: over `data`, made when a session first uses the tensor, or the owner of `data`, made by a session */
    struct OrtAllocator *allocator;    /* what frees `data`, NULL where the caller or `array` owns it */
    char **strings;
    size_t *lengths;            /* bytes of each string, without the null character at its end */
    struct Content **items;
} Content;

/* The name and type of an input, an output, an initializer or a parameter. */
typedef struct Description {
    char *name;
    int element_type;
    bool is_sequence, is_optional;
    int rank;
    int64_t dims[MAX_RANK];     /* -1 for a symbol */
    char *symbols[MAX_RANK];    /* NULL or "" where the size is known or unnamed */
} Description;

typedef struct Descriptions {
    size_t count;
    Description *items;
} Descriptions;

typedef struct Metadata {
    int references;             /* atomic */
    char *producer, *graph, *domain, *description, *graph_description;
    int64_t version;
    Strings keys, values;
} Metadata;

typedef struct ModelInterface {
    Descriptions inputs, outputs, initializers;
    Metadata *metadata;
} ModelInterface;

typedef struct TrainingNames {
    Strings training_inputs, training_outputs, eval_inputs, eval_outputs;
    bool has_eval_model;
} TrainingNames;

/* A model or a checkpoint: a path, bytes, or neither. */
typedef struct Source {
    const char *path;
    const void *data;
    size_t size;
} Source;

typedef struct Settings {
    int threads;                /* 0: the physical cores */
    bool profiles;
    Strings keys, values;       /* configuration entries */
    Strings dimensions;         /* names of symbols, or denotations, and the sizes that replace them */
    int64_t *sizes;
    bool *by_denotation;
    Strings initializers;
    Content **initializer_values;
    Strings files;              /* names of files of external data whose bytes are in the program's memory */
    Source *file_contents;
} Settings;

typedef struct PropertyValue {
    int type;                   /* OrtPropertyType */
    int64_t integer;
    float number;
    char *text;                 /* to be freed */
} PropertyValue;

/* A step or run: values in, and slots for values out, NULL where an output is to be made. terminate: a byte that other threads may set, or NULL. */
typedef struct Call {
    const uint8_t *terminate;
    size_t n_inputs, n_outputs;
    Content *const *inputs;
    Content **outputs;
    const char *const *input_names, *const *output_names;      /* of a run */
} Call;

typedef enum BufferKind { GRADIENTS, PARAMETERS, MOMENTS, RUNNING_STATISTICS } BufferKind;

/* A flat buffer of a session, and what is in it. */
typedef struct BufferContents {
    void *object;               /* Python's, to be given back with `release` */
    Strings names;              /* of the parameters, in order */
    size_t *offsets;            /* of their first elements */
} BufferContents;

typedef struct BufferList {
    size_t count;
    BufferContents *items;
} BufferList;

/* Make a handle of a bucket, whose contents it takes, and call the program's function with it; -1 when memory is exhausted. */
typedef int (*BucketReceiver)(OrtGradientsReadyFunction function, void *parameter, BufferContents *bucket);

/* The functions of the engine. Each takes the GIL, and returns 0, or -1 after filling the Failure. `object` is what a create or load function has made; it is
   given back with `release`. */
typedef struct Bridge {
    size_t layout;              /* BRIDGE_LAYOUT of the module: an installed library may be older or newer than ortrain */
    const bool *is_closed;      /* whether the interpreter has begun to end */
    void (*own_interpreter)(void);      /* tells that the library has started the interpreter, which nobody else uses */
    void *(*attach_thread)(void);       /* makes a state of Python for this thread, which stays until detach_thread at its end */
    void (*detach_thread)(void *thread);
    void (*release)(void *object);
    int (*set_seed)(int64_t seed, Failure *failure);
    int (*register_operators)(const char *path, Failure *failure);

    int (*load_state)(const Source *source, void **state, Failure *failure);
    int (*save_state)(void *state, const char *path, bool with_optimizer, Failure *failure);
    int (*set_property)(void *state, const char *name, const PropertyValue *value, Failure *failure);
    int (*get_property)(void *state, const char *name, PropertyValue *value, Failure *failure);
    int (*describe_parameter)(void *state, const char *name, Description *description, Failure *failure);
    int (*get_parameter)(void *state, const char *name, Content **content, Failure *failure);
    int (*update_parameter)(void *state, const char *name, Content *content, Failure *failure);

    int (*create_training_session)(const Settings *settings, void *state, const Source models[3], TrainingNames *names, void **session, Failure *failure);
    int (*train_step)(void *session, const Call *call, Failure *failure);
    int (*eval_step)(void *session, const Call *call, Failure *failure);
    int (*optimizer_step)(void *session, const uint8_t *terminate, Failure *failure);
    int (*reset_gradients)(void *session, Failure *failure);
    int (*set_learning_rate)(void *session, float rate, Failure *failure);
    int (*get_learning_rate)(void *session, float *rate, Failure *failure);
    int (*register_linear_schedule)(void *session, int64_t warmup, int64_t total, float rate, Failure *failure);
    int (*schedule_step)(void *session, Failure *failure);
    int (*parameters_size)(void *session, bool trainable_only, size_t *size, Failure *failure);
    int (*copy_parameters)(void *session, Content *buffer, bool trainable_only, Failure *failure);
    int (*copy_buffer)(void *session, Content *buffer, bool trainable_only, Failure *failure);
    int (*export_model)(void *session, const char *path, const char *const *names, size_t n_names, Failure *failure);
    int (*moment_names)(void *session, Strings *names, Failure *failure);
    int (*flat_buffers)(void *session, BufferKind kind, const char *moment, BufferList *buffers, Failure *failure);
    int (*buffer_value)(void *buffer, const char *parameter, Content **content, Failure *failure);      /* NULL: the whole buffer */
    int (*on_gradients_ready)(void *session, BucketReceiver receive, OrtGradientsReadyFunction function, void *parameter, size_t bucket_bytes,
                              Failure *failure);      /* NULL: no calls any more */
    void (*close_training_session)(void *session);

    int (*create_session)(const Settings *settings, const Source *model, ModelInterface *found, void **session, Failure *failure);
    int (*run)(void *session, const Call *call, Failure *failure);
    int (*end_profiling)(void *session, const char *path, Failure *failure);
    void (*close_session)(void *session);
} Bridge;

/* Changes with the sizes of the structures; the factor is to be increased with a change that keeps them. */
#define BRIDGE_LAYOUT \
    (1 * 100000 + sizeof(Bridge) + sizeof(Content) + sizeof(Description) + sizeof(ModelInterface) + sizeof(Settings) + sizeof(TrainingNames) + sizeof(Call) + \
     sizeof(BufferContents))

#define BRIDGE_CAPSULE "ortrain._native.bridge.table"

#endif
