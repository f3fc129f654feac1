/* The conformance port in C: answers the requests of `python -m ortrain conformance run --port` by way of OrtApi, OrtTrainingApi and OrtTrainingExtensions.
   docs/porting.md describes the protocol, and what an answer "absent" of this port means. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include "ortrain_c_api.h"
#include "ortrain_extensions.h"

#include "json.h"

enum { VERSION = 19, EXTENSIONS_VERSION = 1, MAX_OBJECTS = 256, MAX_DIMENSIONS = 8 };

static const OrtApi *ort;
static const OrtTrainingApi *training;
static const OrtTrainingExtensions *extensions;
static OrtAllocator *allocator;
static OrtEnv *default_env;

/* ---- objects of the case, by the names that the requests give them */

typedef enum Kind { NONE, STATE, SESSION, VALUE, ENV, OPTIONS, RUN_OPTIONS, SHAPE, MEMORY_INFO, STATUS, ALLOCATOR, MEMORY, BUFFER } Kind;

typedef struct Object {
    const char *name;                   /* NULL: of this request only */
    Kind kind;
    void *handle;
    bool released;
} Object;

static Object objects[MAX_OBJECTS];
static size_t object_count;

static void release(Kind kind, void *handle) {
    switch (kind) {
    case STATE: training->ReleaseCheckpointState(handle); break;
    case SESSION: training->ReleaseTrainingSession(handle); break;
    case VALUE: ort->ReleaseValue(handle); break;
    case ENV: ort->ReleaseEnv(handle); break;
    case OPTIONS: ort->ReleaseSessionOptions(handle); break;
    case RUN_OPTIONS: ort->ReleaseRunOptions(handle); break;
    case SHAPE: ort->ReleaseTensorTypeAndShapeInfo(handle); break;
    case MEMORY_INFO: ort->ReleaseMemoryInfo(handle); break;
    case STATUS: ort->ReleaseStatus(handle); break;
    case BUFFER: extensions->ReleaseFlatBuffer(handle); break;
    case MEMORY: ort->ReleaseStatus(ort->AllocatorFree(allocator, handle)); break;
    default: break;
    }
}

static void release_objects(bool temporary_only) {
    size_t kept = 0;
    for (size_t i = 0; i < object_count; i++)
        if (temporary_only && objects[i].name != NULL)
            objects[kept++] = objects[i];
        else if (!objects[i].released)
            release(objects[i].kind, objects[i].handle);
    object_count = kept;
}

/* ---- the request, and replies that end it */

static const Json *request, *arguments;
static const char *call;
static Object *target;
static FILE *reply;                     /* the JSON of the result */
static jmp_buf ended;

static _Noreturn void end(const char *key, const char *format, ...) {
    char *text;
    va_list values;
    va_start(values, format);
    if (vasprintf(&text, format, values) < 0)
        exit(3);
    va_end(values);
    printf("{\"%s\": ", key);
    write_string(stdout, text);
    puts("}");
    free(text);
    longjmp(ended, 1);
}

/* End the request with the error of a status, which has a code and no name. */
static void check(OrtStatus *status) {
    if (status == NULL)
        return;
    char *shown;
    int code = ort->GetErrorCode(status);
    if (asprintf(&shown, "returns OrtStatus %d: %s", code, ort->GetErrorMessage(status)) < 0)
        exit(3);
    printf("{\"error\": {\"name\": null, \"code\": %d, \"message\": ", code);
    write_string(stdout, ort->GetErrorMessage(status));
    fputs(", \"shown\": ", stdout);
    write_string(stdout, shown);
    puts("}}");
    free(shown);
    ort->ReleaseStatus(status);
    longjmp(ended, 1);
}

static void *keep(Kind kind, const char *name, void *handle) {
    if (object_count == MAX_OBJECTS)
        end("refused", "expected at most %d objects", MAX_OBJECTS);
    objects[object_count++] = (Object){ name, kind, handle, false };
    return handle;
}

static const char *result_name(void) {
    const Json *as = member(request, "as");
    return as != NULL ? as->text : "object";
}

static void reply_named(Kind kind, const char *name, void *handle) {
    keep(kind, name, handle);
    fputs("{\"object\": ", reply);
    write_string(reply, name);
    fputs("}", reply);
}

/* The result is an object. */
static void reply_object(Kind kind, void *handle) { reply_named(kind, result_name(), handle); }

/* The result is a list of objects: name[0], name[1] and so on. */
static void reply_objects(Kind kind, void **handles, size_t count) {
    size_t size = strlen(result_name()) + 32;
    fputs("[", reply);
    for (size_t i = 0; i < count; i++) {
        char *name = take(size);
        snprintf(name, size, "%s[%zu]", result_name(), i);
        fputs(i > 0 ? ", " : "", reply);
        reply_named(kind, name, handles[i]);
    }
    fputs("]", reply);
}

static void reply_flag(bool flag) { fputs(flag ? "true" : "false", reply); }

static void reply_count(size_t count) { fprintf(reply, "%zu", count); }

