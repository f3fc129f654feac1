/* OrtIoBinding: values bound to the inputs and outputs of a session by name. */
#include <stdlib.h>
#include <string.h>

#include "python.h"
#include "session.h"
#include "status.h"
#include "text.h"
#include "values.h"

static void release_contents(Content **contents, size_t count) {
    for (size_t i = 0; contents != NULL && i < count; i++)
        release_content(contents[i]);
    free(contents);
}

static void clear_inputs(OrtIoBinding *binding) {
    release_contents(binding->inputs, binding->input_names.count);
    free_texts(&binding->input_names);
    binding->inputs = NULL;
}

static void clear_outputs(OrtIoBinding *binding) {
    release_contents(binding->outputs, binding->output_names.count);
    release_contents(binding->results, binding->output_names.count);
    free_texts(&binding->output_names);
    binding->outputs = binding->results = NULL;
}

OrtStatus *ORT_API_CALL api_CreateIoBinding(OrtSession *session, OrtIoBinding **out) {
    REQUIRE(Session, session);
    REQUIRE_POINTER(out);
    OrtIoBinding *made = new_handle(KIND_IoBinding);
    if (made == NULL)
        return out_of_memory();
    made->session = session;
    *out = made;
    return NULL;
}

void ORT_API_CALL api_ReleaseIoBinding(OrtIoBinding *input) {
    if (is_open(input, KIND_IoBinding)) {
        clear_inputs(input);
        clear_outputs(input);
    }
    free_handle(input, KIND_IoBinding);
}

void ORT_API_CALL api_ClearBoundInputs(OrtIoBinding *binding_ptr) {
    if (is_open(binding_ptr, KIND_IoBinding))
        clear_inputs(binding_ptr);
}

void ORT_API_CALL api_ClearBoundOutputs(OrtIoBinding *binding_ptr) {
    if (is_open(binding_ptr, KIND_IoBinding))
        clear_outputs(binding_ptr);
}

static OrtStatus *require_name(const Descriptions *first, const Descriptions *second, const char *name, const char *what) {
    for (size_t i = 0; i < first->count; i++)
        if (strcmp(first->items[i].name, name) == 0)
            return NULL;
    for (size_t i = 0; second != NULL && i < second->count; i++)
        if (strcmp(second->items[i].name, name) == 0)
            return NULL;
    return make_status(ORT_INVALID_ARGUMENT, "Failed to find %s name in the session: %s", what, name);
}

OrtStatus *ORT_API_CALL api_BindInput(OrtIoBinding *binding_ptr, const char *name, const OrtValue *val_ptr) {
    REQUIRE(IoBinding, binding_ptr);
    REQUIRE(Session, binding_ptr->session);
    REQUIRE_POINTER(name);
    REQUIRE(Value, val_ptr);
    RETURN_IF(require_name(&binding_ptr->session->found.inputs, &binding_ptr->session->found.initializers, name, "input"));
    size_t found = find_text(&binding_ptr->input_names, name), count = binding_ptr->input_names.count;
    if (found == count) {
        if (!grow(&binding_ptr->inputs, count, sizeof(Content *)) || !append_text(&binding_ptr->input_names, name))
            return out_of_memory();
    } else {
        release_content(binding_ptr->inputs[found]);
    }
    binding_ptr->inputs[found] = retain_content(val_ptr->content);
    return NULL;
}

/* Bind an output to a value, or to memory that each run allocates where content is NULL. */
static OrtStatus *bind_output(OrtIoBinding *binding, const char *name, Content *content) {
    RETURN_IF(require_name(&binding->session->found.outputs, NULL, name, "output"));
    size_t found = find_text(&binding->output_names, name), count = binding->output_names.count;
    if (found == count) {
        if (!grow(&binding->outputs, count, sizeof(Content *)) || !grow(&binding->results, count, sizeof(Content *)) || !append_text(&binding->output_names, name))
            return out_of_memory();
        binding->results[found] = NULL;
    } else {
        release_content(binding->outputs[found]);
    }
    binding->outputs[found] = content == NULL ? NULL : retain_content(content);
    return NULL;
}

OrtStatus *ORT_API_CALL api_BindOutput(OrtIoBinding *binding_ptr, const char *name, const OrtValue *val_ptr) {
    REQUIRE(IoBinding, binding_ptr);
    REQUIRE(Session, binding_ptr->session);
    REQUIRE_POINTER(name);
    REQUIRE(Value, val_ptr);
    return bind_output(binding_ptr, name, val_ptr->content);
}

