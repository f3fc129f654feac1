/* Training sessions. */
#include "calls.h"
#include "environment.h"
#include "options.h"
#include "python.h"
#include "status.h"
#include "text.h"
#include "training.h"

static OrtStatus *create(const OrtEnv *env, const OrtSessionOptions *options, OrtCheckpointState *state, const Source models[3], OrtTrainingSession **out) {
    const Bridge *bridge;
    Failure failure = { ORT_OK, NULL };
    Settings settings = settings_for(options, env);
    TrainingNames names = { { 0, NULL }, { 0, NULL }, { 0, NULL }, { 0, NULL }, false };
    void *object = NULL;
    RETURN_IF(enter_engine(&bridge));
    if (bridge->create_training_session(&settings, state->object, models, &names, &object, &failure) < 0)
        return log_failure(env->logger, "CreateTrainingSession", status_of(&failure));
    OrtTrainingSession *session = new_handle(KIND_TrainingSession);
    if (session == NULL) {
        bridge->close_training_session(object);
        return out_of_memory();
    }
    session->object = object;
    session->names = names;
    session->logger = logger_for(options, env);
    log_message(session->logger, ORT_LOGGING_LEVEL_INFO, "CreateTrainingSession", "a training session was created");
    *out = session;
    return NULL;
}

OrtStatus *ORT_API_CALL training_CreateTrainingSession(const OrtEnv *env, const OrtSessionOptions *options, OrtCheckpointState *checkpoint_state,
                                                       const ORTCHAR_T *train_model_path, const ORTCHAR_T *eval_model_path,
                                                       const ORTCHAR_T *optimizer_model_path, OrtTrainingSession **out) {
    REQUIRE(Env, env);
    REQUIRE_OR_NULL(SessionOptions, options);
    REQUIRE(CheckpointState, checkpoint_state);
    REQUIRE_POINTER(train_model_path);
    REQUIRE_POINTER(out);
    const Source models[3] = { { train_model_path, NULL, 0 }, { eval_model_path, NULL, 0 }, { optimizer_model_path, NULL, 0 } };
    return create(env, options, checkpoint_state, models, out);
}

OrtStatus *ORT_API_CALL training_CreateTrainingSessionFromBuffer(const OrtEnv *env, const OrtSessionOptions *options, OrtCheckpointState *checkpoint_state,
                                                                 const void *train_model_data, size_t train_data_length, const void *eval_model_data,
                                                                 size_t eval_data_length, const void *optim_model_data, size_t optim_data_length,
                                                                 OrtTrainingSession **out) {
    REQUIRE(Env, env);
    REQUIRE_OR_NULL(SessionOptions, options);
    REQUIRE(CheckpointState, checkpoint_state);
    REQUIRE_POINTER(train_model_data);
    REQUIRE_POINTER(out);
    const Source models[3] = { { NULL, train_model_data, train_data_length }, { NULL, eval_data_length > 0 ? eval_model_data : NULL, eval_data_length },
                               { NULL, optim_data_length > 0 ? optim_model_data : NULL, optim_data_length } };
    return create(env, options, checkpoint_state, models, out);
}

void ORT_API_CALL training_ReleaseTrainingSession(OrtTrainingSession *input) {
    if (!is_open(input, KIND_TrainingSession))
        return;
    OrtTrainingSession session = *input;
    if (!free_handle(input, KIND_TrainingSession))
        return;
    free_texts(&session.names.training_inputs);
    free_texts(&session.names.training_outputs);
    free_texts(&session.names.eval_inputs);
    free_texts(&session.names.eval_outputs);
    release_logger(session.logger);
    const Bridge *bridge;
    OrtStatus *status = running_bridge() == NULL ? NULL : enter_engine(&bridge);
    if (running_bridge() != NULL && status == NULL)
        bridge->close_training_session(session.object);
    api_ReleaseStatus(status);
}

/* ---- steps */

static OrtStatus *require_count(size_t given, const Strings *names, const char *what, const char *function) {
    return given == names->count ? NULL : make_status(ORT_INVALID_ARGUMENT, "expected %zu %s for %s, got %zu", names->count, what, function, given);
}

