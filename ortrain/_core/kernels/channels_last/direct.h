/* Direct convolution: windows are read in place, without im2col.
 *
 * Kernel row r of a window is kernel_x * c contiguous elements, and that of the next output starts stride_x * c elements later, so a GEMM can read the rows of
 * the im2col matrix directly from x; with dilations along the width, each tap is c contiguous elements. A tile is 4 outputs by 3 vectors of filters, because
 * feature maps are multiples of 4 more often than of 6, 6 outputs by fewer vectors, or with 32 registers 8 by any. The last vector of filters starts at
 * filters - WIDTH: some filters are computed twice, and none are padded, except that fewer filters than a vector has, without groups, are padded to one
 * vector. Where that computes too much, lanes are elements of windows: forward in dot_tiles.h, in the weight gradient by exchanging the operands of a tile.
 *
 * Only where windows extend beyond the left or right edge, or where there are groups, the rows of the image, or the channels of a group in them, are copied with
 * zero padding first; rows above and below the image are left out of the sums.
 *
 * x and y may be [n, c, d, h, w], with a plane for each channel: such rows of x are transposed where others are copied, and a block of y is transposed when it
 * is complete, so that a convolution which stands alone makes no copies of whole images (128 channels in 8 groups, 28 x 28: 5.7 to 4.9 ms).
 *
 * The data gradient without strides is the convolution of dy with filters rotated by 180 degrees. */
#define V NAMED(Vector)
#define W NAMED(WIDTH)
#ifndef ORTRAIN_CHANNELS_LAST_DIRECT_H
#define ORTRAIN_CHANNELS_LAST_DIRECT_H

#define MAX_COPIED_PLANES 4              /* half of the L2 cache */
#define PARTIAL_COLUMNS 24               /* outputs of fewer filters than a vector has that are computed at a time, before they are copied */

/* Return the columns of input, with padding, that the windows of one row of outputs cover, and their elements in one group. */
static inline int64_t padded_columns(const Geometry *g) { return (g->out_columns - 1) * g->stride_x + (g->kernel_x - 1) * g->dilation_x + 1; }
static inline int64_t padded_row_size(const Geometry *g) { return padded_columns(g) * (g->channels / g->group); }
/* Return the bytes of the padded copy of a block. Kernels of several planes copy as many rows of each, so that filters are read once for as many outputs. */
static inline int64_t copied_bytes(const Geometry *g) { return PADDED_COPY_BYTES * min_i64(g->kernel_z, MAX_COPIED_PLANES); }
static inline int needs_copy(const Geometry *g) { return g->group > 1 || g->pad_x > 0 || padded_columns(g) > g->columns; }
#endif

typedef struct NAMED(DirectConv) {
    const Engine *engine;
    Geometry shape;
    const REAL *x, *w, *dy;
    REAL *y, *dw, *packed, *sums;
    int64_t channels, filters;           /* of a group */
    int64_t row_segments, length;        /* segments of a row of a window, and their elements */
    int64_t depth, vectors;              /* elements of a window; vectors of filters of a group */
    Partition panels;                    /* of the vectors of filters */
    int64_t rows, blocks;                /* rows of outputs of a work item, and work items per group of an image */
    int64_t slices;
    int dots;                            /* whether the forward pass has lanes in windows (dot_tiles.h) */
    int lanes_in_rows;                   /* lanes of the weight gradient are elements of a row of a window, and rows of its tiles are filters */
    int rotated;                         /* w has its filters rotated, and its inputs and outputs exchanged */
    int reads_planes, writes_planes;     /* x, and y, have a plane for each channel */
    int64_t pixel_step;                  /* elements between pixels of y where tiles are stored */
    NAMED(Epilogue) epilogue;
} NAMED(DirectConv);

