/* One function per operation of the specification, each with the calls that a program in C would make. Included by conformance.c alone. */

/* ---- tables, statuses, allocator */

static void base_get(void *on) { (void)on; reply_flag(OrtGetApiBase() != NULL); }
static void base_api(void *on) { (void)on; reply_flag(OrtGetApiBase()->GetApi((uint32_t)whole_argument("version")) != NULL); }
static void base_version(void *on) { (void)on; reply_flag(*OrtGetApiBase()->GetVersionString() != '\0'); }
static void api_training(void *on) { (void)on; reply_flag(ort->GetTrainingApi((uint32_t)whole_argument("version")) != NULL); }

/* A function that returns no status cannot refuse a released object: the call has no effect, which is not the answer that a case asks for. */
static void require_open(void) {
    if (target->released)
        end("absent", "%s on a released object, which a function without a status cannot refuse", call);
}

static void status_create(void *on) {
    (void)on;
    reply_object(STATUS, ort->CreateStatus((OrtErrorCode)whole_argument("code"), text_argument("message")));
}

static void status_code(void *status) {
    int code = ort->GetErrorCode(status);
    require_open();
    reply_count((size_t)code);
}

static void status_message(void *status) {
    const char *message = ort->GetErrorMessage(status);
    require_open();
    write_string(reply, message);
}

static void release_object(void *handle) {
    release(target->kind, handle);
    require_open();
    target->released = true;
}

static void memory_info_create(void *on) {
    (void)on;
    OrtMemoryInfo *info;
    check(ort->CreateCpuMemoryInfo((OrtAllocatorType)whole_argument("allocator_type"), (OrtMemType)whole_argument("memory_type"), &info));
    reply_object(MEMORY_INFO, info);
}

static void allocator_default(void *on) {
    (void)on;
    OrtAllocator *found;
    check(ort->GetAllocatorWithDefaultOptions(&found));
    reply_object(ALLOCATOR, found);
}

static void allocator_allocate(void *on) {
    void *memory;
    check(ort->AllocatorAlloc(on, (size_t)whole_argument("size"), &memory));
    reply_object(MEMORY, memory);
}

static void allocator_free(void *on) {
    void *memory = object_argument("memory", MEMORY);
    Object *object = find_object(member(member(arguments, "memory"), "object")->text);
    if (object->released)
        end("absent", "%s of freed memory, which C cannot tell", call);
    check(ort->AllocatorFree(on, memory));
    object->released = true;
}

/* ---- environments and options */

static void env_create(void *on) {
    (void)on;
    OrtEnv *env;
    const char *identifier = text_or_null("identifier");
    check(ort->CreateEnv((OrtLoggingLevel)whole_argument("logging_level"), identifier != NULL ? identifier : "port", &env));
    reply_object(ENV, env);
}

static void options_create(void *on) {
    (void)on;
    OrtSessionOptions *options;
    check(ort->CreateSessionOptions(&options));
    reply_object(OPTIONS, options);
}

static void options_threads(void *on) { check(ort->SetIntraOpNumThreads(on, (int)whole_argument("threads"))); }
static void options_log_level(void *on) { check(ort->SetSessionLogSeverityLevel(on, (int)whole_argument("level"))); }
static void options_entry(void *on) { check(ort->AddSessionConfigEntry(on, text_argument("key"), text_argument("value"))); }
static void options_provider(void *on) { check(ort->SessionOptionsAppendExecutionProvider(on, text_argument("provider"), NULL, NULL, 0)); }
static void options_library(void *on) { check(ort->RegisterCustomOpsLibrary_V2(on, text_argument("path"))); }

static void run_options_create(void *on) {
    (void)on;
    OrtRunOptions *options;
    check(ort->CreateRunOptions(&options));
    reply_object(RUN_OPTIONS, options);
}

static void run_options_terminate(void *on) {
    check(flag_argument("value") ? ort->RunOptionsSetTerminate(on) : ort->RunOptionsUnsetTerminate(on));
}

/* ---- tensors */

static void tensor_create(void *on) {
    (void)on;
    const Json *number = member(arguments, "element_type");
    reply_object(VALUE, make_value(argument("memory", JSON_OBJECT), argument("shape", JSON_LIST),
                                   number == NULL ? 0 : (ONNXTensorElementDataType)whole_argument("element_type")));
}

