/* OrtSessionOptions. */
#include "options.h"

#include <stdlib.h>
#include <string.h>

#include "environment.h"
#include "python.h"
#include "status.h"
#include "text.h"
#include "values.h"

enum { WARNING = ORT_LOGGING_LEVEL_WARNING };

Settings settings_for(const OrtSessionOptions *options, const OrtEnv *env) {
    Settings settings = { 0 };
    if (options != NULL)
        settings = options->settings;
    if (options != NULL && options->uses_global_threads && env->global_threads >= 0)
        settings.threads = env->global_threads;
    return settings;
}

Logger *logger_for(const OrtSessionOptions *options, const OrtEnv *env) { return retain_logger(options != NULL && options->logger ? options->logger : env->logger); }

static void clear_options(OrtSessionOptions *options) {
    Settings *settings = &options->settings;
    for (size_t i = 0; i < settings->initializers.count; i++)
        release_content(settings->initializer_values[i]);
    free(settings->initializer_values);
    free(settings->sizes);
    free(settings->by_denotation);
    free(settings->file_contents);
    free_texts(&settings->initializers);
    free_texts(&settings->files);
    free_texts(&settings->dimensions);
    free_texts(&settings->keys);
    free_texts(&settings->values);
    free(options->log_id);
    free(options->profile_prefix);
    release_logger(options->logger);
}

OrtStatus *ORT_API_CALL api_CreateSessionOptions(OrtSessionOptions **options) {
    REQUIRE_POINTER(options);
    OrtSessionOptions *made = new_handle(KIND_SessionOptions);
    if (made == NULL)
        return out_of_memory();
    made->severity = WARNING;
    *options = made;
    return NULL;
}

void ORT_API_CALL api_ReleaseSessionOptions(OrtSessionOptions *input) {
    if (is_open(input, KIND_SessionOptions))
        clear_options(input);
    free_handle(input, KIND_SessionOptions);
}

/* ---- lists in the options */

static OrtStatus *set_entry(Settings *settings, const char *key, const char *value) {
    size_t found = find_text(&settings->keys, key);
    if (found < settings->keys.count)
        return set_text(&settings->values.items[found], value);
    if (!append_text(&settings->values, value))
        return out_of_memory();
    if (!append_text(&settings->keys, key)) {
        free(settings->values.items[--settings->values.count]);
        return out_of_memory();
    }
    return NULL;
}

static OrtStatus *set_dimension(Settings *settings, const char *name, int64_t size, bool by_denotation) {
    size_t count = settings->dimensions.count;
    if (!grow(&settings->sizes, count, sizeof(int64_t)) || !grow(&settings->by_denotation, count, sizeof(bool)))
        return out_of_memory();
    settings->sizes[count] = size;
    settings->by_denotation[count] = by_denotation;
    return append_text(&settings->dimensions, name) ? NULL : out_of_memory();
}

static OrtStatus *set_initializer(Settings *settings, const char *name, Content *content) {
    size_t count = settings->initializers.count, found = find_text(&settings->initializers, name);
    if (found < count)
        return make_status(ORT_INVALID_ARGUMENT, "expected each initializer once, got %s twice", name);
    if (!grow(&settings->initializer_values, count, sizeof(Content *)) || !append_text(&settings->initializers, name))
        return out_of_memory();
    settings->initializer_values[count] = retain_content(content);
    return NULL;
}

static OrtStatus *set_file(Settings *settings, const char *name, Source content) {
    size_t count = settings->files.count;
    if (find_text(&settings->files, name) < count)
        return make_status(ORT_INVALID_ARGUMENT, "expected each file of external data once, got %s twice", name);
    if (!grow(&settings->file_contents, count, sizeof(Source)) || !append_text(&settings->files, name))
        return out_of_memory();
    settings->file_contents[count] = content;
    return NULL;
}

OrtStatus *ORT_API_CALL api_CloneSessionOptions(const OrtSessionOptions *in_options, OrtSessionOptions **out_options) {
    REQUIRE(SessionOptions, in_options);
    REQUIRE_POINTER(out_options);
    OrtSessionOptions *copy = NULL;
    RETURN_IF(api_CreateSessionOptions(&copy));
    const Settings *from = &in_options->settings;
    OrtStatus *status = NULL;
    copy->settings.threads = from->threads;
    copy->settings.profiles = from->profiles;
    copy->severity = in_options->severity;
    copy->verbosity = in_options->verbosity;
    copy->uses_global_threads = in_options->uses_global_threads;
    copy->logger = retain_logger(in_options->logger);
    for (size_t i = 0; status == NULL && i < from->keys.count; i++)
        status = set_entry(&copy->settings, from->keys.items[i], from->values.items[i]);
    for (size_t i = 0; status == NULL && i < from->dimensions.count; i++)
        status = set_dimension(&copy->settings, from->dimensions.items[i], from->sizes[i], from->by_denotation[i]);
    for (size_t i = 0; status == NULL && i < from->initializers.count; i++)
        status = set_initializer(&copy->settings, from->initializers.items[i], from->initializer_values[i]);
    for (size_t i = 0; status == NULL && i < from->files.count; i++)
        status = set_file(&copy->settings, from->files.items[i], from->file_contents[i]);
    if (status == NULL && in_options->log_id != NULL)
        status = set_text(&copy->log_id, in_options->log_id);
    if (status == NULL && in_options->profile_prefix != NULL)
        status = set_text(&copy->profile_prefix, in_options->profile_prefix);
    if (status == NULL)
        *out_options = copy;
    else
        api_ReleaseSessionOptions(copy);
    return status;
}