static Object *find_object(const char *name) {
    for (size_t i = object_count; i-- > 0;)
        if (objects[i].name != NULL && strcmp(objects[i].name, name) == 0)
            return &objects[i];
    end("refused", "expected the name of an object that a call made, got %s", name);
}

/* ---- arguments */

/* The compiler would not take such an argument. */
static _Noreturn void mistyped(const char *name) { end("absent", "%s: %s of another type, which the compiler refuses", call, name); }

static const Json *argument(const char *name, JsonType type) {
    const Json *value = member(arguments, name);
    if (value == NULL)
        end("refused", "expected the argument %s", name);
    if (value->type != type)
        mistyped(name);
    return value;
}

static const char *text_argument(const char *name) { return argument(name, JSON_STRING)->text; }

static const char *text_or_null(const char *name) {
    const Json *value = member(arguments, name);
    return value == NULL || value->type == JSON_NULL ? NULL : text_argument(name);
}

static int64_t whole_argument(const char *name) {
    const char *text = argument(name, JSON_NUMBER)->text;
    char *rest;
    int64_t number = strtoll(text, &rest, 10);
    if (*rest != '\0')
        mistyped(name);
    return number;
}

static double number_argument(const char *name) { return strtod(argument(name, JSON_NUMBER)->text, NULL); }

static bool flag_argument(const char *name) {
    const Json *value = member(arguments, name);
    if (value == NULL || (value->type != JSON_TRUE && value->type != JSON_FALSE))
        mistyped(name);
    return value->type == JSON_TRUE;
}

static void *object_argument(const char *name, Kind kind) {
    const Json *value = member(arguments, name);
    if (value == NULL || value->type == JSON_NULL)
        return NULL;
    const Json *object = member(value, "object");
    if (object == NULL)
        mistyped(name);
    Object *found = find_object(object->text);
    return found->kind == kind ? found->handle : (mistyped(name), NULL);
}

static const char **texts_argument(const char *name, size_t *count) {
    const Json *list = argument(name, JSON_LIST);
    const char **texts = take((list->count + 1) * sizeof(char *));
    *count = 0;
    for (const Json *item = list->first; item != NULL; item = item->next)
        texts[(*count)++] = item->text;
    return texts;
}

static unsigned char *bytes_argument(const char *name, size_t *size) {
    const Json *bytes = member(member(arguments, name), "bytes");
    *size = 0;
    return bytes == NULL ? NULL : read_bytes(bytes->text, size);
}

/* ---- tensors */

typedef struct ElementType {
    const char *name;
    ONNXTensorElementDataType number;
    size_t size;
} ElementType;

static const ElementType element_types[] = {
    { "float32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4 }, { "float64", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 8 },
    { "int64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8 }, { "int32", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 4 },
    { "uint8", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, 1 }, { "bool", ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1 },
};

static const ElementType *element_type(const char *name, ONNXTensorElementDataType number) {
    for (size_t i = 0; i < sizeof(element_types) / sizeof(*element_types); i++)
        if (name != NULL ? strcmp(element_types[i].name, name) == 0 : element_types[i].number == number)
            return &element_types[i];
    end("refused", "expected an element type of the cases, got %s %d", name != NULL ? name : "number", number);
}

static void read_element(void *to, const ElementType *type, const Json *item) {
    switch (type->number) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: *(float *)to = strtof(item->text, NULL); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: *(double *)to = strtod(item->text, NULL); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: *(int64_t *)to = strtoll(item->text, NULL, 10); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: *(int32_t *)to = (int32_t)strtol(item->text, NULL, 10); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8: *(uint8_t *)to = (uint8_t)strtoul(item->text, NULL, 10); break;
    default: *(bool *)to = item->type == JSON_TRUE; break;
    }
}

static void write_element(const void *from, const ElementType *type) {
    switch (type->number) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: write_float(reply, *(const float *)from); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: write_float(reply, *(const double *)from); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: fprintf(reply, "%" PRId64, *(const int64_t *)from); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: fprintf(reply, "%" PRId32, *(const int32_t *)from); break;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8: fprintf(reply, "%u", *(const uint8_t *)from); break;
    default: reply_flag(*(const bool *)from); break;
    }
}

static size_t read_shape(const Json *list, int64_t *shape) {
    size_t rank = 0;
    for (const Json *item = list->first; item != NULL && rank < MAX_DIMENSIONS; item = item->next)
        shape[rank++] = strtoll(item->text, NULL, 10);
    return rank;
}

/* The data of a tensor in JSON, in memory that lives as long as the case. */
static void *read_data(const Json *tensor, const ElementType **type, size_t *bytes) {
    if (member(tensor, "dtype") == NULL)
        mistyped("a tensor");
    *type = element_type(member(tensor, "dtype")->text, 0);
    const Json *data = member(tensor, "data");
    char *memory = take(data->count * (*type)->size), *at = memory;
    for (const Json *item = data->first; item != NULL; item = item->next, at += (*type)->size)
        read_element(at, *type, item);
    *bytes = data->count * (*type)->size;
    return memory;
}