static void tensor_allocate(void *on) {
    (void)on;
    int64_t shape[MAX_DIMENSIONS];
    size_t rank = read_shape(argument("shape", JSON_LIST), shape);
    OrtValue *value;
    check(ort->CreateTensorAsOrtValue(allocator, shape, rank, (ONNXTensorElementDataType)whole_argument("element_type"), &value));
    reply_object(VALUE, value);
}

/* Write into a tensor what the request says, if anything. */
static void write_data(OrtValue *value) {
    const Json *written = member(arguments, "write");
    if (written == NULL)
        return;
    const ElementType *type;
    size_t bytes;
    void *source = read_data(written, &type, &bytes), *data;
    check(ort->GetTensorMutableData(value, &data));
    memcpy(data, source, bytes);
}

static void tensor_data(void *on) {
    write_data(on);
    reply_tensor(on, true);
}

static void tensor_shape(void *on) {
    OrtTensorTypeAndShapeInfo *info;
    check(ort->GetTensorTypeAndShape(on, &info));
    reply_object(SHAPE, info);
}

static void tensor_is_tensor(void *on) {
    int answer;
    check(ort->IsTensor(on, &answer));
    reply_flag(answer);
}

static void tensor_strings(void *on) {
    size_t count;
    const char **strings = texts_argument("strings", &count);
    check(ort->FillStringTensor(on, strings, count));
}

static void shape_type(void *on) {
    ONNXTensorElementDataType number;
    check(ort->GetTensorElementType(on, &number));
    reply_count(number);
}

static void shape_rank(void *on) {
    size_t rank;
    check(ort->GetDimensionsCount(on, &rank));
    reply_count(rank);
}

static void shape_sizes(void *on) {
    size_t rank;
    int64_t shape[MAX_DIMENSIONS];
    check(ort->GetDimensionsCount(on, &rank));
    check(ort->GetDimensions(on, shape, rank));
    fputs("[", reply);
    for (size_t i = 0; i < rank; i++)
        fprintf(reply, "%s%" PRId64, i > 0 ? ", " : "", shape[i]);
    fputs("]", reply);
}

static void shape_count(void *on) {
    size_t count;
    check(ort->GetTensorShapeElementCount(on, &count));
    reply_count(count);
}

/* ---- checkpoints */

static void state_load(void *on) {
    (void)on;
    OrtCheckpointState *state;
    check(training->LoadCheckpoint(text_argument("path"), &state));
    reply_object(STATE, state);
}

static void state_load_bytes(void *on) {
    (void)on;
    OrtCheckpointState *state;
    size_t size;
    const void *bytes = bytes_argument("data", &size);
    check(training->LoadCheckpointFromBuffer(bytes, size, &state));
    reply_object(STATE, state);
}

static void state_save(void *on) { check(training->SaveCheckpoint(on, text_argument("path"), flag_argument("include_optimizer_state"))); }

static void state_set_property(void *on) {
    const Json *value = member(arguments, "value");
    const char *name = text_argument("name");
    if (value->type == JSON_STRING)
        check(training->AddProperty(on, name, OrtStringProperty, value->text));
    else if (value->type != JSON_NUMBER)
        check(training->AddProperty(on, name, (OrtPropertyType)-1, (void *)value));
    else if (strpbrk(value->text, ".eEN") != NULL) {
        float number = strtof(value->text, NULL);
        check(training->AddProperty(on, name, OrtFloatProperty, &number));
    } else {
        int64_t number = whole_argument("value");
        check(training->AddProperty(on, name, OrtIntProperty, &number));
    }
}

static void state_get_property(void *on) {
    OrtPropertyType type;
    void *value;
    check(training->GetProperty(on, text_argument("name"), allocator, &type, &value));
    keep(MEMORY, NULL, value);
    if (type == OrtStringProperty)
        write_string(reply, value);
    else if (type == OrtFloatProperty)
        write_float(reply, *(float *)value);
    else
        fprintf(reply, "%" PRId64, *(int64_t *)value);
}

static void write_name(char *name) {
    keep(MEMORY, NULL, name);
    write_string(reply, name);
}