/* The convolution, or if `rotated` its data gradient without strides. */
static NAMED(DirectConv) NAMED(direct_from_args)(const KernelArgs *args, int rotated)
{
    NAMED(DirectConv) s = { .engine = args->engine, .shape = *(const Geometry *)args->ints, .rotated = rotated };
    Geometry *g = &s.shape, old = *g;
    if (rotated) {
        g->planes = old.out_planes; g->rows = old.out_rows; g->columns = old.out_columns; g->channels = old.filters;
        g->out_planes = old.planes; g->out_rows = old.rows; g->out_columns = old.columns; g->filters = old.channels;
        g->pad_z = (g->kernel_z - 1) * g->dilation_z - old.pad_z;
        g->pad_y = (g->kernel_y - 1) * g->dilation_y - old.pad_y; g->pad_x = (g->kernel_x - 1) * g->dilation_x - old.pad_x;
    }
    s.channels = g->channels / g->group; s.filters = g->filters / g->group;
    s.row_segments = g->dilation_x == 1 ? 1 : g->kernel_x;
    s.length = g->kernel_x / s.row_segments * s.channels;
    s.depth = kernel_taps(g) * s.channels;
    s.vectors = ceil_div(s.filters, W);
    s.panels = partition(s.vectors, DIRECT_TILE_VECTORS);
    s.pixel_step = g->filters;
    return s;
}

ALWAYS_INLINE int64_t NAMED(first_filter)(const NAMED(DirectConv) *s, int64_t vector) { return max_i64(0, min_i64(vector * W, s->filters - W)); }
/* Return whether there are fewer filters than a vector has elements. */
ALWAYS_INLINE int NAMED(has_partial_vector)(const NAMED(DirectConv) *s) { return s->filters < W; }

/* Return the distance of the last vector of a panel from its first one, which starts at vector `first`. */
ALWAYS_INLINE int64_t NAMED(last_vector_offset)(const NAMED(DirectConv) *s, int64_t first, int64_t count)
{ return NAMED(first_filter)(s, first + count - 1) - first * W; }

/* to [padded_row_size] = the channels of a group in a row of the image, with zero padding on both sides */
static void NAMED(copy_padded_row)(const NAMED(DirectConv) *s, int64_t image, int64_t group, int64_t row, REAL *to)
{
    const Geometry *g = &s->shape;
    int64_t before = g->pad_x * s->channels, columns = min_i64(g->columns, padded_columns(g) - g->pad_x), inside = columns * s->channels;
    const REAL *from = s->reads_planes ? s->x + (image * g->channels + group * s->channels) * image_pixels(g) + row * g->columns
                                       : s->x + (image * g->planes * g->rows + row) * g->columns * g->channels + group * s->channels;
    memset(to, 0, (size_t)before * sizeof(REAL));
    if (s->reads_planes) s->engine->transpose(to + before, from, sizeof(REAL), columns, s->channels, s->channels, image_pixels(g));
    else if (g->group == 1) memcpy(to + before, from, (size_t)inside * sizeof(REAL));
    else for (int64_t x = 0; x < columns; x++) NAMED(copy_elements)(to + before + x * s->channels, from + x * g->channels, s->channels);
    memset(to + before + inside, 0, (size_t)(padded_row_size(g) - before - inside) * sizeof(REAL));
}

/* ---- forward */

/* Return whether lanes in windows compute fewer products than vectors of filters, padding and the addition of lanes included. */
static int NAMED(suits_dots)(const NAMED(DirectConv) *s)
{
    const Geometry *g = &s->shape;
    int64_t segments = kernel_rows(g) * s->row_segments;
    return g->group == 1 && segments <= MAX_SEGMENTS && NAMED(has_faster_dots)(segments, s->length, s->filters);
}

/* packed [filter, kernel row, segment, elements] = the rows of windows of a filter. A work item is a filter. */
static void NAMED(pack_dot_filters_item)(void *context, int64_t k, int64_t worker)
{
    const NAMED(DirectConv) *s = context; (void)worker;
    int64_t taps = kernel_taps(&s->shape), segments = kernel_rows(&s->shape) * s->row_segments, padded = round_up(s->length, W);
    const REAL *w = s->w + k * (s->rotated ? taps : s->depth);
    REAL *to = s->packed + k * segments * padded;
    for (int64_t segment = 0; segment < segments; segment++, to += padded)
        for (int64_t i = 0; i < padded; i++) {
            int64_t element = dot_element(i, s->length, padded, W), tap = segment * (s->length / s->channels) + element / s->channels, c = element % s->channels;
            to[i] = element < 0 ? 0 : w[c * (s->rotated ? s->filters * taps : taps) + (s->rotated ? taps - 1 - tap : tap)];
        }
}

