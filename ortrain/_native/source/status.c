/* OrtStatus. */
#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

static OrtStatus exhausted = { { HANDLE_MAGIC + KIND_Status, true, NULL }, ORT_FAIL, "out of memory" };

OrtStatus *out_of_memory(void) { return &exhausted; }

OrtStatus *make_status(OrtErrorCode code, const char *format, ...) {
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *message = length < 0 ? NULL : malloc((size_t)length + 1);
    OrtStatus *status = message == NULL ? NULL : new_handle(KIND_Status);
    if (status != NULL) {
        vsnprintf(message, (size_t)length + 1, format, again);
        status->code = code;
        status->message = message;
    } else {
        free(message);
    }
    va_end(again);
    return status != NULL ? status : &exhausted;
}

OrtStatus *status_of(Failure *failure) {
    OrtStatus *status = make_status(failure->code == ORT_OK ? ORT_FAIL : (OrtErrorCode)failure->code, "%s",
                                    failure->message != NULL ? failure->message : "the call failed");
    free(failure->message);
    return status;
}

OrtStatus *refuse(const char *function, const char *why) { return make_status(ORT_NOT_IMPLEMENTED, "%s is not implemented: %s", function, why); }

OrtStatus *missing(const char *argument, const char *function) {
    return make_status(ORT_INVALID_ARGUMENT, "expected a pointer as %s of %s, got a null pointer", argument, function);
}

const char *public_name(const char *function) {
    const char *separator = strchr(function, '_');
    return separator != NULL && strncmp(function, "Ort", 3) != 0 ? separator + 1 : function;
}

OrtStatus *ORT_API_CALL api_CreateStatus(OrtErrorCode code, const char *msg) {
    return code == ORT_OK ? NULL : make_status(code, "%s", msg != NULL ? msg : "");
}

OrtErrorCode ORT_API_CALL api_GetErrorCode(const OrtStatus *status) {
    return status == NULL ? ORT_OK : is_open(status, KIND_Status) ? status->code : ORT_INVALID_ARGUMENT;
}

const char *ORT_API_CALL api_GetErrorMessage(const OrtStatus *status) {
    return status == NULL ? "" : is_open(status, KIND_Status) ? status->message : "expected an open OrtStatus, got one that was released";
}

void ORT_API_CALL api_ReleaseStatus(OrtStatus *input) {
    char *message = is_open(input, KIND_Status) ? input->message : NULL;
    if (free_handle(input, KIND_Status))
        free(message);
}
