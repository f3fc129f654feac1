/* Elements of tensors of strings. */
#include <stdlib.h>
#include <string.h>

#include "status.h"
#include "values.h"

static OrtStatus *require_strings(const Content *content, const char *function) {
    return content->strings != NULL ? NULL : make_status(ORT_INVALID_ARGUMENT, "expected a tensor of strings as value of %s, got one of another type", function);
}

static OrtStatus *require_index(const Content *content, size_t index, const char *function) {
    return index < content->count ? NULL : make_status(ORT_FAIL, "element index is out of bounds: expected one in [0, %zu) for %s, got %zu", content->count,
                                                       function, index);
}

#define REQUIRE_STRINGS(value) \
    REQUIRE(Value, value); \
    RETURN_IF(require_strings((value)->content, public_name(__func__)))

/* Replace an element by `length` bytes, or zeros where text is NULL. */
static OrtStatus *set_element(Content *content, size_t index, const char *text, size_t length) {
    char *copy = calloc(length + 1, 1);
    if (copy == NULL)
        return out_of_memory();
    if (text != NULL)
        memcpy(copy, text, length);
    free(content->strings[index]);
    content->strings[index] = copy;
    content->lengths[index] = length;
    return NULL;
}

OrtStatus *ORT_API_CALL api_FillStringTensor(OrtValue *value, const char *const *s, size_t s_len) {
    REQUIRE_STRINGS(value);
    if (s_len != value->content->count)
        return make_status(ORT_INVALID_ARGUMENT, "expected %zu strings for FillStringTensor, got %zu", value->content->count, s_len);
    for (size_t i = 0; i < s_len; i++) {
        REQUIRE_POINTER(s);
        REQUIRE_POINTER(s[i]);
    }
    for (size_t i = 0; i < s_len; i++)
        RETURN_IF(set_element(value->content, i, s[i], strlen(s[i])));
    return NULL;
}

OrtStatus *ORT_API_CALL api_FillStringTensorElement(OrtValue *value, const char *s, size_t index) {
    REQUIRE_STRINGS(value);
    REQUIRE_POINTER(s);
    RETURN_IF(require_index(value->content, index, "FillStringTensorElement"));
    return set_element(value->content, index, s, strlen(s));
}

OrtStatus *ORT_API_CALL api_GetResizedStringTensorElementBuffer(OrtValue *value, size_t index, size_t length_in_bytes, char **buffer) {
    REQUIRE_STRINGS(value);
    REQUIRE_POINTER(buffer);
    RETURN_IF(require_index(value->content, index, "GetResizedStringTensorElementBuffer"));
    RETURN_IF(set_element(value->content, index, NULL, length_in_bytes));
    *buffer = value->content->strings[index];
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetStringTensorDataLength(const OrtValue *value, size_t *len) {
    REQUIRE_STRINGS(value);
    REQUIRE_POINTER(len);
    *len = 0;
    for (size_t i = 0; i < value->content->count; i++)
        *len += value->content->lengths[i];
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetStringTensorContent(const OrtValue *value, void *s, size_t s_len, size_t *offsets, size_t offsets_len) {
    REQUIRE_STRINGS(value);
    const Content *content = value->content;
    size_t total;
    RETURN_IF(api_GetStringTensorDataLength(value, &total));
    if (offsets_len != content->count || s_len < total)
        return make_status(ORT_FAIL, "space is not enough: expected %zu bytes and %zu offsets for GetStringTensorContent, got %zu and %zu", total, content->count,
                           s_len, offsets_len);
    if (total > 0)
        REQUIRE_POINTER(s);
    size_t end = 0;
    for (size_t i = 0; i < content->count; i++) {
        REQUIRE_POINTER(offsets);
        offsets[i] = end;
        if (content->lengths[i] > 0)
            memcpy((char *)s + end, content->strings[i], content->lengths[i]);
        end += content->lengths[i];
    }
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetStringTensorElementLength(const OrtValue *value, size_t index, size_t *out) {
    REQUIRE_STRINGS(value);
    REQUIRE_POINTER(out);
    RETURN_IF(require_index(value->content, index, "GetStringTensorElementLength"));
    *out = value->content->lengths[index];
    return NULL;
}

OrtStatus *ORT_API_CALL api_GetStringTensorElement(const OrtValue *value, size_t s_len, size_t index, void *s) {
    REQUIRE_STRINGS(value);
    RETURN_IF(require_index(value->content, index, "GetStringTensorElement"));
    size_t length = value->content->lengths[index];
    if (s_len < length)
        return make_status(ORT_FAIL, "buffer size is too small for the string: expected %zu bytes for GetStringTensorElement, got %zu", length, s_len);
    if (length > 0) {
        REQUIRE_POINTER(s);
        memcpy(s, value->content->strings[index], length);
    }
    return NULL;
}