static void state_parameter(void *on) {
    OrtValue *value;
    check(training->GetParameter(on, text_argument("name"), allocator, &value));
    reply_tensor(keep(VALUE, NULL, value), false);
}

static void state_set_parameter(void *on) { check(training->UpdateParameter(on, text_argument("name"), value_argument("value"))); }

static void state_parameter_shape(void *on) {
    OrtTensorTypeAndShapeInfo *info;
    check(training->GetParameterTypeAndShape(on, text_argument("name"), &info));
    reply_object(SHAPE, info);
}

/* ---- sessions */

static OrtEnv *environment(void) {
    OrtEnv *env = object_argument("environment", ENV);
    return env != NULL ? env : default_env;
}

static void session_create(void *on) {
    (void)on;
    OrtTrainingSession *session;
    check(training->CreateTrainingSession(environment(), object_argument("options", OPTIONS), object_argument("state", STATE), text_argument("train_model"),
                                          text_or_null("eval_model"), text_or_null("optimizer_model"), &session));
    reply_object(SESSION, session);
}

static void session_create_bytes(void *on) {
    (void)on;
    OrtTrainingSession *session;
    size_t sizes[3];
    const void *train = bytes_argument("train_model", &sizes[0]), *eval = bytes_argument("eval_model", &sizes[1]);
    const void *optimizer = bytes_argument("optimizer_model", &sizes[2]);
    check(training->CreateTrainingSessionFromBuffer(environment(), object_argument("options", OPTIONS), object_argument("state", STATE), train, sizes[0], eval,
                                                    sizes[1], optimizer, sizes[2], &session));
    reply_object(SESSION, session);
}

static OrtValue **read_values(const Json *list) {
    OrtValue **values = take((list->count + 1) * sizeof(OrtValue *));
    size_t count = 0;
    for (const Json *item = list->first; item != NULL; item = item->next)
        values[count++] = keep(VALUE, NULL, make_value(item, NULL, 0));
    return values;
}

static void step(OrtTrainingSession *session, bool trains) {
    const Json *given = argument("inputs", JSON_LIST), *wanted = member(arguments, "outputs");
    const OrtValue *const *inputs = (const OrtValue *const *)read_values(given);
    OrtRunOptions *options = object_argument("run_options", RUN_OPTIONS);
    bool preallocated = wanted != NULL && wanted->type == JSON_LIST;
    size_t count = preallocated ? wanted->count : 0;
    if (!preallocated)
        check((trains ? training->TrainingSessionGetTrainingModelOutputCount : training->TrainingSessionGetEvalModelOutputCount)(session, &count));
    OrtValue **outputs = preallocated ? read_values(wanted) : take((count + 1) * sizeof(OrtValue *));
    check(trains ? training->TrainStep(session, options, given->count, inputs, count, outputs)
                 : training->EvalStep(session, options, given->count, inputs, count, outputs));
    for (size_t i = 0; i < count && !preallocated; i++)
        keep(VALUE, NULL, outputs[i]);
    fputs("[", reply);
    for (size_t i = 0; i < count; i++) {
        fputs(i > 0 ? ", " : "", reply);
        reply_tensor(outputs[i], false);
    }
    fputs("]", reply);
}

static void session_train(void *on) { step(on, true); }
static void session_eval(void *on) { step(on, false); }
static void session_optimizer_step(void *on) { check(training->OptimizerStep(on, object_argument("run_options", RUN_OPTIONS))); }
static void session_reset(void *on) { check(training->LazyResetGrad(on)); }
static void session_set_rate(void *on) { check(training->SetLearningRate(on, (float)number_argument("learning_rate"))); }

static void session_rate(void *on) {
    float rate;
    check(training->GetLearningRate(on, &rate));
    write_float(reply, rate);
}

static void session_schedule(void *on) {
    check(training->RegisterLinearLRScheduler(on, whole_argument("warmup_step_count"), whole_argument("total_step_count"),
                                              (float)number_argument("initial_lr")));
}

static void session_schedule_step(void *on) { check(training->SchedulerStep(on)); }