static OrtStatus *step(const OrtTrainingSession *session, bool is_training, const OrtRunOptions *run_options, size_t inputs_len, const OrtValue *const *inputs,
                       size_t outputs_len, OrtValue **outputs, const char *function) {
    const Bridge *bridge;
    Failure failure = { ORT_OK, NULL };
    Values values;
    Call call;
    const TrainingNames *names = &session->names;
    if (is_training || names->has_eval_model) {
        RETURN_IF(require_count(inputs_len, is_training ? &names->training_inputs : &names->eval_inputs, "inputs", function));
        RETURN_IF(require_count(outputs_len, is_training ? &names->training_outputs : &names->eval_outputs, "outputs", function));
    }
    OrtStatus *status = enter_engine(&bridge);
    if (status != NULL)
        return status;
    status = take_values(&values, &call, run_options, inputs_len, inputs, outputs_len, outputs, function);
    if (status == NULL) {
        int result = is_training ? bridge->train_step(session->object, &call, &failure) : bridge->eval_step(session->object, &call, &failure);
        status = result < 0 ? status_of(&failure) : give_values(&call, outputs);
        if (result < 0)
            drop_values(&call, outputs);
    }
    free_values(&values);
    return status == NULL ? NULL : log_failure(session->logger, function, status);
}

OrtStatus *ORT_API_CALL training_TrainStep(OrtTrainingSession *sess, const OrtRunOptions *run_options, size_t inputs_len, const OrtValue *const *inputs,
                                           size_t outputs_len, OrtValue **outputs) {
    REQUIRE(TrainingSession, sess);
    REQUIRE_OR_NULL(RunOptions, run_options);
    return step(sess, true, run_options, inputs_len, inputs, outputs_len, outputs, "TrainStep");
}

OrtStatus *ORT_API_CALL training_EvalStep(const OrtTrainingSession *sess, const OrtRunOptions *run_options, size_t inputs_len, const OrtValue *const *inputs,
                                          size_t outputs_len, OrtValue **outputs) {
    REQUIRE(TrainingSession, sess);
    REQUIRE_OR_NULL(RunOptions, run_options);
    return step(sess, false, run_options, inputs_len, inputs, outputs_len, outputs, "EvalStep");
}

OrtStatus *ORT_API_CALL training_OptimizerStep(OrtTrainingSession *sess, const OrtRunOptions *run_options) {
    REQUIRE(TrainingSession, sess);
    REQUIRE_OR_NULL(RunOptions, run_options);
    CALL_ENGINE(sess, optimizer_step(sess->object, run_options == NULL ? NULL : &run_options->terminate, &failure));
    return NULL;
}

OrtStatus *ORT_API_CALL training_LazyResetGrad(OrtTrainingSession *session) {
    REQUIRE(TrainingSession, session);
    CALL_ENGINE(session, reset_gradients(session->object, &failure));
    return NULL;
}

OrtStatus *ORT_API_CALL training_SetLearningRate(OrtTrainingSession *sess, float learning_rate) {
    REQUIRE(TrainingSession, sess);
    CALL_ENGINE(sess, set_learning_rate(sess->object, learning_rate, &failure));
    return NULL;
}

OrtStatus *ORT_API_CALL training_GetLearningRate(OrtTrainingSession *sess, float *learning_rate) {
    REQUIRE(TrainingSession, sess);
    REQUIRE_POINTER(learning_rate);
    CALL_ENGINE(sess, get_learning_rate(sess->object, learning_rate, &failure));
    return NULL;
}

OrtStatus *ORT_API_CALL training_RegisterLinearLRScheduler(OrtTrainingSession *sess, const int64_t warmup_step_count, const int64_t total_step_count,
                                                           const float initial_lr) {
    REQUIRE(TrainingSession, sess);
    CALL_ENGINE(sess, register_linear_schedule(sess->object, warmup_step_count, total_step_count, initial_lr, &failure));
    return NULL;
}

OrtStatus *ORT_API_CALL training_SchedulerStep(OrtTrainingSession *sess) {
    REQUIRE(TrainingSession, sess);
    CALL_ENGINE(sess, schedule_step(sess->object, &failure));
    return NULL;
}

