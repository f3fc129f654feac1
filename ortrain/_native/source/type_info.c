#include "type_info.h"

#include <stdlib.h>
#include <string.h>

#include "text.h"

size_t element_size(int element_type) {
    static const unsigned char sizes[] = { 0, 4, 1, 1, 2, 2, 4, 8, 0, 1, 2, 8, 4, 8, 8, 16, 2 };
    return element_type >= 0 && (size_t)element_type < sizeof(sizes) ? sizes[element_type] : 0;
}

/* ---- types and shapes of tensors */

static void clear_symbols(OrtTensorTypeAndShapeInfo *info) {
    for (size_t i = 0; info->symbols != NULL && i < info->rank; i++)
        free(info->symbols[i]);
    free(info->symbols);
    info->symbols = NULL;
}

static void clear_shape(OrtTensorTypeAndShapeInfo *info) {
    clear_symbols(info);
    free(info->dims);
    info->dims = NULL;
    info->rank = 0;
}

/* Replace the shape. symbols: names of sizes, or NULL. */
static OrtStatus *set_shape(OrtTensorTypeAndShapeInfo *info, const int64_t *dims, size_t rank, const char *const *symbols) {
    int64_t *sizes = malloc((rank + 1) * sizeof(int64_t));
    char **names = calloc(rank + 1, sizeof(char *));
    if (sizes == NULL || names == NULL) {
        free(sizes);
        free(names);
        return out_of_memory();
    }
    clear_shape(info);
    if (rank > 0)
        memcpy(sizes, dims, rank * sizeof(int64_t));
    info->dims = sizes;
    info->symbols = names;
    info->rank = rank;
    for (size_t i = 0; i < rank; i++)
        if ((names[i] = copy_text(symbols == NULL ? NULL : symbols[i])) == NULL)
            return out_of_memory();
    return NULL;
}

static OrtStatus *new_shape(int element_type, const int64_t *dims, size_t rank, const char *const *symbols, OrtTensorTypeAndShapeInfo **out) {
    OrtTensorTypeAndShapeInfo *info = new_handle(KIND_TensorTypeAndShapeInfo);
    if (info == NULL)
        return out_of_memory();
    info->element_type = element_type;
    OrtStatus *status = set_shape(info, dims, rank, symbols);
    if (status != NULL)
        api_ReleaseTensorTypeAndShapeInfo(info);
    else
        *out = info;
    return status;
}

OrtStatus *shape_of_description(const Description *d, OrtTensorTypeAndShapeInfo **out) {
    return new_shape(d->element_type, d->dims, (size_t)d->rank, (const char *const *)d->symbols, out);
}

OrtStatus *shape_of_content(const Content *content, OrtTensorTypeAndShapeInfo **out) {
    return new_shape(content->element_type, content->dims, (size_t)content->rank, NULL, out);
}

OrtStatus *ORT_API_CALL api_CreateTensorTypeAndShapeInfo(OrtTensorTypeAndShapeInfo **out) {
    REQUIRE_POINTER(out);
    return new_shape(ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED, NULL, 0, NULL, out);
}

OrtStatus *ORT_API_CALL api_SetTensorElementType(OrtTensorTypeAndShapeInfo *info, ONNXTensorElementDataType type) {
    REQUIRE(TensorTypeAndShapeInfo, info);
    info->element_type = type;
    return NULL;
}

OrtStatus *ORT_API_CALL api_SetDimensions(OrtTensorTypeAndShapeInfo *info, const int64_t *dim_values, size_t dim_count) {
    REQUIRE(TensorTypeAndShapeInfo, info);
    if (dim_count > 0)
        REQUIRE_POINTER(dim_values);
    return set_shape(info, dim_values, dim_count, NULL);
}

