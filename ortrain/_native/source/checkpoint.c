/* Checkpoint states: files, properties, parameters. */
#include <stdlib.h>
#include <string.h>

#include "python.h"
#include "status.h"
#include "text.h"
#include "type_info.h"
#include "values.h"

/* Leave the function with the status of a failed call of the bridge. */
#define CALL_ENGINE(call) \
    do { \
        const Bridge *bridge; \
        Failure failure = { ORT_OK, NULL }; \
        RETURN_IF(enter_engine(&bridge)); \
        if (bridge->call < 0) \
            return status_of(&failure); \
    } while (0)

static OrtStatus *load(Source source, OrtCheckpointState **checkpoint_state) {
    void *object = NULL;
    CALL_ENGINE(load_state(&source, &object, &failure));
    OrtCheckpointState *state = new_handle(KIND_CheckpointState);
    if (state == NULL) {
        release_object(object);
        return out_of_memory();
    }
    state->object = object;
    *checkpoint_state = state;
    return NULL;
}

OrtStatus *ORT_API_CALL training_LoadCheckpoint(const ORTCHAR_T *checkpoint_path, OrtCheckpointState **checkpoint_state) {
    REQUIRE_POINTER(checkpoint_path);
    REQUIRE_POINTER(checkpoint_state);
    return load((Source){ checkpoint_path, NULL, 0 }, checkpoint_state);
}

OrtStatus *ORT_API_CALL training_LoadCheckpointFromBuffer(const void *checkpoint_buffer, const size_t num_bytes, OrtCheckpointState **checkpoint_state) {
    REQUIRE_POINTER(checkpoint_buffer);
    REQUIRE_POINTER(checkpoint_state);
    return load((Source){ NULL, checkpoint_buffer, num_bytes }, checkpoint_state);
}

OrtStatus *ORT_API_CALL training_SaveCheckpoint(OrtCheckpointState *checkpoint_state, const ORTCHAR_T *checkpoint_path, const bool include_optimizer_state) {
    REQUIRE(CheckpointState, checkpoint_state);
    REQUIRE_POINTER(checkpoint_path);
    CALL_ENGINE(save_state(checkpoint_state->object, checkpoint_path, include_optimizer_state, &failure));
    return NULL;
}

void ORT_API_CALL training_ReleaseCheckpointState(OrtCheckpointState *input) {
    void *object = is_open(input, KIND_CheckpointState) ? input->object : NULL;
    if (free_handle(input, KIND_CheckpointState))
        release_object(object);
}

/* ---- properties */

OrtStatus *ORT_API_CALL training_AddProperty(OrtCheckpointState *checkpoint_state, const char *property_name, enum OrtPropertyType property_type,
                                             void *property_value) {
    REQUIRE(CheckpointState, checkpoint_state);
    REQUIRE_POINTER(property_name);
    REQUIRE_POINTER(property_value);
    PropertyValue value = { property_type, 0, 0, NULL };
    if (property_type == OrtIntProperty)
        memcpy(&value.integer, property_value, sizeof(value.integer));
    else if (property_type == OrtFloatProperty)
        memcpy(&value.number, property_value, sizeof(value.number));
    else if (property_type == OrtStringProperty)
        value.text = property_value;
    else
        return make_status(ORT_INVALID_ARGUMENT, "expected a property type of 0 (int), 1 (float) or 2 (string), got %d", property_type);
    CALL_ENGINE(set_property(checkpoint_state->object, property_name, &value, &failure));
    return NULL;
}

static OrtStatus *give_bytes(OrtAllocator *allocator, const void *bytes, size_t size, void **out) {
    void *copy = allocator->Alloc(allocator, size);
    if (copy == NULL)
        return out_of_memory();
    memcpy(copy, bytes, size);
    *out = copy;
    return NULL;
}

OrtStatus *ORT_API_CALL training_GetProperty(const OrtCheckpointState *checkpoint_state, const char *property_name, OrtAllocator *allocator,
                                             enum OrtPropertyType *property_type, void **property_value) {
    REQUIRE(CheckpointState, checkpoint_state);
    REQUIRE_POINTER(property_name);
    REQUIRE_POINTER(allocator);
    REQUIRE_POINTER(property_type);
    REQUIRE_POINTER(property_value);
    PropertyValue value = { 0, 0, 0, NULL };
    CALL_ENGINE(get_property(checkpoint_state->object, property_name, &value, &failure));
    OrtStatus *status = value.type == OrtIntProperty     ? give_bytes(allocator, &value.integer, sizeof(value.integer), property_value)
                        : value.type == OrtFloatProperty ? give_bytes(allocator, &value.number, sizeof(value.number), property_value)
                                                         : give_text(allocator, value.text, (char **)property_value);
    free(value.text);
    if (status == NULL)
        *property_type = (OrtPropertyType)value.type;
    return status;
}

/* ---- parameters */

OrtStatus *ORT_API_CALL training_GetParameterTypeAndShape(const OrtCheckpointState *checkpoint_state, const char *parameter_name,
                                                          OrtTensorTypeAndShapeInfo **parameter_type_and_shape) {
    REQUIRE(CheckpointState, checkpoint_state);
    REQUIRE_POINTER(parameter_name);
    REQUIRE_POINTER(parameter_type_and_shape);
    Description description = { 0 };
    CALL_ENGINE(describe_parameter(checkpoint_state->object, parameter_name, &description, &failure));
    return shape_of_description(&description, parameter_type_and_shape);
}

OrtStatus *ORT_API_CALL training_UpdateParameter(OrtCheckpointState *checkpoint_state, const char *parameter_name, OrtValue *parameter) {
    REQUIRE(CheckpointState, checkpoint_state);
    REQUIRE_POINTER(parameter_name);
    REQUIRE(Value, parameter);
    CALL_ENGINE(update_parameter(checkpoint_state->object, parameter_name, parameter->content, &failure));
    return NULL;
}

OrtStatus *ORT_API_CALL training_GetParameter(const OrtCheckpointState *checkpoint_state, const char *parameter_name, OrtAllocator *allocator,
                                              OrtValue **parameter) {
    REQUIRE(CheckpointState, checkpoint_state);
    REQUIRE_POINTER(parameter_name);
    REQUIRE_POINTER(allocator);
    REQUIRE_POINTER(parameter);
    Content *content = NULL;
    CALL_ENGINE(get_parameter(checkpoint_state->object, parameter_name, &content, &failure));
    return new_value(content, parameter);
}
