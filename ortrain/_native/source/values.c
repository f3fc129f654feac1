/* OrtValue: tensors over the caller's memory and allocated ones, and sequences. strings.c has the elements of tensors of strings. */
#include "values.h"

#include <stdlib.h>
#include <string.h>

#include "memory.h"
#include "python.h"
#include "status.h"
#include "type_info.h"

Content *retain_content(Content *content) {
    __atomic_add_fetch(&content->references, 1, __ATOMIC_RELAXED);
    return content;
}

void release_content(Content *content) {
    if (content == NULL || __atomic_sub_fetch(&content->references, 1, __ATOMIC_ACQ_REL) > 0)
        return;
    for (size_t i = 0; content->strings != NULL && i < content->count; i++)
        free(content->strings[i]);
    for (size_t i = 0; content->items != NULL && i < content->count; i++)
        release_content(content->items[i]);
    free(content->strings);
    free(content->lengths);
    free(content->items);
    if (content->array != NULL)
        release_object(content->array);
    if (content->allocator != NULL)
        content->allocator->Free(content->allocator, content->data);
    free(content);
}

OrtStatus *new_value(Content *content, OrtValue **out) {
    OrtValue *value = content == NULL ? NULL : new_handle(KIND_Value);
    if (value == NULL) {
        release_content(content);
        return out_of_memory();
    }
    value->content = content;
    *out = value;
    return NULL;
}

OrtStatus *require_tensor(const Content *content, const char *function) {
    return content->kind == ONNX_TYPE_TENSOR ? NULL : make_status(ORT_INVALID_ARGUMENT, "expected a tensor as value of %s, got a value of type %d", function,
                                                                   content->kind);
}

void ORT_API_CALL api_ReleaseValue(OrtValue *input) {
    Content *content = is_open(input, KIND_Value) ? input->content : NULL;
    if (free_handle(input, KIND_Value))
        release_content(content);
}

/* ---- creation */

/* Make the contents of a tensor without data. */
static OrtStatus *new_tensor(const int64_t *shape, size_t rank, int type, const char *function, Content **out) {
    if (rank > MAX_RANK)
        return make_status(ORT_NOT_IMPLEMENTED, "expected at most %d dimensions in the shape of %s, got %zu", MAX_RANK, function, rank);
    if (rank > 0 && shape == NULL)
        return missing("shape", function);
    if (element_size(type) == 0 && type != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING)
        return make_status(ORT_NOT_IMPLEMENTED, "expected an element type that tensors can have as type of %s, got %d", function, type);
    size_t count = 1, bytes;
    for (size_t i = 0; i < rank; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(count, (size_t)shape[i], &count))
            return make_status(ORT_INVALID_ARGUMENT, "expected sizes of at least 0 that fit into memory in the shape of %s, got %lld along axis %zu", function,
                               (long long)shape[i], i);
    if (__builtin_mul_overflow(count, type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING ? sizeof(char *) : element_size(type), &bytes))
        return make_status(ORT_INVALID_ARGUMENT, "expected a shape whose elements fit into memory as shape of %s", function);
    Content *content = calloc(1, sizeof(Content));
    if (content == NULL)
        return out_of_memory();
    content->references = 1;
    content->kind = ONNX_TYPE_TENSOR;
    content->element_type = type;
    content->rank = (int)rank;
    if (rank > 0)
        memcpy(content->dims, shape, rank * sizeof(int64_t));
    content->count = count;
    content->bytes = type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING ? 0 : bytes;
    *out = content;
    return NULL;
}

static OrtStatus *fill_with_empty_strings(Content *content) {
    content->strings = calloc(content->count + 1, sizeof(char *));
    content->lengths = calloc(content->count + 1, sizeof(size_t));
    for (size_t i = 0; content->strings != NULL && i < content->count; i++)
        if ((content->strings[i] = calloc(1, 1)) == NULL)
            return out_of_memory();
    return content->strings == NULL || content->lengths == NULL ? out_of_memory() : NULL;
}