OrtStatus *ORT_API_CALL api_AddSessionConfigEntry(OrtSessionOptions *options, const char *config_key, const char *config_value) {
    REQUIRE(SessionOptions, options);
    REQUIRE_POINTER(config_key);
    REQUIRE_POINTER(config_value);
    if (*config_key == '\0')
        return make_status(ORT_INVALID_ARGUMENT, "expected a key of a configuration entry, got an empty text");
    return set_entry(&options->settings, config_key, config_value);
}

OrtStatus *ORT_API_CALL api_HasSessionConfigEntry(const OrtSessionOptions *options, const char *config_key, int *out) {
    REQUIRE(SessionOptions, options);
    REQUIRE_POINTER(config_key);
    REQUIRE_POINTER(out);
    *out = find_text(&options->settings.keys, config_key) < options->settings.keys.count;
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetSessionConfigEntry(const OrtSessionOptions *options, const char *config_key, char *config_value, size_t *size) {
    REQUIRE(SessionOptions, options);
    REQUIRE_POINTER(config_key);
    REQUIRE_POINTER(size);
    size_t found = find_text(&options->settings.keys, config_key);
    if (found == options->settings.keys.count)
        return make_status(ORT_FAIL, "expected a configuration entry that was set, got %s", config_key);
    const char *value = options->settings.values.items[found];
    size_t needed = strlen(value) + 1, room = *size;
    *size = needed;
    if (config_value == NULL)
        return NULL;
    if (room < needed)
        return make_status(ORT_INVALID_ARGUMENT, "expected room for %zu bytes of the configuration entry %s, got %zu", needed, config_key, room);
    memcpy(config_value, value, needed);
    return NULL;
}

OrtStatus *ORT_API_CALL api_AddFreeDimensionOverride(OrtSessionOptions *options, const char *dim_denotation, int64_t dim_value) {
    REQUIRE(SessionOptions, options);
    REQUIRE_POINTER(dim_denotation);
    return set_dimension(&options->settings, dim_denotation, dim_value, true);
}

OrtStatus *ORT_API_CALL api_AddFreeDimensionOverrideByName(OrtSessionOptions *options, const char *dim_name, int64_t dim_value) {
    REQUIRE(SessionOptions, options);
    REQUIRE_POINTER(dim_name);
    return set_dimension(&options->settings, dim_name, dim_value, false);
}

OrtStatus *ORT_API_CALL api_AddInitializer(OrtSessionOptions *options, const char *name, const OrtValue *val) {
    REQUIRE(SessionOptions, options);
    REQUIRE_POINTER(name);
    REQUIRE(Value, val);
    RETURN_IF(require_tensor(val->content, "AddInitializer"));
    return set_initializer(&options->settings, name, val->content);
}

OrtStatus *ORT_API_CALL api_AddExternalInitializers(OrtSessionOptions *options, const char *const *initializer_names, const OrtValue *const *initializers,
                                                    size_t num_initializers) {
    REQUIRE(SessionOptions, options);
    for (size_t i = 0; i < num_initializers; i++) {
        REQUIRE_POINTER(initializer_names);
        REQUIRE_POINTER(initializers);
        RETURN_IF(api_AddInitializer(options, initializer_names[i], initializers[i]));
    }
    return NULL;
}

OrtStatus *ORT_API_CALL api_AddExternalInitializersFromFilesInMemory(OrtSessionOptions *options, const ORTCHAR_T *const *external_initializer_file_names,
                                                                     char *const *external_initializer_file_buffer_array,
                                                                     const size_t *external_initializer_file_lengths, size_t num_external_initializer_files) {
    REQUIRE(SessionOptions, options);
    for (size_t i = 0; i < num_external_initializer_files; i++) {
        REQUIRE_POINTER(external_initializer_file_names);
        REQUIRE_POINTER(external_initializer_file_buffer_array);
        REQUIRE_POINTER(external_initializer_file_lengths);
        const char *name = external_initializer_file_names[i], *bytes = external_initializer_file_buffer_array[i];
        if (name == NULL || *name == '\0')
            return make_status(ORT_INVALID_ARGUMENT, "expected the name of a file of external data, element %zu is empty", i);
        if (bytes == NULL && external_initializer_file_lengths[i] > 0)
            return make_status(ORT_INVALID_ARGUMENT, "expected the bytes of the file of external data %s, got a null pointer", name);
        RETURN_IF(set_file(&options->settings, name, (Source){ NULL, bytes, external_initializer_file_lengths[i] }));
    }
    return NULL;
}

/* ---- threads, logging, profiles */

OrtStatus *ORT_API_CALL api_SetIntraOpNumThreads(OrtSessionOptions *options, int intra_op_num_threads) {
    REQUIRE(SessionOptions, options);
    if (intra_op_num_threads < 0)
        return make_status(ORT_INVALID_ARGUMENT, "expected intra_op_num_threads >= 0, got %d", intra_op_num_threads);
    options->settings.threads = intra_op_num_threads;
    return NULL;
}

OrtStatus *ORT_API_CALL api_DisablePerSessionThreads(OrtSessionOptions *options) {
    REQUIRE(SessionOptions, options);
    options->uses_global_threads = true;
    return NULL;
}

OrtStatus *ORT_API_CALL api_SetSessionLogId(OrtSessionOptions *options, const char *logid) {
    REQUIRE(SessionOptions, options);
    return set_text(&options->log_id, logid);
}

OrtStatus *ORT_API_CALL api_SetSessionLogVerbosityLevel(OrtSessionOptions *options, int session_log_verbosity_level) {
    REQUIRE(SessionOptions, options);
    options->verbosity = session_log_verbosity_level;
    return NULL;
}

OrtStatus *ORT_API_CALL api_SetSessionLogSeverityLevel(OrtSessionOptions *options, int session_log_severity_level) {
    REQUIRE(SessionOptions, options);
    if (session_log_severity_level < ORT_LOGGING_LEVEL_VERBOSE || session_log_severity_level > ORT_LOGGING_LEVEL_FATAL)
        return make_status(ORT_INVALID_ARGUMENT, "expected a severity level from 0 to 4, got %d", session_log_severity_level);
    options->severity = session_log_severity_level;
    if (options->logger != NULL)
        __atomic_store_n(&options->logger->level, session_log_severity_level, __ATOMIC_RELAXED);
    return NULL;
}

OrtStatus *ORT_API_CALL api_SetUserLoggingFunction(OrtSessionOptions *options, OrtLoggingFunction user_logging_function, void *user_logging_param) {
    REQUIRE(SessionOptions, options);
    REQUIRE_POINTER(user_logging_function);
    Logger *logger = new_logger(user_logging_function, user_logging_param, options->severity, options->log_id);
    if (logger == NULL)
        return out_of_memory();
    release_logger(options->logger);
    options->logger = logger;
    return NULL;
}

OrtStatus *ORT_API_CALL api_EnableProfiling(OrtSessionOptions *options, const ORTCHAR_T *profile_file_prefix) {
    REQUIRE(SessionOptions, options);
    REQUIRE_POINTER(profile_file_prefix);
    options->settings.profiles = true;
    return set_text(&options->profile_prefix, profile_file_prefix);
}

OrtStatus *ORT_API_CALL api_DisableProfiling(OrtSessionOptions *options) {
    REQUIRE(SessionOptions, options);
    options->settings.profiles = false;
    return NULL;
}

/* ---- operators and providers */

OrtStatus *ORT_API_CALL api_RegisterCustomOpsLibrary_V2(OrtSessionOptions *options, const ORTCHAR_T *library_name) {
    REQUIRE(SessionOptions, options);
    REQUIRE_POINTER(library_name);
    const Bridge *bridge;
    Failure failure = { ORT_OK, NULL };
    RETURN_IF(enter_engine(&bridge));
    return bridge->register_operators(library_name, &failure) < 0 ? status_of(&failure) : NULL;
}

OrtStatus *ORT_API_CALL api_RegisterCustomOpsLibrary(OrtSessionOptions *options, const char *library_path, void **library_handle) {
    RETURN_IF(api_RegisterCustomOpsLibrary_V2(options, library_path));
    if (library_handle != NULL)
        *library_handle = NULL;
    return NULL;
}

OrtStatus *ORT_API_CALL api_SessionOptionsAppendExecutionProvider(OrtSessionOptions *options, const char *provider_name, const char *const *provider_options_keys,
                                                                  const char *const *provider_options_values, size_t num_keys) {
    (void)provider_options_keys; (void)provider_options_values; (void)num_keys;
    REQUIRE(SessionOptions, options);
    REQUIRE_POINTER(provider_name);
    if (strcmp(provider_name, "CPU") == 0 || strcmp(provider_name, "CPUExecutionProvider") == 0)
        return NULL;
    return make_status(ORT_INVALID_ARGUMENT, "Unsupported device type: expected the execution provider 'CPU', got '%s'", provider_name);
}
