/* OrtGetApiBase and the tables by version. Every version has a prefix of the newest table. OrtGetTrainingExtensions, which ONNX Runtime does not have. */
#include "functions.h"
#include "status.h"

static const OrtApi *ORT_API_CALL table_of_version(uint32_t version) { return version >= 1 && version <= ORT_API_VERSION ? &api_table : NULL; }

static const char *ORT_API_CALL version_string(void) { return LIBRARY_VERSION; }

const OrtTrainingApi *ORT_API_CALL api_GetTrainingApi(uint32_t version) { return version >= 1 && version <= ORT_API_VERSION ? &training_table : NULL; }

ORT_EXPORT const OrtTrainingExtensions *ORT_API_CALL OrtGetTrainingExtensions(uint32_t version) { return version == 1 ? &extension_table : NULL; }

#ifdef __linux__
#define EXPORTED(name) exported_##name
#else
#define EXPORTED(name) name
#endif

ORT_EXPORT const OrtApiBase *ORT_API_CALL EXPORTED(OrtGetApiBase)(void) {
    static const OrtApiBase base = { table_of_version, version_string };
    return &base;
}

ORT_EXPORT OrtStatus *ORT_API_CALL EXPORTED(OrtSessionOptionsAppendExecutionProvider_CPU)(OrtSessionOptions *options, int use_arena) {
    (void)use_arena;
    return check_handle(options, KIND_SessionOptions, "options", "OrtSessionOptionsAppendExecutionProvider_CPU");
}

#include "symbol_versions.h"
