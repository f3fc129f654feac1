/* Statuses, and the checks of arguments with which every function begins. */
#ifndef ORTRAIN_STATUS_H
#define ORTRAIN_STATUS_H

#include "handles.h"

/* Return a status with a formatted message. */
OrtStatus *make_status(OrtErrorCode code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Return the status of a failed call of the bridge; takes the message. */
OrtStatus *status_of(Failure *failure);
OrtStatus *refuse(const char *function, const char *why);
OrtStatus *missing(const char *argument, const char *function);
OrtStatus *out_of_memory(void);
/* Return the name of an interface function from that of its C function. */
const char *public_name(const char *function);

/* Leave the function with a status unless the handle is an open one of the kind. */
#define REQUIRE(kind, object) \
    do { if (!is_open((object), KIND_##kind)) return wrong_handle((object), KIND_##kind, #object, public_name(__func__)); } while (0)
/* The same for a handle that may be null. */
#define REQUIRE_OR_NULL(kind, object) \
    do { if ((object) != NULL) REQUIRE(kind, object); } while (0)
/* Leave the function with a status if a pointer is null. */
#define REQUIRE_POINTER(pointer) \
    do { if ((pointer) == NULL) return missing(#pointer, public_name(__func__)); } while (0)
/* Leave the function with a status if there is one. */
#define RETURN_IF(call) \
    do { OrtStatus *status_ = (call); if (status_ != NULL) return status_; } while (0)

#endif
