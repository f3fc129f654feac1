#include "text.h"

#include <stdlib.h>
#include <string.h>

char *copy_text(const char *text) { return strdup(text != NULL ? text : ""); }

OrtStatus *set_text(char **place, const char *text) {
    char *copy = copy_text(text);
    if (copy == NULL)
        return out_of_memory();
    free(*place);
    *place = copy;
    return NULL;
}

OrtStatus *give_text(OrtAllocator *allocator, const char *text, char **out) {
    size_t size = strlen(text) + 1;
    char *copy = allocator->Alloc(allocator, size);
    if (copy == NULL)
        return out_of_memory();
    memcpy(copy, text, size);
    *out = copy;
    return NULL;
}

bool grow(void *array_pointer, size_t count, size_t element) {
    void *grown = realloc(*(void **)array_pointer, (count + 1) * element);
    if (grown == NULL)
        return false;
    *(void **)array_pointer = grown;
    return true;
}

bool append_text(Strings *list, const char *text) {
    char *copy = copy_text(text);
    if (copy == NULL || !grow(&list->items, list->count, sizeof(char *))) {
        free(copy);
        return false;
    }
    list->items[list->count++] = copy;
    return true;
}

void free_texts(Strings *list) {
    for (size_t i = 0; i < list->count; i++)
        free(list->items[i]);
    free(list->items);
    *list = (Strings){ 0, NULL };
}

size_t find_text(const Strings *list, const char *text) {
    size_t i = 0;
    while (i < list->count && strcmp(list->items[i], text) != 0)
        i++;
    return i;
}
