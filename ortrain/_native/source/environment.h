/* Loggers. */
#ifndef ORTRAIN_ENVIRONMENT_H
#define ORTRAIN_ENVIRONMENT_H

#include "handles.h"

Logger *new_logger(OrtLoggingFunction function, void *parameter, int level, const char *id);
Logger *retain_logger(Logger *logger);
void release_logger(Logger *logger);
/* Give a message to the program's function, if it has one and its level is reached. */
void log_message(const Logger *logger, OrtLoggingLevel level, const char *where, const char *message);
/* Log a status that is not NULL as an error, and return it. */
OrtStatus *log_failure(const Logger *logger, const char *where, OrtStatus *status);

#endif
