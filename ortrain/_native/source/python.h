/* The interpreter behind the library: found, started or joined at first use. */
#ifndef ORTRAIN_PYTHON_H
#define ORTRAIN_PYTHON_H

#include "bridge.h"

/* Prepare this thread for calls of the engine, starting the interpreter if it does not run yet. On success *bridge is the engine's table. */
OrtStatus *enter_engine(const Bridge **bridge);
/* Give a Python object back; nothing happens where the interpreter has ended or in a forked child. */
void release_object(void *object);
/* Return the table, NULL where calls are not possible any more. */
const Bridge *running_bridge(void);

#endif
