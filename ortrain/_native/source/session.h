/* Runs of inference sessions. */
#ifndef ORTRAIN_SESSION_H
#define ORTRAIN_SESSION_H

#include "handles.h"

/* Run a session on contents; the outputs that are NULL are made. */
OrtStatus *run_session(OrtSession *session, Call *call);

#endif
