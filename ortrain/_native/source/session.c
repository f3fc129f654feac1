/* Inference sessions. */
#define _GNU_SOURCE
#include "session.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "calls.h"
#include "environment.h"
#include "options.h"
#include "python.h"
#include "status.h"
#include "text.h"
#include "type_info.h"

static void free_descriptions(Descriptions *list) {
    for (size_t i = 0; i < list->count; i++) {
        free(list->items[i].name);
        for (int d = 0; d < MAX_RANK; d++)
            free(list->items[i].symbols[d]);
    }
    free(list->items);
}

static void release_metadata(Metadata *metadata) {
    if (metadata == NULL || __atomic_sub_fetch(&metadata->references, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    char *texts[] = { metadata->producer, metadata->graph, metadata->domain, metadata->description, metadata->graph_description };
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        free(texts[i]);
    free_texts(&metadata->keys);
    free_texts(&metadata->values);
    free(metadata);
}

static uint64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static OrtStatus *create(const OrtEnv *env, const OrtSessionOptions *options, Source source, OrtSession **out) {
    const Bridge *bridge;
    Failure failure = { ORT_OK, NULL };
    Settings settings = settings_for(options, env);
    ModelInterface found;
    void *object = NULL;
    memset(&found, 0, sizeof(found));
    RETURN_IF(enter_engine(&bridge));
    if (bridge->create_session(&settings, &source, &found, &object, &failure) < 0)
        return log_failure(env->logger, "CreateSession", status_of(&failure));
    OrtSession *session = new_handle(KIND_Session);
    if (session == NULL) {
        bridge->close_session(object);
        return out_of_memory();
    }
    session->object = object;
    session->found = found;
    session->logger = logger_for(options, env);
    session->profiling_start = nanoseconds();
    session->profile_prefix = settings.profiles ? copy_text(options->profile_prefix) : NULL;
    log_message(session->logger, ORT_LOGGING_LEVEL_INFO, "CreateSession", "a session was created");
    *out = session;
    return NULL;
}

OrtStatus *ORT_API_CALL api_CreateSession(const OrtEnv *env, const ORTCHAR_T *model_path, const OrtSessionOptions *options, OrtSession **out) {
    REQUIRE(Env, env);
    REQUIRE_POINTER(model_path);
    REQUIRE_OR_NULL(SessionOptions, options);
    REQUIRE_POINTER(out);
    return create(env, options, (Source){ model_path, NULL, 0 }, out);
}

OrtStatus *ORT_API_CALL api_CreateSessionFromArray(const OrtEnv *env, const void *model_data, size_t model_data_length, const OrtSessionOptions *options,
                                                   OrtSession **out) {
    REQUIRE(Env, env);
    REQUIRE_POINTER(model_data);
    REQUIRE_OR_NULL(SessionOptions, options);
    REQUIRE_POINTER(out);
    return create(env, options, (Source){ NULL, model_data, model_data_length }, out);
}

OrtStatus *ORT_API_CALL api_CreateSessionWithPrepackedWeightsContainer(const OrtEnv *env, const ORTCHAR_T *model_path, const OrtSessionOptions *options,
                                                                       OrtPrepackedWeightsContainer *prepacked_weights_container, OrtSession **out) {
    REQUIRE(PrepackedWeightsContainer, prepacked_weights_container);
    return api_CreateSession(env, model_path, options, out);
}

OrtStatus *ORT_API_CALL api_CreateSessionFromArrayWithPrepackedWeightsContainer(const OrtEnv *env, const void *model_data, size_t model_data_length,
                                                                                const OrtSessionOptions *options,
                                                                                OrtPrepackedWeightsContainer *prepacked_weights_container, OrtSession **out) {
    REQUIRE(PrepackedWeightsContainer, prepacked_weights_container);
    return api_CreateSessionFromArray(env, model_data, model_data_length, options, out);
}

void ORT_API_CALL api_ReleaseSession(OrtSession *input) {
    if (!is_open(input, KIND_Session))
        return;
    OrtSession session = *input;
    if (!free_handle(input, KIND_Session))
        return;
    free_descriptions(&session.found.inputs);
    free_descriptions(&session.found.outputs);
    free_descriptions(&session.found.initializers);
    release_metadata(session.found.metadata);
    free(session.profile_prefix);
    release_logger(session.logger);
    const Bridge *bridge;
    OrtStatus *status = running_bridge() == NULL ? NULL : enter_engine(&bridge);
    if (running_bridge() != NULL && status == NULL)
        bridge->close_session(session.object);
    api_ReleaseStatus(status);
}

/* ---- runs */

OrtStatus *run_session(OrtSession *session, Call *call) {
    const Bridge *bridge;
    Failure failure = { ORT_OK, NULL };
    RETURN_IF(enter_engine(&bridge));
    return bridge->run(session->object, call, &failure) < 0 ? log_failure(session->logger, "Run", status_of(&failure)) : NULL;
}

static OrtStatus *require_names(const char *const *names, size_t count, const char *what) {
    if (count > 0 && names == NULL)
        return missing(what, "Run");
    for (size_t i = 0; i < count; i++)
        if (names[i] == NULL || *names[i] == '\0')
            return make_status(ORT_INVALID_ARGUMENT, "expected names as %s of Run, element %zu is empty", what, i);
    return NULL;
}

static OrtStatus *run(OrtSession *session, const OrtRunOptions *run_options, const char *const *input_names, const OrtValue *const *inputs, size_t input_len,
                      const char *const *output_names, size_t output_names_len, OrtValue **outputs) {
    Values values;
    Call call;
    RETURN_IF(require_names(input_names, input_len, "input_names"));
    RETURN_IF(require_names(output_names, output_names_len, "output_names"));
    if (output_names_len == 0)
        return make_status(ORT_INVALID_ARGUMENT, "expected at least one output name for Run, got none");
    OrtStatus *status = take_values(&values, &call, run_options, input_len, inputs, output_names_len, outputs, "Run");
    if (status == NULL) {
        call.input_names = input_names;
        call.output_names = output_names;
        status = run_session(session, &call);
        if (status != NULL)
            drop_values(&call, outputs);
        else
            status = give_values(&call, outputs);
    }
    free_values(&values);
    return status;
}

OrtStatus *ORT_API_CALL api_Run(OrtSession *session, const OrtRunOptions *run_options, const char *const *input_names, const OrtValue *const *inputs,
                                size_t input_len, const char *const *output_names, size_t output_names_len, OrtValue **outputs) {
    REQUIRE(Session, session);
    REQUIRE_OR_NULL(RunOptions, run_options);
    return run(session, run_options, input_names, inputs, input_len, output_names, output_names_len, outputs);
}

/* A run on a thread of its own. The caller's arrays and values have to live until the callback, as in the old library. */
typedef struct Later {
    OrtSession *session;
    const OrtRunOptions *run_options;
    const char *const *input_names, *const *output_names;
    const OrtValue *const *inputs;
    size_t n_inputs, n_outputs;
    OrtValue **outputs;
    RunAsyncCallbackFn callback;
    void *user_data;
} Later;

static void *run_later(void *argument) {
    Later later = *(Later *)argument;
    free(argument);
    OrtStatus *status = run(later.session, later.run_options, later.input_names, later.inputs, later.n_inputs, later.output_names, later.n_outputs,
                            later.outputs);
    later.callback(later.user_data, status == NULL ? later.outputs : NULL, status == NULL ? later.n_outputs : 0, status);
    return NULL;
}

OrtStatus *ORT_API_CALL api_RunAsync(OrtSession *session, const OrtRunOptions *run_options, const char *const *input_names, const OrtValue *const *input,
                                     size_t input_len, const char *const *output_names, size_t output_names_len, OrtValue **output,
                                     RunAsyncCallbackFn run_async_callback, void *user_data) {
    REQUIRE(Session, session);
    REQUIRE_OR_NULL(RunOptions, run_options);
    if (run_async_callback == NULL)
        return missing("run_async_callback", "RunAsync");
    Later *later = malloc(sizeof(Later));
    if (later == NULL)
        return out_of_memory();
    *later = (Later){ session, run_options, input_names, output_names, input, input_len, output_names_len, output, run_async_callback, user_data };
    pthread_t thread;
    if (pthread_create(&thread, NULL, run_later, later) != 0) {
        free(later);
        return make_status(ORT_FAIL, "expected a new thread for RunAsync, got none");
    }
    pthread_detach(thread);
    return NULL;
}

/* ---- inputs, outputs, initializers */

static OrtStatus *require_index(const Descriptions *list, size_t index, const char *function) {
    return index < list->count ? NULL : make_status(ORT_INVALID_ARGUMENT, "expected an index in [0, %zu) for %s, got %zu", list->count, function, index);
}

#define COUNT_NAME_AND_TYPE(What, list) \
    OrtStatus *ORT_API_CALL api_SessionGet##What##Count(const OrtSession *session, size_t *out) { \
        REQUIRE(Session, session); \
        REQUIRE_POINTER(out); \
        *out = session->found.list.count; \
        return NULL; \
    } \
    OrtStatus *ORT_API_CALL api_SessionGet##What##Name(const OrtSession *session, size_t index, OrtAllocator *allocator, char **value) { \
        REQUIRE(Session, session); \
        REQUIRE_POINTER(allocator); \
        REQUIRE_POINTER(value); \
        RETURN_IF(require_index(&session->found.list, index, public_name(__func__))); \
        return give_text(allocator, session->found.list.items[index].name, value); \
    } \
    OrtStatus *ORT_API_CALL api_SessionGet##What##TypeInfo(const OrtSession *session, size_t index, OrtTypeInfo **type_info) { \
        REQUIRE(Session, session); \
        REQUIRE_POINTER(type_info); \
        RETURN_IF(require_index(&session->found.list, index, public_name(__func__))); \
        return type_of_description(&session->found.list.items[index], type_info); \
    }

