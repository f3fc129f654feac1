/* OrtTrainingExtensions: flat buffers, in which a program reads and writes gradients, parameters, moments and running statistics where the session has them. */
#include <stdlib.h>

#include "text.h"
#include "training.h"
#include "values.h"

static void free_contents(BufferContents *contents) {
    if (contents->object != NULL)
        release_object(contents->object);
    free_texts(&contents->names);
    free(contents->offsets);
}

void ORT_API_CALL extension_ReleaseFlatBuffer(OrtFlatBuffer *input) {
    if (!is_open(input, KIND_FlatBuffer))
        return;
    BufferContents contents = input->contents;
    if (free_handle(input, KIND_FlatBuffer))
        free_contents(&contents);
}

/* ---- the buffers of a session */

/* Make handles of buffers, whose contents they take, in an array of the allocator; all of them or none. */
static OrtStatus *give_buffers(BufferList *list, OrtAllocator *allocator, OrtFlatBuffer ***buffers, size_t *buffers_len) {
    size_t made = 0;
    OrtFlatBuffer **handles = list->count == 0 ? NULL : allocator->Alloc(allocator, list->count * sizeof(OrtFlatBuffer *));
    while (handles != NULL && made < list->count && (handles[made] = new_handle(KIND_FlatBuffer)) != NULL) {
        handles[made]->contents = list->items[made];
        made++;
    }
    bool is_complete = made == list->count;
    for (size_t i = 0; i < made && !is_complete; i++)
        extension_ReleaseFlatBuffer(handles[i]);
    for (size_t i = made; i < list->count; i++)
        free_contents(&list->items[i]);
    free(list->items);
    if (!is_complete) {
        if (handles != NULL)
            allocator->Free(allocator, handles);
        return out_of_memory();
    }
    *buffers = handles;
    *buffers_len = made;
    return NULL;
}

/* Leave the function with the status of buffers of a kind, after giving them to the program. */
#define GIVE_BUFFERS(kind, moment) \
    do { \
        REQUIRE(TrainingSession, sess); \
        REQUIRE_POINTER(allocator); \
        REQUIRE_POINTER(buffers); \
        REQUIRE_POINTER(buffers_len); \
        BufferList list = { 0, NULL }; \
        CALL_ENGINE(sess, flat_buffers(sess->object, kind, moment, &list, &failure)); \
        return give_buffers(&list, allocator, buffers, buffers_len); \
    } while (0)

OrtStatus *ORT_API_CALL extension_GetGradientBuffers(OrtTrainingSession *sess, OrtAllocator *allocator, OrtFlatBuffer ***buffers, size_t *buffers_len) {
    GIVE_BUFFERS(GRADIENTS, NULL);
}

OrtStatus *ORT_API_CALL extension_GetParameterBuffers(OrtTrainingSession *sess, OrtAllocator *allocator, OrtFlatBuffer ***buffers, size_t *buffers_len) {
    GIVE_BUFFERS(PARAMETERS, NULL);
}

OrtStatus *ORT_API_CALL extension_GetMomentBuffers(OrtTrainingSession *sess, const char *moment_name, OrtAllocator *allocator, OrtFlatBuffer ***buffers,
                                                   size_t *buffers_len) {
    REQUIRE(TrainingSession, sess);
    REQUIRE_POINTER(moment_name);
    GIVE_BUFFERS(MOMENTS, moment_name);
}

OrtStatus *ORT_API_CALL extension_GetRunningStatisticsBuffers(OrtTrainingSession *sess, OrtAllocator *allocator, OrtFlatBuffer ***buffers,
                                                              size_t *buffers_len) {
    GIVE_BUFFERS(RUNNING_STATISTICS, NULL);
}

/* ---- buckets as they become ready */

static int receive_bucket(OrtGradientsReadyFunction function, void *parameter, BufferContents *bucket) {
    OrtFlatBuffer *buffer = new_handle(KIND_FlatBuffer);
    if (buffer == NULL) {
        free_contents(bucket);
        return -1;
    }
    buffer->contents = *bucket;
    function(parameter, buffer);
    return 0;
}