OrtStatus *ORT_API_CALL api_CreateTensorAsOrtValue(OrtAllocator *allocator, const int64_t *shape, size_t shape_len, ONNXTensorElementDataType type,
                                                   OrtValue **out) {
    REQUIRE_POINTER(allocator);
    REQUIRE_POINTER(out);
    Content *content;
    RETURN_IF(new_tensor(shape, shape_len, type, "CreateTensorAsOrtValue", &content));
    OrtStatus *status = NULL;
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING)
        status = fill_with_empty_strings(content);
    else if ((content->data = allocator->Alloc(allocator, content->bytes > 0 ? content->bytes : 1)) == NULL)
        status = out_of_memory();
    else {
        content->allocator = allocator;
        memset(content->data, 0, content->bytes);
    }
    if (status != NULL) {
        release_content(content);
        return status;
    }
    return new_value(content, out);
}

OrtStatus *ORT_API_CALL api_CreateTensorWithDataAsOrtValue(const OrtMemoryInfo *info, void *p_data, size_t p_data_len, const int64_t *shape, size_t shape_len,
                                                           ONNXTensorElementDataType type, OrtValue **out) {
    REQUIRE(MemoryInfo, info);
    REQUIRE_POINTER(out);
    if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING)
        return make_status(ORT_INVALID_ARGUMENT, "expected a tensor of numbers over the caller's memory, got one of strings: CreateTensorAsOrtValue makes it");
    Content *content;
    RETURN_IF(new_tensor(shape, shape_len, type, "CreateTensorWithDataAsOrtValue", &content));
    OrtStatus *status = NULL;
    if (p_data_len < content->bytes)
        status = make_status(ORT_INVALID_ARGUMENT, "not enough space: expected %zu bytes for the %zu elements of CreateTensorWithDataAsOrtValue, got %zu bytes for %zu",
                             content->bytes, content->count, p_data_len, p_data_len / element_size(type));
    else if (p_data == NULL && content->bytes > 0)
        status = missing("p_data", "CreateTensorWithDataAsOrtValue");
    if (status != NULL) {
        release_content(content);
        return status;
    }
    static char nothing[1];
    content->data = p_data != NULL ? p_data : nothing;
    return new_value(content, out);
}

OrtStatus *ORT_API_CALL api_CreateValue(const OrtValue *const *in, size_t num_values, ONNXType value_type, OrtValue **out) {
    REQUIRE_POINTER(out);
    if (value_type != ONNX_TYPE_SEQUENCE)
        return make_status(ORT_NOT_IMPLEMENTED, "expected ONNX_TYPE_SEQUENCE as value_type of CreateValue, got %d: there are no maps", value_type);
    if (num_values == 0)
        return make_status(ORT_INVALID_ARGUMENT, "expected at least one value for CreateValue, got none");
    REQUIRE_POINTER(in);
    for (size_t i = 0; i < num_values; i++) {
        REQUIRE(Value, in[i]);
        RETURN_IF(require_tensor(in[i]->content, "CreateValue"));
        if (in[i]->content->element_type != in[0]->content->element_type)
            return make_status(ORT_INVALID_ARGUMENT, "expected tensors of one element type in the sequence of CreateValue, got %d and %d",
                               in[0]->content->element_type, in[i]->content->element_type);
    }
    Content *content = calloc(1, sizeof(Content));
    if (content != NULL && (content->items = calloc(num_values, sizeof(Content *))) != NULL) {
        content->references = 1;
        content->kind = ONNX_TYPE_SEQUENCE;
        content->element_type = in[0]->content->element_type;
        content->count = num_values;
        for (size_t i = 0; i < num_values; i++)
            content->items[i] = retain_content(in[i]->content);
        return new_value(content, out);
    }
    free(content);
    return out_of_memory();
}

/* ---- reading */

OrtStatus *ORT_API_CALL api_IsTensor(const OrtValue *value, int *out) {
    REQUIRE(Value, value);
    REQUIRE_POINTER(out);
    *out = value->content->kind == ONNX_TYPE_TENSOR;
    return NULL;
}