OrtStatus *ORT_API_CALL api_SetSymbolicDimensions(OrtTensorTypeAndShapeInfo *info, const char *dim_params[], size_t dim_params_length) {
    REQUIRE(TensorTypeAndShapeInfo, info);
    if (dim_params_length != info->rank)
        return make_status(ORT_INVALID_ARGUMENT, "expected %zu names of dimensions, got %zu", info->rank, dim_params_length);
    if (dim_params_length > 0)
        REQUIRE_POINTER(dim_params);
    for (size_t i = 0; i < dim_params_length; i++)
        RETURN_IF(set_text(&info->symbols[i], dim_params[i]));
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetTensorElementType(const OrtTensorTypeAndShapeInfo *info, ONNXTensorElementDataType *out) {
    REQUIRE(TensorTypeAndShapeInfo, info);
    REQUIRE_POINTER(out);
    *out = (ONNXTensorElementDataType)info->element_type;
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetDimensionsCount(const OrtTensorTypeAndShapeInfo *info, size_t *out) {
    REQUIRE(TensorTypeAndShapeInfo, info);
    REQUIRE_POINTER(out);
    *out = info->rank;
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetDimensions(const OrtTensorTypeAndShapeInfo *info, int64_t *dim_values, size_t dim_values_length) {
    REQUIRE(TensorTypeAndShapeInfo, info);
    size_t count = dim_values_length < info->rank ? dim_values_length : info->rank;
    if (count > 0) {
        REQUIRE_POINTER(dim_values);
        memcpy(dim_values, info->dims, count * sizeof(int64_t));
    }
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetSymbolicDimensions(const OrtTensorTypeAndShapeInfo *info, const char *dim_params[], size_t dim_params_length) {
    REQUIRE(TensorTypeAndShapeInfo, info);
    for (size_t i = 0; i < dim_params_length && i < info->rank; i++) {
        REQUIRE_POINTER(dim_params);
        dim_params[i] = info->symbols[i];
    }
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetTensorShapeElementCount(const OrtTensorTypeAndShapeInfo *info, size_t *out) {
    REQUIRE(TensorTypeAndShapeInfo, info);
    REQUIRE_POINTER(out);
    int64_t count = 1;
    for (size_t i = 0; i < info->rank; i++)
        if (info->dims[i] < 0 || __builtin_mul_overflow(count, info->dims[i], &count)) {
            count = -1;             /* as the old library answers where a size is not known */
            break;
        }
    *out = (size_t)count;
    return NULL;
}

void ORT_API_CALL api_ReleaseTensorTypeAndShapeInfo(OrtTensorTypeAndShapeInfo *input) {
    if (is_open(input, KIND_TensorTypeAndShapeInfo) && !input->handle.is_part)
        clear_shape(input);
    free_handle(input, KIND_TensorTypeAndShapeInfo);
}

/* ---- types of values, inputs and outputs */

static OrtStatus *new_type(int element_type, bool is_sequence, bool is_optional, const int64_t *dims, size_t rank, const char *const *symbols,
                           OrtTypeInfo **out) {
    OrtTypeInfo *info = new_handle(KIND_TypeInfo);
    if (info == NULL)
        return out_of_memory();
    info->kind = is_optional ? ONNX_TYPE_OPTIONAL : is_sequence ? ONNX_TYPE_SEQUENCE : ONNX_TYPE_TENSOR;
    info->contains_sequence = is_sequence;
    info->sequence.owner = info->optional.owner = info;
    make_part(&info->tensor.handle, KIND_TensorTypeAndShapeInfo);
    make_part(&info->sequence.handle, KIND_SequenceTypeInfo);
    make_part(&info->optional.handle, KIND_OptionalTypeInfo);
    info->tensor.element_type = element_type;
    OrtStatus *status = set_shape(&info->tensor, dims, rank, symbols);
    if (status != NULL)
        api_ReleaseTypeInfo(info);
    else
        *out = info;
    return status;
}

OrtStatus *type_of_description(const Description *d, OrtTypeInfo **out) {
    return new_type(d->element_type, d->is_sequence, d->is_optional, d->dims, (size_t)d->rank, (const char *const *)d->symbols, out);
}

OrtStatus *type_of_content(const Content *content, OrtTypeInfo **out) {
    bool is_sequence = content->kind == ONNX_TYPE_SEQUENCE;
    return new_type(content->element_type, is_sequence, content->kind == ONNX_TYPE_OPTIONAL, content->dims, (size_t)content->rank, NULL, out);
}

/* Make the type of the elements of a sequence, or of the value in an optional. */
static OrtStatus *inner_type(const OrtTypeInfo *outer, bool is_sequence, OrtTypeInfo **out) {
    const OrtTensorTypeAndShapeInfo *tensor = &outer->tensor;
    return new_type(tensor->element_type, is_sequence, false, tensor->dims, tensor->rank, (const char *const *)tensor->symbols, out);
}

OrtStatus *ORT_API_CALL api_GetOnnxTypeFromTypeInfo(const OrtTypeInfo *type_info, ONNXType *out) {
    REQUIRE(TypeInfo, type_info);
    REQUIRE_POINTER(out);
    *out = type_info->kind;
    return NULL;
}

OrtStatus *ORT_API_CALL api_CastTypeInfoToTensorInfo(const OrtTypeInfo *type_info, const OrtTensorTypeAndShapeInfo **out) {
    REQUIRE(TypeInfo, type_info);
    REQUIRE_POINTER(out);
    *out = type_info->kind == ONNX_TYPE_TENSOR ? &type_info->tensor : NULL;
    return NULL;
}

OrtStatus *ORT_API_CALL api_CastTypeInfoToSequenceTypeInfo(const OrtTypeInfo *type_info, const OrtSequenceTypeInfo **out) {
    REQUIRE(TypeInfo, type_info);
    REQUIRE_POINTER(out);
    *out = type_info->kind == ONNX_TYPE_SEQUENCE ? &type_info->sequence : NULL;
    return NULL;
}

OrtStatus *ORT_API_CALL api_CastTypeInfoToOptionalTypeInfo(const OrtTypeInfo *type_info, const OrtOptionalTypeInfo **out) {
    REQUIRE(TypeInfo, type_info);
    REQUIRE_POINTER(out);
    *out = type_info->kind == ONNX_TYPE_OPTIONAL ? &type_info->optional : NULL;
    return NULL;
}

OrtStatus *ORT_API_CALL api_CastTypeInfoToMapTypeInfo(const OrtTypeInfo *type_info, const OrtMapTypeInfo **out) {
    REQUIRE(TypeInfo, type_info);
    REQUIRE_POINTER(out);
    *out = NULL;
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetSequenceElementType(const OrtSequenceTypeInfo *sequence_type_info, OrtTypeInfo **type_info) {
    REQUIRE(SequenceTypeInfo, sequence_type_info);
    REQUIRE_POINTER(type_info);
    return inner_type(sequence_type_info->owner, false, type_info);
}

OrtStatus *ORT_API_CALL api_GetOptionalContainedTypeInfo(const OrtOptionalTypeInfo *optional_type_info, OrtTypeInfo **out) {
    REQUIRE(OptionalTypeInfo, optional_type_info);
    REQUIRE_POINTER(out);
    return inner_type(optional_type_info->owner, optional_type_info->owner->contains_sequence, out);
}

OrtStatus *ORT_API_CALL api_GetDenotationFromTypeInfo(const OrtTypeInfo *type_info, const char **const denotation, size_t *len) {
    REQUIRE(TypeInfo, type_info);
    REQUIRE_POINTER(denotation);
    REQUIRE_POINTER(len);
    *denotation = "";
    *len = 0;
    return NULL;
}

void ORT_API_CALL api_ReleaseTypeInfo(OrtTypeInfo *input) {
    if (!is_open(input, KIND_TypeInfo))
        return;
    clear_shape(&input->tensor);
    input->tensor.handle.magic = RELEASED_MAGIC + KIND_TensorTypeAndShapeInfo;
    input->sequence.handle.magic = RELEASED_MAGIC + KIND_SequenceTypeInfo;
    input->optional.handle.magic = RELEASED_MAGIC + KIND_OptionalTypeInfo;
    free_handle(input, KIND_TypeInfo);
}
