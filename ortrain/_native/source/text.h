/* Copies of text, and lists of them. */
#ifndef ORTRAIN_TEXT_H
#define ORTRAIN_TEXT_H

#include "bridge.h"
#include "status.h"

/* Return a copy of a text, "" for NULL; NULL when memory is exhausted. */
char *copy_text(const char *text);
/* Replace a text by a copy of another. */
OrtStatus *set_text(char **place, const char *text);
/* Give a copy of a text to the caller, in memory of the allocator. */
OrtStatus *give_text(OrtAllocator *allocator, const char *text, char **out);
/* Append a copy of a text; returns false when memory is exhausted. */
bool append_text(Strings *list, const char *text);
void free_texts(Strings *list);
/* Return the index of a text in the list, or its count where it is not in the list. */
size_t find_text(const Strings *list, const char *text);
/* Make room for one more element in an array of `count`; returns false when memory is exhausted. */
bool grow(void *array_pointer, size_t count, size_t element);

#endif