/* packed [group, panel, window elements, vectors of the panel] = w transposed. A work item is a panel of a group. */
static void NAMED(pack_direct_filters_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(DirectConv) *s = context; (void)worker;
    int64_t taps = kernel_taps(&s->shape), panel = item % s->panels.parts, group = item / s->panels.parts;
    int64_t first = part_start(s->panels, panel), count = part_size(s->panels, panel);
    int64_t filter_step = s->rotated ? taps : s->depth, channel_step = s->rotated ? s->filters * taps : taps;
    int64_t valid = min_i64(W, s->filters);
    const REAL *w = s->w + group * s->filters * s->depth;
    REAL *packed = s->packed + (group * s->vectors + first) * W * s->depth;
    for (int64_t c = 0; c < s->channels; c++)                    /* in memory order of w, whose rows are far apart */
        for (int64_t tap = 0; tap < taps; tap++)
            for (int64_t j = 0; j < count; j++) {
                const REAL *from = w + NAMED(first_filter)(s, first + j) * filter_step + c * channel_step + (s->rotated ? taps - 1 - tap : tap);
                REAL *to = packed + ((tap * s->channels + c) * count + j) * W;
                for (int64_t k = 0; k < valid; k++) to[k] = from[k * filter_step];
                for (int64_t k = valid; k < W; k++) to[k] = 0;
            }
}

/* The input of a block of rows of outputs of plane oz: the rows from `top` on of each plane under the kernel; plane_step, row_step: elements between them. */
typedef struct NAMED(DirectInput) { const REAL *x; int64_t oz, top, plane_step, row_step; } NAMED(DirectInput);

/* One panel of filters for kernel rows [low, high) and the outputs of one row. */
static void NAMED(direct_row)(const NAMED(DirectConv) *s, const NAMED(DirectInput) *in, int64_t panel, const REAL *packed, int64_t low, int64_t high,
                              int64_t oy, REAL *y, int64_t channel)
{
    const Geometry *g = &s->shape;
    int64_t first = part_start(s->panels, panel), count = part_size(s->panels, panel), last = NAMED(last_vector_offset)(s, first, count);
    int64_t padded = round_up(s->length, W), rows = kernel_rows(g), packed_step = s->dots ? padded : s->length * count * W;
    Segments segments = { .length = s->length };
    for (int64_t r = low; r < high; r++) {
        if (input_row(g, in->oz, oy, r) < 0) continue;
        int64_t row = oy * g->stride_y - g->pad_y + r % g->kernel_y * g->dilation_y - in->top;
        for (int64_t t = 0; t < s->row_segments; t++) {
            segments.a_offset[segments.count] = r / g->kernel_y * in->plane_step + row * in->row_step + t * g->dilation_x * s->channels;
            segments.b_offset[segments.count++] = (r * s->row_segments + t) * packed_step;
        }
    }
    if (s->dots) {
        NAMED(DotRow) dots = { &segments, g->stride_x * s->channels, rows * s->row_segments * padded, s->pixel_step };
        NAMED(dot_row)(&dots, g->out_columns, s->filters, in->x, packed, y);
        return;
    }
    int partial = NAMED(has_partial_vector)(s);
    REAL edge[PARTIAL_COLUMNS * W];
    NAMED(DirectTile) tile = { &segments, g->stride_x * s->channels, 1, count * W, partial ? W : s->pixel_step, low > 0 ? START_FROM_C : OVERWRITE_C,
                               high == rows && !partial ? &s->epilogue : 0 };
    if (!partial) {
        NAMED(direct_tiles)(&tile, g->out_columns, count, in->x, packed, (count - 1) * W, y, last, channel + first * W);
        return;
    }
    for (int64_t at = 0, columns; at < g->out_columns; at += columns) {
        columns = min_i64(PARTIAL_COLUMNS, g->out_columns - at);
        NAMED(direct_tiles)(&tile, columns, 1, in->x + at * tile.a_row, packed, 0, edge, 0, 0);
        for (int64_t i = 0; i < columns; i++) memcpy(y + (at + i) * s->pixel_step, edge + i * W, (size_t)g->filters * sizeof(REAL));
    }
}

