/* Types and shapes of values, inputs and outputs. */
#ifndef ORTRAIN_TYPE_INFO_H
#define ORTRAIN_TYPE_INFO_H

#include "handles.h"

/* Return the size in bytes of an element of a type, 0 for strings and unknown types. */
size_t element_size(int element_type);
/* Make the type of an input or output from its description. */
OrtStatus *type_of_description(const Description *description, OrtTypeInfo **out);
OrtStatus *shape_of_description(const Description *description, OrtTensorTypeAndShapeInfo **out);
/* Make the type of a value. */
OrtStatus *type_of_content(const Content *content, OrtTypeInfo **out);
OrtStatus *shape_of_content(const Content *content, OrtTensorTypeAndShapeInfo **out);

#endif
