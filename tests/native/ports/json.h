/* A minimal reader of JSON, and the memory of one conformance case: everything that `take` returns is freed by `give_back`. Numbers stay text, so that integers
   of 64 bits keep their bits and 1 is told from 1.0. */
#ifndef JSON_H
#define JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Block {
    struct Block *next;
    max_align_t bytes[];
} Block;

static Block *blocks;

static void *take(size_t size) {
    Block *block = calloc(1, sizeof(Block) + size + 1);
    if (block == NULL)
        exit(3);
    block->next = blocks;
    blocks = block;
    return block->bytes;
}

static void give_back(void) {
    while (blocks != NULL) {
        Block *next = blocks->next;
        free(blocks);
        blocks = next;
    }
}

typedef enum JsonType { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_LIST, JSON_OBJECT } JsonType;

typedef struct Json {
    JsonType type;
    char *text;                         /* of a string or a number */
    size_t count;                       /* of a list's or an object's items */
    struct Json *first, *next;
    char *key;                          /* within an object */
} Json;

static const Json *member(const Json *object, const char *key) {
    const Json *item = object != NULL && object->type == JSON_OBJECT ? object->first : NULL;
    while (item != NULL && strcmp(item->key, key) != 0)
        item = item->next;
    return item;
}

static const char *skip_space(const char *at) { return at + strspn(at, " \t\r\n"); }

/* Write a code point as UTF-8; return the end. */
static char *put_code_point(char *to, unsigned code) {
    if (code < 0x80)
        *to++ = (char)code;
    else if (code < 0x800) {
        *to++ = (char)(0xC0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3F));
    } else {
        if (code < 0x10000)
            *to++ = (char)(0xE0 | code >> 12);
        else {
            *to++ = (char)(0xF0 | code >> 18);
            *to++ = (char)(0x80 | (code >> 12 & 0x3F));
        }
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    }
    return to;
}

/* Read what follows \u; return the end. Two halves of a surrogate pair are one code point. */
static const char *read_code_point(const char *at, unsigned *code) {
    unsigned low;
    if (sscanf(at, "%4x", code) != 1)
        return NULL;
    at += 4;
    if (*code - 0xD800 < 0x400 && sscanf(at, "\\u%4x", &low) == 1) {
        *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
        at += 6;
    }
    return at;
}

/* Read a string that begins after its quotation mark; return the end, or NULL for malformed text. */
static const char *read_string(const char *at, char **text) {
    static const char escapes[] = "n\nt\tr\rb\bf\f";
    char *to = *text = take(strlen(at));
    while (*at != '"') {
        if (*at == '\0')
            return NULL;
        if (*at != '\\') {
            *to++ = *at++;
            continue;
        }
        const char *escape = strchr(escapes, at[1]);
        unsigned code = (unsigned char)(escape != NULL && at[1] != '\0' ? escape[1] : at[1]);
        at += 2;
        if (at[-1] == 'u' && (at = read_code_point(at, &code)) == NULL)
            return NULL;
        to = put_code_point(to, code);
    }
    *to = '\0';
    return at + 1;
}

/* Read a value; return the end, or NULL for malformed text. */
static const char *read_json(const char *at, Json *value) {
    at = skip_space(at);
    if (*at == '"') {
        value->type = JSON_STRING;
        return read_string(at + 1, &value->text);
    }
    if (*at == '[' || *at == '{') {
        char end = *at == '[' ? ']' : '}';
        Json **slot = &value->first;
        value->type = *at == '[' ? JSON_LIST : JSON_OBJECT;
        for (at = skip_space(at + 1); *at != end; at = skip_space(at + (*at == ','))) {
            Json *item = *slot = take(sizeof(Json));
            if (end == '}') {
                if (*at != '"' || (at = read_string(at + 1, &item->key)) == NULL || *(at = skip_space(at)) != ':')
                    return NULL;
                at++;
            }
            if ((at = read_json(at, item)) == NULL || *(at = skip_space(at)) == '\0')
                return NULL;
            slot = &item->next;
            value->count++;
        }
        return at + 1;
    }
    size_t length = strcspn(at, " \t\r\n,]}");
    value->text = take(length);
    memcpy(value->text, at, length);
    value->type = strcmp(value->text, "null") == 0 ? JSON_NULL : strcmp(value->text, "true") == 0 ? JSON_TRUE
                : strcmp(value->text, "false") == 0 ? JSON_FALSE : JSON_NUMBER;
    return length > 0 ? at + length : NULL;
}

static void write_string(FILE *to, const char *text) {
    fputc('"', to);
    for (; *text != '\0'; text++)
        if (*text == '"' || *text == '\\')
            fprintf(to, "\\%c", *text);
        else if ((unsigned char)*text < 0x20)
            fprintf(to, "\\u%04x", *text);
        else
            fputc(*text, to);
    fputc('"', to);
}

/* Write a float with all digits of its value as a double. */
static void write_float(FILE *to, double number) {
    if (number != number)
        fputs("NaN", to);
    else if (number - number != 0)
        fputs(number > 0 ? "Infinity" : "-Infinity", to);
    else
        fprintf(to, "%.17g", number);
}

static const char digits64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* Return the bytes of {"bytes": "<base64>"} and their number. */
static unsigned char *read_bytes(const char *text, size_t *size) {
    unsigned char *bytes = take(strlen(text));
    unsigned group = 0;
    size_t read = 0;
    *size = 0;
    for (; *text != '\0' && *text != '='; text++) {
        group = group << 6 | (unsigned)(strchr(digits64, *text) - digits64);
        if (++read % 4 != 1)
            bytes[(*size)++] = (unsigned char)(group >> (6 - 2 * ((read - 1) % 4)));
    }
    return bytes;
}

#endif
