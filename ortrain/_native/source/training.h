/* What the functions of training sessions share. */
#ifndef ORTRAIN_TRAINING_H
#define ORTRAIN_TRAINING_H

#include "environment.h"
#include "python.h"
#include "status.h"

/* Leave the function with the status of a failed call of the bridge, and log it. */
#define CALL_ENGINE(session, call) \
    do { \
        const Bridge *bridge; \
        Failure failure = { ORT_OK, NULL }; \
        RETURN_IF(enter_engine(&bridge)); \
        if (bridge->call < 0) \
            return log_failure((session)->logger, public_name(__func__), status_of(&failure)); \
    } while (0)

#endif
