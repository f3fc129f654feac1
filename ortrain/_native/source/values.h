/* Contents of values. */
#ifndef ORTRAIN_VALUES_H
#define ORTRAIN_VALUES_H

#include "handles.h"

Content *retain_content(Content *content);
void release_content(Content *content);
/* Make a value over contents, whose reference it takes. */
OrtStatus *new_value(Content *content, OrtValue **out);
/* Return the status of a value that is not a tensor. */
OrtStatus *require_tensor(const Content *content, const char *function);

#endif