/* Return the input of the rows of outputs [begin, end) of plane oz, with rows copied to `copies` unless they are read in place. */
static NAMED(DirectInput) NAMED(direct_input)(const NAMED(DirectConv) *s, int64_t image, int64_t oz, int64_t group, int64_t begin, int64_t end, REAL *copies)
{
    const Geometry *g = &s->shape;
    int64_t top = begin * g->stride_y - g->pad_y, bottom = (end - 1) * g->stride_y - g->pad_y + (g->kernel_y - 1) * g->dilation_y;
    int64_t front = oz * g->stride_z - g->pad_z, row_step = g->columns * g->channels;
    if (!needs_copy(g) && !s->reads_planes)
        return (NAMED(DirectInput)){ s->x + ((image * g->planes + front) * g->rows + top) * row_step, oz, top, g->dilation_z * g->rows * row_step, row_step };
    row_step = padded_row_size(g);
    NAMED(DirectInput) in = { copies, oz, top, (bottom - top + 1) * row_step, row_step };
    for (int64_t plane = 0, z = front; plane < g->kernel_z; plane++, z += g->dilation_z)
        for (int64_t row = max_i64(top, 0); z >= 0 && z < g->planes && row <= min_i64(bottom, g->rows - 1); row++)
            NAMED(copy_padded_row)(s, image, group, z * g->rows + row, copies + plane * in.plane_step + (row - top) * row_step);
    return in;
}

/* Return the elements of the input rows that direct_input copies at most. */
static int64_t NAMED(copied_elements)(const NAMED(DirectConv) *s)
{
    const Geometry *g = &s->shape;
    return g->kernel_z * ((s->rows - 1) * g->stride_y + (g->kernel_y - 1) * g->dilation_y + 1) * padded_row_size(g);
}

/* A block of rows of outputs of one group of one plane. A panel is used for as many kernel rows as fit PANEL_BYTES, and for all rows of the block, before the
 * next one. */
static void NAMED(direct_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(DirectConv) *s = context;
    const Geometry *g = &s->shape;
    int64_t group = item % g->group, plane = item / g->group / s->blocks, begin = item / g->group % s->blocks * s->rows, rows = kernel_rows(g), capacity;
    int64_t end = min_i64(begin + s->rows, g->out_rows);
    int at_once = s->dots || NAMED(has_partial_vector)(s);       /* all kernel rows, and the epilogue afterwards */
    REAL *copies = NAMED(workspace)(s->engine, worker, &capacity), *y = copies + round_up(NAMED(copied_elements)(s), W);
    if (!s->writes_planes) y = s->y + (plane * g->out_rows + begin) * g->out_columns * g->filters + group * s->filters;
    NAMED(DirectInput) in = NAMED(direct_input)(s, plane / g->out_planes, plane % g->out_planes, group, begin, end, copies);
    for (int64_t panel = 0; panel < (s->dots ? 1 : s->panels.parts); panel++) {
        int64_t first = part_start(s->panels, panel), count = part_size(s->panels, panel);
        int64_t step = PANEL_BYTES / (int64_t)sizeof(REAL) / (s->length * s->row_segments * count * W);
        step = at_once ? rows : max_i64(1, min_i64(MAX_SEGMENTS / s->row_segments, step));
        const REAL *packed = s->packed + (group * s->vectors + first) * W * s->depth;
        for (int64_t low = 0; low < rows; low += step)
            for (int64_t oy = begin; oy < end; oy++)
                NAMED(direct_row)(s, &in, panel, packed, low, min_i64(low + step, rows), oy,
                                  y + (oy - begin) * g->out_columns * s->pixel_step + first * W, group * s->filters);
    }
    if (at_once) NAMED(epilogue_rows)(&s->epilogue, y, (end - begin) * g->out_columns, g->filters);
    if (!s->writes_planes) return;
    int64_t size = g->out_rows * g->out_columns, first = plane / g->out_planes * g->filters + group * s->filters;
    s->engine->transpose(s->y + (first * g->out_planes + plane % g->out_planes) * size + begin * g->out_columns, y, sizeof(REAL), s->filters,
                         (end - begin) * g->out_columns, g->out_planes * size, s->filters);
}

