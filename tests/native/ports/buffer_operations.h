/* The operations of flat buffers. Included by operations.h alone. */

static void base_extensions(void *on) { (void)on; reply_flag(OrtGetTrainingExtensions((uint32_t)whole_argument("version")) != NULL); }

/* Reply with the buffers that a function has given, and free their array. */
static void reply_buffers(OrtStatus *status, OrtFlatBuffer ***buffers, size_t *count) {
    check(status);
    reply_objects(BUFFER, (void **)*buffers, *count);
    check(ort->AllocatorFree(allocator, *buffers));
}

#define REPLY_BUFFERS(function, ...) \
    do { \
        OrtFlatBuffer **buffers; \
        size_t count; \
        reply_buffers(extensions->function(__VA_ARGS__, allocator, &buffers, &count), &buffers, &count); \
    } while (0)

static void session_gradients(void *on) { REPLY_BUFFERS(GetGradientBuffers, on); }
static void session_parameters(void *on) { REPLY_BUFFERS(GetParameterBuffers, on); }
static void session_moments(void *on) { REPLY_BUFFERS(GetMomentBuffers, on, text_argument("name")); }
static void session_statistics(void *on) { REPLY_BUFFERS(GetRunningStatisticsBuffers, on); }

static size_t moments_of(OrtTrainingSession *session) {
    size_t count;
    check(extensions->GetMomentCount(session, &count));
    return count;
}

static void write_moment_of(OrtTrainingSession *session, size_t index) {
    char *name;
    check(extensions->GetMomentName(session, index, allocator, &name));
    write_name(name);
}

static void session_moment_count(void *on) { reply_count(moments_of(on)); }
static void session_moment_name(void *on) { write_moment_of(on, (size_t)whole_argument("index")); }

static void session_moment_names(void *on) {
    size_t count = moments_of(on);
    fputs("[", reply);
    for (size_t i = 0; i < count; i++) {
        fputs(i > 0 ? ", " : "", reply);
        write_moment_of(on, i);
    }
    fputs("]", reply);
}

static size_t parameters_of(OrtFlatBuffer *buffer) {
    size_t count;
    check(extensions->FlatBufferGetParameterCount(buffer, &count));
    return count;
}

static void write_parameter_of(OrtFlatBuffer *buffer, size_t index) {
    char *name;
    check(extensions->FlatBufferGetParameterName(buffer, index, allocator, &name));
    write_name(name);
}

static void buffer_count(void *on) { reply_count(parameters_of(on)); }
static void buffer_name(void *on) { write_parameter_of(on, (size_t)whole_argument("index")); }

static void buffer_names(void *on) {
    size_t count = parameters_of(on);
    fputs("[", reply);
    for (size_t i = 0; i < count; i++) {
        fputs(i > 0 ? ", " : "", reply);
        write_parameter_of(on, i);
    }
    fputs("]", reply);
}

static void buffer_offset(void *on) {
    size_t offset;
    check(extensions->FlatBufferGetOffset(on, text_argument("name"), &offset));
    reply_count(offset);
}

static void buffer_value(void *on) {
    OrtValue *value;
    check(extensions->FlatBufferGetValue(on, &value));
    keep(VALUE, NULL, value);
    write_data(value);
    reply_tensor(value, false);
}

static void buffer_view(void *on) {
    OrtValue *view;
    check(extensions->FlatBufferGetView(on, text_argument("name"), &view));
    keep(VALUE, NULL, view);
    write_data(view);
    reply_tensor(view, false);
}

/* Multiply the gradients in a bucket by the factor to which `param` points. */
static void scale_bucket(void *param, OrtFlatBuffer *bucket) {
    OrtValue *value;
    OrtTensorTypeAndShapeInfo *info;
    size_t count;
    float *data;
    check(extensions->FlatBufferGetValue(bucket, &value));
    check(ort->GetTensorTypeAndShape(value, &info));
    check(ort->GetTensorShapeElementCount(info, &count));
    check(ort->GetTensorMutableData(value, (void **)&data));
    for (size_t i = 0; i < count; i++)
        data[i] *= *(float *)param;
    ort->ReleaseTensorTypeAndShapeInfo(info);
    ort->ReleaseValue(value);
    extensions->ReleaseFlatBuffer(bucket);
}

static void session_ready(void *on) {
    const Json *factor = member(arguments, "factor");
    bool is_set = factor != NULL && factor->type != JSON_NULL;
    float *param = take(sizeof(float));
    if (is_set)
        *param = (float)number_argument("factor");
    check(extensions->SetGradientsReadyFunction(on, is_set ? scale_bucket : NULL, param, (size_t)whole_argument("bucket_bytes")));
}