static OrtValue *make_value(const Json *tensor, const Json *shape, ONNXTensorElementDataType number) {
    int64_t sizes[MAX_DIMENSIONS];
    const ElementType *type;
    size_t bytes, rank = read_shape(shape != NULL ? shape : member(tensor, "shape"), sizes);
    void *memory = read_data(tensor, &type, &bytes);
    OrtMemoryInfo *info;
    OrtValue *value;
    check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &info));
    keep(MEMORY_INFO, NULL, info);
    check(ort->CreateTensorWithDataAsOrtValue(info, memory, bytes, sizes, rank, number != 0 ? number : type->number, &value));
    return value;
}

/* A tensor among the arguments, for this request. */
static OrtValue *value_argument(const char *name) { return keep(VALUE, NULL, make_value(argument(name, JSON_OBJECT), NULL, 0)); }

static void write_strings(const OrtValue *value, size_t count) {
    for (size_t i = 0; i < count; i++) {
        size_t length;
        check(ort->GetStringTensorElementLength(value, i, &length));
        char *text = take(length);
        check(ort->GetStringTensorElement(value, length, i, text));
        fputs(i > 0 ? ", " : "", reply);
        write_string(reply, text);
    }
}

/* Write a tensor. flat: as a vector. */
static void reply_tensor(OrtValue *value, bool flat) {
    OrtTensorTypeAndShapeInfo *info;
    ONNXTensorElementDataType number;
    size_t rank, count;
    int64_t shape[MAX_DIMENSIONS];
    check(ort->GetTensorTypeAndShape(value, &info));
    keep(SHAPE, NULL, info);
    check(ort->GetTensorElementType(info, &number));
    check(ort->GetDimensionsCount(info, &rank));
    check(ort->GetDimensions(info, shape, rank));
    check(ort->GetTensorShapeElementCount(info, &count));
    bool strings = number == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING;
    const ElementType *type = strings ? NULL : element_type(NULL, number);
    fprintf(reply, "{\"dtype\": \"%s\", \"shape\": [", strings ? "string" : type->name);
    if (flat)
        reply_count(count);
    for (size_t i = 0; i < rank && !flat; i++)
        fprintf(reply, "%s%" PRId64, i > 0 ? ", " : "", shape[i]);
    fputs("], \"data\": [", reply);
    if (strings)
        write_strings(value, count);
    else {
        char *data;
        check(ort->GetTensorMutableData(value, (void **)&data));
        for (size_t i = 0; i < count; i++) {
            fputs(i > 0 ? ", " : "", reply);
            write_element(data + i * type->size, type);
        }
    }
    fputs("]}", reply);
}

#include "operations.h"

/* ---- requests */

static void hello(void) {
    fputs("{\"protocol\": 1, \"language\": \"c\", \"name\": \"native-c\", \"operations\": [", reply);
    for (size_t i = 0; i < operation_count; i++)
        fprintf(reply, "%s\"%s\"", i > 0 ? ", " : "", operations[i].name);
    fputs("]}", reply);
}

static void answer(void) {
    if (strcmp(call, "hello") == 0) {
        hello();
        return;
    }
    if (strcmp(call, "reset") == 0) {
        release_objects(false);
        return;
    }
    const Json *on = member(request, "on");
    target = on == NULL ? NULL : find_object(on->text);
    for (size_t i = 0; i < operation_count; i++)
        if (strcmp(operations[i].name, call) == 0) {
            if (operations[i].kind != (target == NULL ? NONE : target->kind))
                end("refused", "expected another kind of object for %s", call);
            operations[i].run(target == NULL ? NULL : target->handle);
            return;
        }
    end("absent", "%s", call);
}

static void serve(char *line) {
    static char *text;                  /* static: an ended request must not lose them */
    static size_t size;
    Json *root = take(sizeof(Json));
    reply = open_memstream(&text, &size);
    if (setjmp(ended) == 0) {
        if (read_json(line, root) == NULL || member(root, "call") == NULL || member(root, "call")->text == NULL)
            end("refused", "expected a JSON object with a call per line");
        request = root;
        call = member(root, "call")->text;
        arguments = member(root, "arguments");
        answer();
        fflush(reply);
        printf("{\"result\": %s}\n", size > 0 ? text : "null");
    }
    fclose(reply);
    free(text);
    release_objects(true);
    if (object_count == 0)
        give_back();
    fflush(stdout);
}

int main(void) {
    ort = OrtGetApiBase()->GetApi(VERSION);
    training = ort == NULL ? NULL : ort->GetTrainingApi(VERSION);
    extensions = OrtGetTrainingExtensions(EXTENSIONS_VERSION);
    if (training == NULL || extensions == NULL || ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "port", &default_env) != NULL
        || ort->GetAllocatorWithDefaultOptions(&allocator) != NULL)
        return 2;
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0)
        if (*skip_space(line) != '\0')
            serve(line);
    free(line);
    release_objects(false);
    ort->ReleaseEnv(default_env);
    return 0;
}
