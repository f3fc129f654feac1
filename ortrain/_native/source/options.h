/* Session options. */
#ifndef ORTRAIN_OPTIONS_H
#define ORTRAIN_OPTIONS_H

#include "handles.h"

/* Return the settings of a session with these options in an environment; options may be NULL. */
Settings settings_for(const OrtSessionOptions *options, const OrtEnv *env);
/* Return where messages of a session go; a new reference, or NULL. */
Logger *logger_for(const OrtSessionOptions *options, const OrtEnv *env);

#endif
