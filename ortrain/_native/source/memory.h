/* The memory of the CPU, in which everything is. */
#ifndef ORTRAIN_MEMORY_H
#define ORTRAIN_MEMORY_H

#include "handles.h"

const OrtMemoryInfo *memory_of_cpu(void);

#endif