/* Count and names of inputs or outputs, of the training or the eval model. */
static size_t count_of(OrtTrainingSession *session, bool input) {
    size_t count;
    if (flag_argument("training"))
        check((input ? training->TrainingSessionGetTrainingModelInputCount : training->TrainingSessionGetTrainingModelOutputCount)(session, &count));
    else
        check((input ? training->TrainingSessionGetEvalModelInputCount : training->TrainingSessionGetEvalModelOutputCount)(session, &count));
    return count;
}

static void write_name_of(OrtTrainingSession *session, bool input, size_t index) {
    char *name;
    if (flag_argument("training"))
        check((input ? training->TrainingSessionGetTrainingModelInputName
                     : training->TrainingSessionGetTrainingModelOutputName)(session, index, allocator, &name));
    else
        check((input ? training->TrainingSessionGetEvalModelInputName : training->TrainingSessionGetEvalModelOutputName)(session, index, allocator, &name));
    write_name(name);
}

static void write_names_of(OrtTrainingSession *session, bool input) {
    size_t count = count_of(session, input);
    fputs("[", reply);
    for (size_t i = 0; i < count; i++) {
        fputs(i > 0 ? ", " : "", reply);
        write_name_of(session, input, i);
    }
    fputs("]", reply);
}

static void session_input_count(void *on) { reply_count(count_of(on, true)); }
static void session_output_count(void *on) { reply_count(count_of(on, false)); }
static void session_input_name(void *on) { write_name_of(on, true, (size_t)whole_argument("index")); }
static void session_output_name(void *on) { write_name_of(on, false, (size_t)whole_argument("index")); }
static void session_input_names(void *on) { write_names_of(on, true); }
static void session_output_names(void *on) { write_names_of(on, false); }

static void session_size(void *on) {
    size_t size;
    check(training->GetParametersSize(on, &size, flag_argument("trainable_only")));
    reply_count(size);
}

static void session_copy_to_buffer(void *on) {
    OrtValue *buffer = value_argument("buffer");
    check(training->CopyParametersToBuffer(on, buffer, flag_argument("trainable_only")));
    reply_tensor(buffer, false);
}

static void session_to_buffer(void *on) {
    size_t size;
    bool trainable_only = flag_argument("trainable_only");
    check(training->GetParametersSize(on, &size, trainable_only));
    OrtValue *buffer;
    check(ort->CreateTensorAsOrtValue(allocator, (int64_t[]){ (int64_t)size }, 1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &buffer));
    keep(VALUE, NULL, buffer);
    check(training->CopyParametersToBuffer(on, buffer, trainable_only));
    reply_tensor(buffer, false);
}

static void session_from_buffer(void *on) { check(training->CopyBufferToParameters(on, value_argument("buffer"), flag_argument("trainable_only"))); }

static void session_export(void *on) {
    size_t count;
    const char **names = texts_argument("output_names", &count);
    check(training->ExportModelForInferencing(on, text_argument("path"), count, names));
}

#include "buffer_operations.h"

static void set_seed(void *on) { (void)on; check(training->SetSeed(whole_argument("seed"))); }

