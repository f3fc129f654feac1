/* The values of a step or a run: between the interface's arrays of OrtValue and the contents that the engine works on. */
#ifndef ORTRAIN_CALLS_H
#define ORTRAIN_CALLS_H

#include "handles.h"

enum { FEW = 16 };

typedef struct Values {
    Content **inputs, **outputs;
    Content *few_inputs[FEW], *few_outputs[FEW];
} Values;

/* Set the contents of a call; the outputs are NULL where a slot is null. To be freed with free_values, also when a status is returned. */
OrtStatus *take_values(Values *values, Call *call, const OrtRunOptions *run_options, size_t n_inputs, const OrtValue *const *inputs, size_t n_outputs,
                       OrtValue *const *outputs, const char *function);
/* Make values of the outputs that the engine has made, in the slots that are null. */
OrtStatus *give_values(const Call *call, OrtValue **outputs);
/* Give back the outputs that a failed call of the engine has made. */
void drop_values(const Call *call, OrtValue *const *outputs);
void free_values(Values *values);

#endif
