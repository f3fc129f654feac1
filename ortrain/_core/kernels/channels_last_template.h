/* All channels-last kernels for one element type; included once per type, so without a guard (channels_last.h). */
#include "channels_last_vectors.h"
#include "channels_last_geometry.h"
#include "channels_last_winograd.h"
#include "channels_last_winograd_strided.h"
#include "channels_last_rows.h"
#include "channels_last_winograd_products.h"
#include "channels_last_points.h"
#include "channels_last_windows.h"
#include "channels_last_winograd_rows.h"
#include "channels_last_blocks.h"
#include "channels_last_depthwise.h"
#include "channels_last_norm.h"
#include "channels_last_pool.h"
#include "channels_last_tiled.h"
#include "channels_last_conv.h"
#undef INPUT
#undef OUTPUT