/* s->y = epilogue(conv(x, w)). scratch: the packed filters. */
static void NAMED(direct_forward)(NAMED(DirectConv) *s, REAL *scratch)
{
    const Geometry *g = &s->shape;
    int64_t row_copies = copied_bytes(g) / (int64_t)sizeof(REAL) / padded_row_size(g) / g->kernel_z, kernel = (g->kernel_y - 1) * g->dilation_y + 1;
    s->packed = scratch;
    s->rows = max_i64(1, min_i64(g->out_rows, (row_copies - kernel) / g->stride_y + 1));
    if (s->writes_planes) {
        s->pixel_step = s->filters;
        s->rows = max_i64(1, min_i64(s->rows, PADDED_COPY_BYTES / (int64_t)sizeof(REAL) / (g->out_columns * s->filters)));
    }
    s->blocks = ceil_div(g->out_rows, s->rows);
    s->rows = ceil_div(g->out_rows, s->blocks);
    s->dots = NAMED(suits_dots)(s);
    if (s->dots) s->engine->parallel_for(s->engine, NAMED(pack_dot_filters_item), s, s->filters);
    else s->engine->parallel_for(s->engine, NAMED(pack_direct_filters_item), s, s->panels.parts * g->group);
    s->engine->parallel_for(s->engine, NAMED(direct_item), s, g->images * g->out_planes * s->blocks * g->group);
}

/* ---- weight gradient */

/* Return whether the weight gradient computes fewer products of padding, or of elements that it computes twice, with elements of a row of a window in the lanes
 * of vectors than with filters. */
static int NAMED(has_lanes_in_rows)(const NAMED(DirectConv) *s)
{ return s->length >= W && s->filters * round_up(s->length, W) <= s->length * s->vectors * W; }

/* The tiles of element t of a row of segments: sums [elements of a row of a window, filters] of kernel row r or, with lanes in rows, [filters, elements of a
 * window]. x and dy start at the segments. */
static void NAMED(direct_weight_gradient_tiles)(const NAMED(DirectConv) *s, const Segments *segments, int64_t r, int64_t t, Accumulation accumulation, const REAL *x,
                                                const REAL *dy, int64_t dy_step, REAL *sums)
{
    const int64_t x_step = s->shape.stride_x * s->channels, padded = s->vectors * W, element = (r * s->row_segments + t) * s->length;
    const int swapped = s->lanes_in_rows;
    const Partition panels = swapped ? partition(ceil_div(s->length, W), DIRECT_TILE_VECTORS) : s->panels;
    NAMED(DirectTile) tile = { segments, 1, swapped ? dy_step : x_step, swapped ? x_step : dy_step, swapped ? s->depth : padded, accumulation, 0 };
    for (int64_t panel = 0; panel < panels.parts; panel++) {
        int64_t first = part_start(panels, panel), count = part_size(panels, panel);
        int64_t last = min_i64((first + count - 1) * W, swapped ? s->length - W : max_i64(0, s->filters - W)) - first * W;
        if (swapped) NAMED(direct_tiles)(&tile, s->filters, count, dy, x + first * W, last, sums + element + first * W, last, 0);
        else NAMED(direct_tiles)(&tile, s->length, count, x, dy + first * W, last, sums + element * padded + first * W, (count - 1) * W, 0);
    }
}

/* Kernel row r of the weight gradient of a group, over the rows of outputs [first, end). dy is that of row `first`, with dy_step elements per pixel. Input rows
 * are copied to row_copies where windows extend beyond the edges. */
static void NAMED(direct_weight_gradient_rows)(const NAMED(DirectConv) *s, int64_t group, int64_t r, int64_t first, int64_t end, Accumulation accumulation,
                                               const REAL *dy, int64_t dy_step, REAL *row_copies, REAL *sums)
{
    const Geometry *g = &s->shape;
    int64_t copied = needs_copy(g), row_step = g->columns * g->channels;
    Segments segments = { .length = g->out_columns };
    int64_t *x_offset = s->lanes_in_rows ? segments.b_offset : segments.a_offset, *dy_offset = s->lanes_in_rows ? segments.a_offset : segments.b_offset;
    for (int64_t out_row = first; out_row < end; out_row++) {
        int64_t plane = out_row / g->out_rows, image = plane / g->out_planes, row = input_row(g, plane % g->out_planes, out_row % g->out_rows, r);
        if (row < 0) continue;
        if (copied) NAMED(copy_padded_row)(s, image, group, row, row_copies + segments.count * padded_row_size(g));
        x_offset[segments.count] = copied ? segments.count * padded_row_size(g) : (image * g->planes * g->rows + row) * row_step;
        dy_offset[segments.count++] = (out_row - first) * g->out_columns * dy_step;
    }
    for (int64_t t = 0; t < s->row_segments; t++)
        NAMED(direct_weight_gradient_tiles)(s, &segments, r, t, accumulation, (copied ? row_copies : s->x) + t * g->dilation_x * s->channels, dy, dy_step, sums);
}