OrtStatus *ORT_API_CALL api_BindOutputToDevice(OrtIoBinding *binding_ptr, const char *name, const OrtMemoryInfo *mem_info_ptr) {
    REQUIRE(IoBinding, binding_ptr);
    REQUIRE(Session, binding_ptr->session);
    REQUIRE_POINTER(name);
    REQUIRE(MemoryInfo, mem_info_ptr);
    return bind_output(binding_ptr, name, NULL);
}

OrtStatus *ORT_API_CALL api_RunWithBinding(OrtSession *session, const OrtRunOptions *run_options, const OrtIoBinding *binding_ptr) {
    REQUIRE(Session, session);
    REQUIRE_OR_NULL(RunOptions, run_options);
    REQUIRE(IoBinding, binding_ptr);
    if (binding_ptr->session != session)
        return make_status(ORT_INVALID_ARGUMENT, "expected a binding of this session, got one of another");
    size_t count = binding_ptr->output_names.count;
    if (count == 0)
        return make_status(ORT_INVALID_ARGUMENT, "expected at least one bound output for RunWithBinding, got none");
    Content **outputs = malloc(count * sizeof(Content *));
    if (outputs == NULL)
        return out_of_memory();
    memcpy(outputs, binding_ptr->outputs, count * sizeof(Content *));
    Call call = { run_options == NULL ? NULL : &run_options->terminate, binding_ptr->input_names.count, count, binding_ptr->inputs, outputs,
                  (const char *const *)binding_ptr->input_names.items, (const char *const *)binding_ptr->output_names.items };
    OrtStatus *status = run_session(session, &call);
    for (size_t i = 0; status != NULL && i < count; i++)
        if (binding_ptr->outputs[i] == NULL)
            release_content(outputs[i]);
    for (size_t i = 0; status == NULL && i < count; i++) {
        release_content(binding_ptr->results[i]);
        binding_ptr->results[i] = binding_ptr->outputs[i] == NULL ? outputs[i] : retain_content(outputs[i]);
    }
    free(outputs);
    return status;
}

OrtStatus *ORT_API_CALL api_GetBoundOutputNames(const OrtIoBinding *binding_ptr, OrtAllocator *allocator, char **buffer, size_t **lengths, size_t *count) {
    REQUIRE(IoBinding, binding_ptr);
    REQUIRE_POINTER(allocator);
    REQUIRE_POINTER(buffer);
    REQUIRE_POINTER(lengths);
    REQUIRE_POINTER(count);
    const Strings *names = &binding_ptr->output_names;
    size_t total = 0;
    *buffer = NULL;
    *lengths = NULL;
    *count = 0;
    if (names->count == 0)
        return NULL;
    for (size_t i = 0; i < names->count; i++)
        total += strlen(names->items[i]);
    char *text = allocator->Alloc(allocator, total + 1), *end = text;
    size_t *sizes = allocator->Alloc(allocator, names->count * sizeof(size_t));
    if (text == NULL || sizes == NULL)
        return out_of_memory();
    for (size_t i = 0; i < names->count; i++) {
        sizes[i] = strlen(names->items[i]);
        memcpy(end, names->items[i], sizes[i]);         /* one behind the other, without null characters */
        end += sizes[i];
    }
    *buffer = text;
    *lengths = sizes;
    *count = names->count;
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetBoundOutputValues(const OrtIoBinding *binding_ptr, OrtAllocator *allocator, OrtValue ***output, size_t *output_count) {
    REQUIRE(IoBinding, binding_ptr);
    REQUIRE_POINTER(allocator);
    REQUIRE_POINTER(output);
    REQUIRE_POINTER(output_count);
    size_t count = binding_ptr->output_names.count;
    *output = NULL;
    *output_count = 0;
    if (count == 0)
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (binding_ptr->results[i] == NULL)
            return make_status(ORT_FAIL, "expected a run before GetBoundOutputValues, output %s has no value yet", binding_ptr->output_names.items[i]);
    OrtValue **values = allocator->Alloc(allocator, count * sizeof(OrtValue *));
    if (values == NULL)
        return out_of_memory();
    for (size_t i = 0; i < count; i++)
        RETURN_IF(new_value(retain_content(binding_ptr->results[i]), &values[i]));
    *output = values;
    *output_count = count;
    return NULL;
}
