#include "calls.h"

#include <stdlib.h>

#include "status.h"
#include "values.h"

OrtStatus *take_values(Values *values, Call *call, const OrtRunOptions *run_options, size_t n_inputs, const OrtValue *const *inputs, size_t n_outputs,
                       OrtValue *const *outputs, const char *function) {
    values->inputs = n_inputs <= FEW ? values->few_inputs : malloc(n_inputs * sizeof(Content *));
    values->outputs = n_outputs <= FEW ? values->few_outputs : malloc(n_outputs * sizeof(Content *));
    if (values->inputs == NULL || values->outputs == NULL)
        return out_of_memory();
    if ((n_inputs > 0 && inputs == NULL) || (n_outputs > 0 && outputs == NULL))
        return missing(inputs == NULL && n_inputs > 0 ? "inputs" : "outputs", function);
    for (size_t i = 0; i < n_inputs; i++) {
        RETURN_IF(check_handle(inputs[i], KIND_Value, "an input", function));
        values->inputs[i] = inputs[i]->content;
    }
    for (size_t i = 0; i < n_outputs; i++) {
        if (outputs[i] != NULL)
            RETURN_IF(check_handle(outputs[i], KIND_Value, "an output", function));
        values->outputs[i] = outputs[i] == NULL ? NULL : outputs[i]->content;
    }
    *call = (Call){ run_options == NULL ? NULL : &run_options->terminate, n_inputs, n_outputs, values->inputs, values->outputs, NULL, NULL };
    return NULL;
}

OrtStatus *give_values(const Call *call, OrtValue **outputs) {
    for (size_t i = 0; i < call->n_outputs; i++) {
        if (outputs[i] != NULL)
            continue;
        OrtStatus *status = new_value(call->outputs[i], &outputs[i]);
        if (status != NULL) {
            for (size_t rest = i + 1; rest < call->n_outputs; rest++)
                if (outputs[rest] == NULL)
                    release_content(call->outputs[rest]);
            return status;
        }
    }
    return NULL;
}

void drop_values(const Call *call, OrtValue *const *outputs) {
    for (size_t i = 0; i < call->n_outputs; i++)
        if (outputs[i] == NULL)
            release_content(call->outputs[i]);
}

void free_values(Values *values) {
    if (values->inputs != values->few_inputs)
        free(values->inputs);
    if (values->outputs != values->few_outputs)
        free(values->outputs);
}