OrtStatus *ORT_API_CALL api_IsSparseTensor(const OrtValue *value, int *out) {
    REQUIRE(Value, value);
    REQUIRE_POINTER(out);
    *out = 0;
    return NULL;
}

OrtStatus *ORT_API_CALL api_HasValue(const OrtValue *value, int *out) {
    REQUIRE(Value, value);
    REQUIRE_POINTER(out);
    *out = value->content->kind != ONNX_TYPE_OPTIONAL;
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetTensorMutableData(OrtValue *value, void **out) {
    REQUIRE(Value, value);
    REQUIRE_POINTER(out);
    RETURN_IF(require_tensor(value->content, "GetTensorMutableData"));
    if (value->content->data == NULL)
        return make_status(ORT_NOT_IMPLEMENTED, "expected a tensor of numbers as value of GetTensorMutableData, got one of strings");
    *out = value->content->data;
    return NULL;
}

OrtStatus *ORT_API_CALL api_TensorAt(OrtValue *value, const int64_t *location_values, size_t location_values_count, void **out) {
    REQUIRE(Value, value);
    REQUIRE_POINTER(out);
    const Content *content = value->content;
    RETURN_IF(require_tensor(content, "TensorAt"));
    if (content->data == NULL)
        return make_status(ORT_NOT_IMPLEMENTED, "expected a tensor of numbers as value of TensorAt, got one of strings");
    if (location_values_count != (size_t)content->rank)
        return make_status(ORT_INVALID_ARGUMENT, "expected %d indices for TensorAt, got %zu", content->rank, location_values_count);
    size_t position = 0;
    for (size_t i = 0; i < location_values_count; i++) {
        REQUIRE_POINTER(location_values);
        if (location_values[i] < 0 || location_values[i] >= content->dims[i])
            return make_status(ORT_INVALID_ARGUMENT, "expected an index in [0, %lld) along axis %zu for TensorAt, got %lld", (long long)content->dims[i], i,
                               (long long)location_values[i]);
        position = position * (size_t)content->dims[i] + (size_t)location_values[i];
    }
    *out = (char *)content->data + position * element_size(content->element_type);
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetTensorTypeAndShape(const OrtValue *value, OrtTensorTypeAndShapeInfo **out) {
    REQUIRE(Value, value);
    REQUIRE_POINTER(out);
    RETURN_IF(require_tensor(value->content, "GetTensorTypeAndShape"));
    return shape_of_content(value->content, out);
}

OrtStatus *ORT_API_CALL api_GetTypeInfo(const OrtValue *value, OrtTypeInfo **out) {
    REQUIRE(Value, value);
    REQUIRE_POINTER(out);
    return type_of_content(value->content, out);
}

OrtStatus *ORT_API_CALL api_GetValueType(const OrtValue *value, ONNXType *out) {
    REQUIRE(Value, value);
    REQUIRE_POINTER(out);
    *out = (ONNXType)value->content->kind;
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetTensorMemoryInfo(const OrtValue *value, const OrtMemoryInfo **mem_info) {
    REQUIRE(Value, value);
    REQUIRE_POINTER(mem_info);
    *mem_info = memory_of_cpu();
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetValueCount(const OrtValue *value, size_t *out) {
    REQUIRE(Value, value);
    REQUIRE_POINTER(out);
    if (value->content->kind != ONNX_TYPE_SEQUENCE)
        return make_status(ORT_FAIL, "Input is not of one of the supported sequence types.");
    *out = value->content->count;
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetValue(const OrtValue *value, int index, OrtAllocator *allocator, OrtValue **out) {
    REQUIRE(Value, value);
    REQUIRE_POINTER(allocator);
    REQUIRE_POINTER(out);
    if (value->content->kind != ONNX_TYPE_SEQUENCE)
        return make_status(ORT_FAIL, "Input is not of one of the supported sequence types.");
    if (index < 0 || (size_t)index >= value->content->count)
        return make_status(ORT_INVALID_ARGUMENT, "expected an index in [0, %zu) for GetValue, got %d", value->content->count, index);
    return new_value(retain_content(value->content->items[index]), out);
}
