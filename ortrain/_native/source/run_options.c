/* OrtRunOptions. */
#include <stdlib.h>

#include "status.h"
#include "text.h"

OrtStatus *ORT_API_CALL api_CreateRunOptions(OrtRunOptions **out) {
    REQUIRE_POINTER(out);
    OrtRunOptions *made = new_handle(KIND_RunOptions);
    if (made == NULL || (made->tag = copy_text("")) == NULL)
        return out_of_memory();
    made->severity = ORT_LOGGING_LEVEL_WARNING;
    *out = made;
    return NULL;
}

void ORT_API_CALL api_ReleaseRunOptions(OrtRunOptions *input) {
    char *tag = is_open(input, KIND_RunOptions) ? input->tag : NULL;
    if (free_handle(input, KIND_RunOptions))
        free(tag);
}

OrtStatus *ORT_API_CALL api_RunOptionsSetRunLogVerbosityLevel(OrtRunOptions *options, int log_verbosity_level) {
    REQUIRE(RunOptions, options);
    options->verbosity = log_verbosity_level;
    return NULL;
}

OrtStatus *ORT_API_CALL api_RunOptionsSetRunLogSeverityLevel(OrtRunOptions *options, int log_severity_level) {
    REQUIRE(RunOptions, options);
    options->severity = log_severity_level;
    return NULL;
}

OrtStatus *ORT_API_CALL api_RunOptionsSetRunTag(OrtRunOptions *options, const char *run_tag) {
    REQUIRE(RunOptions, options);
    return set_text(&options->tag, run_tag);
}

OrtStatus *ORT_API_CALL api_RunOptionsGetRunLogVerbosityLevel(const OrtRunOptions *options, int *log_verbosity_level) {
    REQUIRE(RunOptions, options);
    REQUIRE_POINTER(log_verbosity_level);
    *log_verbosity_level = options->verbosity;
    return NULL;
}

OrtStatus *ORT_API_CALL api_RunOptionsGetRunLogSeverityLevel(const OrtRunOptions *options, int *log_severity_level) {
    REQUIRE(RunOptions, options);
    REQUIRE_POINTER(log_severity_level);
    *log_severity_level = options->severity;
    return NULL;
}

OrtStatus *ORT_API_CALL api_RunOptionsGetRunTag(const OrtRunOptions *options, const char **run_tag) {
    REQUIRE(RunOptions, options);
    REQUIRE_POINTER(run_tag);
    *run_tag = options->tag;
    return NULL;
}

OrtStatus *ORT_API_CALL api_RunOptionsSetTerminate(OrtRunOptions *options) {
    REQUIRE(RunOptions, options);
    __atomic_store_n(&options->terminate, 1, __ATOMIC_RELEASE);
    return NULL;
}

OrtStatus *ORT_API_CALL api_RunOptionsUnsetTerminate(OrtRunOptions *options) {
    REQUIRE(RunOptions, options);
    __atomic_store_n(&options->terminate, 0, __ATOMIC_RELEASE);
    return NULL;
}