OrtStatus *ORT_API_CALL extension_SetGradientsReadyFunction(OrtTrainingSession *sess, OrtGradientsReadyFunction ready_function, void *ready_param,
                                                            size_t bucket_bytes) {
    REQUIRE(TrainingSession, sess);
    CALL_ENGINE(sess, on_gradients_ready(sess->object, receive_bucket, ready_function, ready_param, bucket_bytes, &failure));
    return NULL;
}

/* ---- names */

static OrtStatus *give_name(const Strings *names, size_t index, OrtAllocator *allocator, char **output, const char *function) {
    if (index >= names->count)
        return make_status(ORT_INVALID_ARGUMENT, "expected an index in [0, %zu) for %s, got %zu", names->count, function, index);
    return give_text(allocator, names->items[index], output);
}

OrtStatus *ORT_API_CALL extension_GetMomentCount(OrtTrainingSession *sess, size_t *out) {
    REQUIRE(TrainingSession, sess);
    REQUIRE_POINTER(out);
    Strings names = { 0, NULL };
    CALL_ENGINE(sess, moment_names(sess->object, &names, &failure));
    *out = names.count;
    free_texts(&names);
    return NULL;
}

OrtStatus *ORT_API_CALL extension_GetMomentName(OrtTrainingSession *sess, size_t index, OrtAllocator *allocator, char **output) {
    REQUIRE(TrainingSession, sess);
    REQUIRE_POINTER(allocator);
    REQUIRE_POINTER(output);
    Strings names = { 0, NULL };
    CALL_ENGINE(sess, moment_names(sess->object, &names, &failure));
    OrtStatus *status = give_name(&names, index, allocator, output, "GetMomentName");
    free_texts(&names);
    return status;
}

OrtStatus *ORT_API_CALL extension_FlatBufferGetParameterCount(const OrtFlatBuffer *buffer, size_t *out) {
    REQUIRE(FlatBuffer, buffer);
    REQUIRE_POINTER(out);
    *out = buffer->contents.names.count;
    return NULL;
}

OrtStatus *ORT_API_CALL extension_FlatBufferGetParameterName(const OrtFlatBuffer *buffer, size_t index, OrtAllocator *allocator, char **output) {
    REQUIRE(FlatBuffer, buffer);
    REQUIRE_POINTER(allocator);
    REQUIRE_POINTER(output);
    return give_name(&buffer->contents.names, index, allocator, output, "FlatBufferGetParameterName");
}

OrtStatus *ORT_API_CALL extension_FlatBufferGetOffset(const OrtFlatBuffer *buffer, const char *parameter_name, size_t *out) {
    REQUIRE(FlatBuffer, buffer);
    REQUIRE_POINTER(parameter_name);
    REQUIRE_POINTER(out);
    size_t found = find_text(&buffer->contents.names, parameter_name);
    if (found == buffer->contents.names.count)
        return make_status(ORT_INVALID_ARGUMENT, "expected a parameter of this buffer for FlatBufferGetOffset, got '%s'", parameter_name);
    *out = buffer->contents.offsets[found];
    return NULL;
}

/* ---- values */

/* Give the whole buffer, or the tensor of a parameter, as a value over the same memory. */
static OrtStatus *give_value(const OrtFlatBuffer *buffer, const char *parameter, OrtValue **value) {
    const Bridge *bridge;
    Failure failure = { ORT_OK, NULL };
    Content *content = NULL;
    RETURN_IF(enter_engine(&bridge));
    if (bridge->buffer_value(buffer->contents.object, parameter, &content, &failure) < 0)
        return status_of(&failure);
    return new_value(content, value);
}

OrtStatus *ORT_API_CALL extension_FlatBufferGetValue(OrtFlatBuffer *buffer, OrtValue **value) {
    REQUIRE(FlatBuffer, buffer);
    REQUIRE_POINTER(value);
    return give_value(buffer, NULL, value);
}

OrtStatus *ORT_API_CALL extension_FlatBufferGetView(OrtFlatBuffer *buffer, const char *parameter_name, OrtValue **view) {
    REQUIRE(FlatBuffer, buffer);
    REQUIRE_POINTER(parameter_name);
    REQUIRE_POINTER(view);
    return give_value(buffer, parameter_name, view);
}