/* sums [slice, group, window elements, filters] or, with lanes in rows, [slice, group, filters, window elements] over a slice of the rows of outputs, a few rows
 * at a time, which stay in the L1 cache for all rows of the kernel. A work item is a slice of a group. */
static void NAMED(direct_weight_gradient_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(DirectConv) *s = context;
    const Geometry *g = &s->shape;
    int64_t slice = item / g->group, group = item % g->group;
    int64_t capacity, total_rows = output_rows(g), begin = slice * total_rows / s->slices, end = (slice + 1) * total_rows / s->slices;
    int64_t block = max_i64(1, min_i64(MAX_SEGMENTS, SUMMED_PIXELS / g->out_columns));
    REAL *row_copies = NAMED(workspace)(s->engine, worker, &capacity), *sums = s->sums + item * s->depth * s->vectors * W;
    REAL *dy_copy = row_copies + (needs_copy(g) ? block * padded_row_size(g) : 0);
    for (int64_t first = begin; first < end; first += block) {
        int64_t last = min_i64(first + block, end), pixels = (last - first) * g->out_columns, partial = NAMED(has_partial_vector)(s) && !s->lanes_in_rows;
        const REAL *dy = s->dy + first * g->out_columns * g->filters + group * s->filters;
        for (int64_t i = 0; i < pixels && partial; i++) {
            STORE(dy_copy + i * W, (V){0});
            memcpy(dy_copy + i * W, dy + i * g->filters, (size_t)g->filters * sizeof(REAL));
        }
        for (int64_t r = 0; r < kernel_rows(g); r++)
            NAMED(direct_weight_gradient_rows)(s, group, r, first, last, first > begin ? ADD_C_LAST : OVERWRITE_C, partial ? dy_copy : dy,
                                               partial ? W : g->filters, row_copies, sums);
    }
}

/* dw of one vector of filters of a group: the sum of all slices in order, transposed to ONNX's layout. */
static void NAMED(direct_weight_reduction_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(DirectConv) *s = context; (void)worker;
    int64_t taps = kernel_taps(&s->shape), padded = s->vectors * W, vector = item % s->vectors, group = item / s->vectors;
    int64_t first = NAMED(first_filter)(s, vector), first_lane = vector * W - first, slice_step = s->shape.group * s->depth * padded;
    int64_t lanes = min_i64(W, s->filters);
    for (int64_t tap = 0; tap < taps; tap++)
        for (int64_t c = 0; c < s->channels; c++) {
            const REAL *from = s->sums + (group * s->depth + tap * s->channels + c) * padded + vector * W;
            REAL *to = s->dw + (group * s->filters + first) * s->depth + c * taps + tap;
            V total = LOAD(from);
            for (int64_t slice = 1; slice < s->slices; slice++) total += LOAD(from + slice * slice_step);
            for (int64_t k = first_lane; k < lanes; k++) to[k * s->depth] = total[k];
        }
}

/* The same of one filter, whose sums are [window elements]. */
static void NAMED(direct_filter_reduction_item)(void *context, int64_t item, int64_t worker)
{
    const NAMED(DirectConv) *s = context; (void)worker;
    int64_t taps = kernel_taps(&s->shape), group = item / s->filters, padded = s->depth * s->vectors * W;
    REAL *sums = s->sums + group * padded + item % s->filters * s->depth, *to = s->dw + item * s->depth;
    for (int64_t slice = 1; slice < s->slices; slice++) NAMED(add_elements)(sums, sums + slice * s->shape.group * padded, s->depth);
    for (int64_t c = 0; c < s->channels; c++)                    /* in memory order of dw */
        for (int64_t tap = 0; tap < taps; tap++) *to++ = sums[tap * s->channels + c];
}

/* s->dw = the weight gradient. scratch: the sums of the slices. */
static void NAMED(direct_weight_gradient)(NAMED(DirectConv) *s, REAL *scratch)
{
    s->sums = scratch;
    s->lanes_in_rows = NAMED(has_lanes_in_rows)(s);
    s->engine->parallel_for(s->engine, NAMED(direct_weight_gradient_item), s, s->slices * s->shape.group);
    if (s->lanes_in_rows) s->engine->parallel_for(s->engine, NAMED(direct_filter_reduction_item), s, s->shape.filters);
    else s->engine->parallel_for(s->engine, NAMED(direct_weight_reduction_item), s, s->vectors * s->shape.group);
}
#undef V
#undef W