OrtStatus *ORT_API_CALL training_SetSeed(const int64_t seed) {
    const Bridge *bridge;
    Failure failure = { ORT_OK, NULL };
    RETURN_IF(enter_engine(&bridge));
    return bridge->set_seed(seed, &failure) < 0 ? status_of(&failure) : NULL;
}

/* ---- parameters and export */

OrtStatus *ORT_API_CALL training_GetParametersSize(OrtTrainingSession *sess, size_t *out, bool trainable_only) {
    REQUIRE(TrainingSession, sess);
    REQUIRE_POINTER(out);
    CALL_ENGINE(sess, parameters_size(sess->object, trainable_only, out, &failure));
    return NULL;
}

OrtStatus *ORT_API_CALL training_CopyParametersToBuffer(OrtTrainingSession *sess, OrtValue *parameters_buffer, bool trainable_only) {
    REQUIRE(TrainingSession, sess);
    REQUIRE(Value, parameters_buffer);
    CALL_ENGINE(sess, copy_parameters(sess->object, parameters_buffer->content, trainable_only, &failure));
    return NULL;
}

OrtStatus *ORT_API_CALL training_CopyBufferToParameters(OrtTrainingSession *sess, OrtValue *parameters_buffer, bool trainable_only) {
    REQUIRE(TrainingSession, sess);
    REQUIRE(Value, parameters_buffer);
    CALL_ENGINE(sess, copy_buffer(sess->object, parameters_buffer->content, trainable_only, &failure));
    return NULL;
}

OrtStatus *ORT_API_CALL training_ExportModelForInferencing(OrtTrainingSession *sess, const ORTCHAR_T *inference_model_path, size_t graph_outputs_len,
                                                           const char *const *graph_output_names) {
    REQUIRE(TrainingSession, sess);
    REQUIRE_POINTER(inference_model_path);
    for (size_t i = 0; i < graph_outputs_len; i++) {
        REQUIRE_POINTER(graph_output_names);
        REQUIRE_POINTER(graph_output_names[i]);
    }
    CALL_ENGINE(sess, export_model(sess->object, inference_model_path, graph_output_names, graph_outputs_len, &failure));
    return NULL;
}

/* ---- names */

static OrtStatus *give_name(const OrtTrainingSession *session, bool is_training, const Strings *names, size_t index, OrtAllocator *allocator, char **output,
                            const char *function) {
    if (!is_training && !session->names.has_eval_model)
        return make_status(ORT_FAIL, "Evaluation session not initialized: expected an eval model for %s, the session has none.", function);
    if (index >= names->count)
        return make_status(ORT_INVALID_ARGUMENT, "expected an index in [0, %zu) for %s, got %zu", names->count, function, index);
    return give_text(allocator, names->items[index], output);
}

#define COUNT_AND_NAME(Which, What, is_training, list) \
    OrtStatus *ORT_API_CALL training_TrainingSessionGet##Which##Model##What##Count(const OrtTrainingSession *sess, size_t *out) { \
        REQUIRE(TrainingSession, sess); \
        REQUIRE_POINTER(out); \
        if (!is_training && !sess->names.has_eval_model) \
            return make_status(ORT_FAIL, "Evaluation session not initialized: expected an eval model, the session has none."); \
        *out = sess->names.list.count; \
        return NULL; \
    } \
    OrtStatus *ORT_API_CALL training_TrainingSessionGet##Which##Model##What##Name(const OrtTrainingSession *sess, size_t index, OrtAllocator *allocator, \
                                                                                  char **output) { \
        REQUIRE(TrainingSession, sess); \
        REQUIRE_POINTER(allocator); \
        REQUIRE_POINTER(output); \
        return give_name(sess, is_training, &sess->names.list, index, allocator, output, public_name(__func__)); \
    }

COUNT_AND_NAME(Training, Input, true, training_inputs)
COUNT_AND_NAME(Training, Output, true, training_outputs)
COUNT_AND_NAME(Eval, Input, false, eval_inputs)
COUNT_AND_NAME(Eval, Output, false, eval_outputs)
