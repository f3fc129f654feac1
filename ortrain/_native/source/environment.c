/* Environments with their loggers, threading options, and the names of providers. */
#include "environment.h"

#include <stdlib.h>
#include <string.h>

#include "status.h"
#include "text.h"

Logger *retain_logger(Logger *logger) {
    if (logger != NULL)
        __atomic_add_fetch(&logger->references, 1, __ATOMIC_RELAXED);
    return logger;
}

void release_logger(Logger *logger) {
    if (logger == NULL || __atomic_sub_fetch(&logger->references, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    free(logger->id);
    free(logger);
}

Logger *new_logger(OrtLoggingFunction function, void *parameter, int level, const char *id) {
    Logger *logger = calloc(1, sizeof(Logger));
    if (logger == NULL || (logger->id = copy_text(id)) == NULL) {
        free(logger);
        return NULL;
    }
    logger->references = 1;
    logger->function = function;
    logger->parameter = parameter;
    logger->level = level;
    return logger;
}

void log_message(const Logger *logger, OrtLoggingLevel level, const char *where, const char *message) {
    OrtLoggingFunction function = logger == NULL ? NULL : __atomic_load_n(&logger->function, __ATOMIC_ACQUIRE);
    if (function != NULL && (int)level >= __atomic_load_n(&logger->level, __ATOMIC_RELAXED))
        function(logger->parameter, level, "ortrain", logger->id, where, message);
}

OrtStatus *log_failure(const Logger *logger, const char *where, OrtStatus *status) {
    if (status != NULL)
        log_message(logger, ORT_LOGGING_LEVEL_ERROR, where, api_GetErrorMessage(status));
    return status;
}

static OrtStatus *new_environment(OrtLoggingFunction function, void *parameter, int level, const char *id, int threads, OrtEnv **out) {
    Logger *logger = new_logger(function, parameter, level, id);
    OrtEnv *env = logger == NULL ? NULL : new_handle(KIND_Env);
    if (env == NULL) {
        release_logger(logger);
        return out_of_memory();
    }
    env->logger = logger;
    env->global_threads = threads;
    *out = env;
    return NULL;
}

OrtStatus *ORT_API_CALL api_CreateEnv(OrtLoggingLevel log_severity_level, const char *logid, OrtEnv **out) {
    REQUIRE_POINTER(out);
    return new_environment(NULL, NULL, log_severity_level, logid, -1, out);
}

OrtStatus *ORT_API_CALL api_CreateEnvWithCustomLogger(OrtLoggingFunction logging_function, void *logger_param, OrtLoggingLevel log_severity_level,
                                                      const char *logid, OrtEnv **out) {
    REQUIRE_POINTER(logging_function);
    REQUIRE_POINTER(out);
    return new_environment(logging_function, logger_param, log_severity_level, logid, -1, out);
}

OrtStatus *ORT_API_CALL api_CreateEnvWithGlobalThreadPools(OrtLoggingLevel log_severity_level, const char *logid, const OrtThreadingOptions *tp_options,
                                                           OrtEnv **out) {
    REQUIRE(ThreadingOptions, tp_options);
    REQUIRE_POINTER(out);
    return new_environment(NULL, NULL, log_severity_level, logid, tp_options->threads, out);
}

OrtStatus *ORT_API_CALL api_CreateEnvWithCustomLoggerAndGlobalThreadPools(OrtLoggingFunction logging_function, void *logger_param,
                                                                          OrtLoggingLevel log_severity_level, const char *logid,
                                                                          const struct OrtThreadingOptions *tp_options, OrtEnv **out) {
    REQUIRE_POINTER(logging_function);
    REQUIRE(ThreadingOptions, tp_options);
    REQUIRE_POINTER(out);
    return new_environment(logging_function, logger_param, log_severity_level, logid, tp_options->threads, out);
}

OrtStatus *ORT_API_CALL api_UpdateEnvWithCustomLogLevel(OrtEnv *ort_env, OrtLoggingLevel log_severity_level) {
    REQUIRE(Env, ort_env);
    __atomic_store_n(&ort_env->logger->level, (int)log_severity_level, __ATOMIC_RELAXED);
    return NULL;
}

void ORT_API_CALL api_ReleaseEnv(OrtEnv *input) {
    Logger *logger = is_open(input, KIND_Env) ? input->logger : NULL;
    if (free_handle(input, KIND_Env)) {
        /* sessions may outlive the environment, but the program's function may not */
        __atomic_store_n(&logger->function, (OrtLoggingFunction)NULL, __ATOMIC_RELEASE);
        release_logger(logger);
    }
}

/* ---- threading options */

OrtStatus *ORT_API_CALL api_CreateThreadingOptions(OrtThreadingOptions **out) {
    REQUIRE_POINTER(out);
    OrtThreadingOptions *made = new_handle(KIND_ThreadingOptions);
    if (made == NULL)
        return out_of_memory();
    *out = made;
    return NULL;
}

OrtStatus *ORT_API_CALL api_SetGlobalIntraOpNumThreads(OrtThreadingOptions *tp_options, int intra_op_num_threads) {
    REQUIRE(ThreadingOptions, tp_options);
    if (intra_op_num_threads < 0)
        return make_status(ORT_INVALID_ARGUMENT, "expected at least 0 threads, got %d", intra_op_num_threads);
    tp_options->threads = intra_op_num_threads;
    return NULL;
}

void ORT_API_CALL api_ReleaseThreadingOptions(OrtThreadingOptions *input) { free_handle(input, KIND_ThreadingOptions); }

/* ---- providers and build */

static char cpu_provider[] = "CPUExecutionProvider";

OrtStatus *ORT_API_CALL api_GetAvailableProviders(char ***out_ptr, int *provider_length) {
    REQUIRE_POINTER(out_ptr);
    REQUIRE_POINTER(provider_length);
    char **names = malloc(sizeof(char *));
    if (names == NULL)
        return out_of_memory();
    names[0] = cpu_provider;
    *out_ptr = names;
    *provider_length = 1;
    return NULL;
}

OrtStatus *ORT_API_CALL api_ReleaseAvailableProviders(char **ptr, int providers_length) {
    (void)providers_length;
    free(ptr);
    return NULL;
}

const char *ORT_API_CALL api_GetBuildInfoString(void) {
    return "ORT Build Info: ortrain, the training interface of ONNX Runtime " LIBRARY_VERSION " on ortrain's engine";
}