COUNT_NAME_AND_TYPE(Input, inputs)
COUNT_NAME_AND_TYPE(Output, outputs)
COUNT_NAME_AND_TYPE(OverridableInitializer, initializers)

/* ---- profiles */

OrtStatus *ORT_API_CALL api_SessionGetProfilingStartTimeNs(const OrtSession *session, uint64_t *out) {
    REQUIRE(Session, session);
    REQUIRE_POINTER(out);
    *out = session->profiling_start;
    return NULL;
}

OrtStatus *ORT_API_CALL api_SessionEndProfiling(OrtSession *session, OrtAllocator *allocator, char **out) {
    REQUIRE(Session, session);
    REQUIRE_POINTER(allocator);
    REQUIRE_POINTER(out);
    if (session->profile_prefix == NULL)
        return give_text(allocator, "", out);
    const Bridge *bridge;
    Failure failure = { ORT_OK, NULL };
    char stamp[64], *path = NULL;
    time_t now = time(NULL);
    struct tm parts;
    strftime(stamp, sizeof(stamp), "%Y-%m-%d_%H-%M-%S", localtime_r(&now, &parts));
    RETURN_IF(enter_engine(&bridge));
    if (asprintf(&path, "%s_%s.json", session->profile_prefix, stamp) < 0)
        return out_of_memory();
    OrtStatus *status = bridge->end_profiling(session->object, path, &failure) < 0 ? status_of(&failure) : give_text(allocator, path, out);
    free(path);
    return status;
}