static const struct {
    const char *name;
    Kind kind;                          /* of the object that the operation is called on */
    void (*run)(void *on);
} operations[] = {
    { "allocator.allocate", ALLOCATOR, allocator_allocate }, { "allocator.create_memory_info", NONE, memory_info_create },
    { "allocator.free", ALLOCATOR, allocator_free }, { "allocator.get_default", NONE, allocator_default },
    { "allocator.release_memory_info", MEMORY_INFO, release_object }, { "api.training_api", NONE, api_training },
    { "api_base.api", NONE, base_api }, { "api_base.get", NONE, base_get }, { "api_base.training_extensions", NONE, base_extensions },
    { "api_base.version", NONE, base_version },
    { "checkpoint_state.get_parameter", STATE, state_parameter }, { "checkpoint_state.get_property", STATE, state_get_property },
    { "checkpoint_state.load", NONE, state_load },
    { "checkpoint_state.load_from_buffer", NONE, state_load_bytes },
    { "checkpoint_state.parameter_type_and_shape", STATE, state_parameter_shape }, { "checkpoint_state.release", STATE, release_object },
    { "checkpoint_state.save", STATE, state_save },
    { "checkpoint_state.set_parameter", STATE, state_set_parameter },
    { "checkpoint_state.set_property", STATE, state_set_property }, { "environment.create", NONE, env_create },
    { "environment.release", ENV, release_object }, { "flat_buffer.offset", BUFFER, buffer_offset },
    { "flat_buffer.parameter_count", BUFFER, buffer_count }, { "flat_buffer.parameter_name", BUFFER, buffer_name },
    { "flat_buffer.parameter_names", BUFFER, buffer_names }, { "flat_buffer.release", BUFFER, release_object },
    { "flat_buffer.value", BUFFER, buffer_value }, { "flat_buffer.view", BUFFER, buffer_view }, { "run_options.create", NONE, run_options_create },
    { "run_options.release", RUN_OPTIONS, release_object }, { "run_options.set_terminate", RUN_OPTIONS, run_options_terminate },
    { "session_options.add_config_entry", OPTIONS, options_entry }, { "session_options.append_execution_provider", OPTIONS, options_provider },
    { "session_options.create", NONE, options_create }, { "session_options.register_custom_ops_library", OPTIONS, options_library },
    { "session_options.release", OPTIONS, release_object }, { "session_options.set_intra_op_num_threads", OPTIONS, options_threads },
    { "session_options.set_log_severity_level", OPTIONS, options_log_level }, { "status.create", NONE, status_create },
    { "status.get_error_code", STATUS, status_code }, { "status.get_error_message", STATUS, status_message },
    { "status.release", STATUS, release_object }, { "tensor.allocate", NONE, tensor_allocate }, { "tensor.create", NONE, tensor_create },
    { "tensor.fill_strings", VALUE, tensor_strings }, { "tensor.is_tensor", VALUE, tensor_is_tensor }, { "tensor.mutable_data", VALUE, tensor_data },
    { "tensor.release", VALUE, release_object }, { "tensor.type_and_shape", VALUE, tensor_shape }, { "training.set_seed", NONE, set_seed },
    { "training_session.copy_to_buffer", SESSION, session_copy_to_buffer }, { "training_session.create", NONE, session_create },
    { "training_session.create_from_buffers", NONE, session_create_bytes }, { "training_session.eval_step", SESSION, session_eval },
    { "training_session.export_model_for_inferencing", SESSION, session_export },
    { "training_session.from_buffer", SESSION, session_from_buffer }, { "training_session.get_learning_rate", SESSION, session_rate },
    { "training_session.gradient_buffers", SESSION, session_gradients },
    { "training_session.input_count", SESSION, session_input_count }, { "training_session.input_name", SESSION, session_input_name },
    { "training_session.input_names", SESSION, session_input_names }, { "training_session.lazy_reset_grad", SESSION, session_reset },
    { "training_session.moment_buffers", SESSION, session_moments }, { "training_session.moment_count", SESSION, session_moment_count },
    { "training_session.moment_name", SESSION, session_moment_name }, { "training_session.moment_names", SESSION, session_moment_names },
    { "training_session.on_gradients_ready", SESSION, session_ready },
    { "training_session.optimizer_step", SESSION, session_optimizer_step }, { "training_session.output_count", SESSION, session_output_count },
    { "training_session.output_name", SESSION, session_output_name }, { "training_session.output_names", SESSION, session_output_names },
    { "training_session.parameter_buffers", SESSION, session_parameters }, { "training_session.parameters_size", SESSION, session_size },
    { "training_session.register_linear_lr_scheduler", SESSION, session_schedule }, { "training_session.release", SESSION, release_object },
    { "training_session.running_statistics_buffers", SESSION, session_statistics },
    { "training_session.scheduler_step", SESSION, session_schedule_step }, { "training_session.set_learning_rate", SESSION, session_set_rate },
    { "training_session.to_buffer", SESSION, session_to_buffer }, { "training_session.train_step", SESSION, session_train },
    { "type_and_shape.dimensions_count", SHAPE, shape_rank },
    { "type_and_shape.element_count", SHAPE, shape_count }, { "type_and_shape.element_type", SHAPE, shape_type },
    { "type_and_shape.release", SHAPE, release_object }, { "type_and_shape.shape", SHAPE, shape_sizes },
};
static const size_t operation_count = sizeof(operations) / sizeof(*operations);