/* ---- metadata */

OrtStatus *ORT_API_CALL api_SessionGetModelMetadata(const OrtSession *session, OrtModelMetadata **out) {
    REQUIRE(Session, session);
    REQUIRE_POINTER(out);
    OrtModelMetadata *made = new_handle(KIND_ModelMetadata);
    if (made == NULL)
        return out_of_memory();
    made->metadata = session->found.metadata;
    __atomic_add_fetch(&made->metadata->references, 1, __ATOMIC_RELAXED);
    *out = made;
    return NULL;
}

void ORT_API_CALL api_ReleaseModelMetadata(OrtModelMetadata *input) {
    Metadata *metadata = is_open(input, KIND_ModelMetadata) ? input->metadata : NULL;
    if (free_handle(input, KIND_ModelMetadata))
        release_metadata(metadata);
}

#define METADATA_TEXT(What, field) \
    OrtStatus *ORT_API_CALL api_ModelMetadataGet##What(const OrtModelMetadata *model_metadata, OrtAllocator *allocator, char **value) { \
        REQUIRE(ModelMetadata, model_metadata); \
        REQUIRE_POINTER(allocator); \
        REQUIRE_POINTER(value); \
        return give_text(allocator, model_metadata->metadata->field, value); \
    }

METADATA_TEXT(ProducerName, producer)
METADATA_TEXT(GraphName, graph)
METADATA_TEXT(Domain, domain)
METADATA_TEXT(Description, description)
METADATA_TEXT(GraphDescription, graph_description)

OrtStatus *ORT_API_CALL api_ModelMetadataGetVersion(const OrtModelMetadata *model_metadata, int64_t *value) {
    REQUIRE(ModelMetadata, model_metadata);
    REQUIRE_POINTER(value);
    *value = model_metadata->metadata->version;
    return NULL;
}

OrtStatus *ORT_API_CALL api_ModelMetadataLookupCustomMetadataMap(const OrtModelMetadata *model_metadata, OrtAllocator *allocator, const char *key,
                                                                 char **value) {
    REQUIRE(ModelMetadata, model_metadata);
    REQUIRE_POINTER(allocator);
    REQUIRE_POINTER(key);
    REQUIRE_POINTER(value);
    const Metadata *metadata = model_metadata->metadata;
    size_t found = find_text(&metadata->keys, key);
    *value = NULL;
    return found == metadata->keys.count ? NULL : give_text(allocator, metadata->values.items[found], value);
}

OrtStatus *ORT_API_CALL api_ModelMetadataGetCustomMetadataMapKeys(const OrtModelMetadata *model_metadata, OrtAllocator *allocator, char ***keys,
                                                                  int64_t *num_keys) {
    REQUIRE(ModelMetadata, model_metadata);
    REQUIRE_POINTER(allocator);
    REQUIRE_POINTER(keys);
    REQUIRE_POINTER(num_keys);
    const Strings *list = &model_metadata->metadata->keys;
    *keys = NULL;
    *num_keys = 0;
    if (list->count == 0)
        return NULL;
    char **copies = allocator->Alloc(allocator, list->count * sizeof(char *));
    if (copies == NULL)
        return out_of_memory();
    for (size_t i = 0; i < list->count; i++)
        RETURN_IF(give_text(allocator, list->items[i], &copies[i]));
    *keys = copies;
    *num_keys = (int64_t)list->count;
    return NULL;
}
