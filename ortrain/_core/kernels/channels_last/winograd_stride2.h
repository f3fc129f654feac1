/* 3 x 3 convolution of stride 2 and padding 1 by Winograd's method on the two phases of the input: 81 multiplications per 4 x 4 outputs instead of 144.
 *
 * Along one dimension, output o depends on x[2o - 1], x[2o] and x[2o + 1]. The odd pixels are convolved with two taps (w0, w2): F(4, 2), five multiplications
 * for four outputs with the points +-sqrt(1/2), +-sqrt(2) and infinity. The even pixels are multiplied by w1: four multiplications, which share one plane of
 * the filter. The data gradient is computed in the same way: odd pixels depend on two outputs through (w2, w0), even ones on one output through w1. */
#define V NAMED(Vector)
#define W NAMED(WIDTH)
#define C(x) ((REAL)(x))
#ifndef ORTRAIN_CHANNELS_LAST_WINOGRAD_STRIDE2_H
#define ORTRAIN_CHANNELS_LAST_WINOGRAD_STRIDE2_H
#define MA (1 / (2 * PA * (A2 - B2)))
#define MB (1 / (2 * PB * (B2 - A2)))
#endif

ALWAYS_INLINE void NAMED(f42_input)(V *o, V u0, V u1, V u2, V u3, V u4)
{
    V e = u3 - C(B2) * u1, f = C(PA) * u2 - C(PA * B2) * u0, g = u3 - C(A2) * u1, h = C(PB) * u2 - C(PB * A2) * u0;
    o[0] = e + f; o[1] = e - f; o[2] = g + h; o[3] = g - h; o[4] = u4 + (u0 - C(SS) * u2);
}
/* the outputs of the odd phase from its products m0 ... m4 */
ALWAYS_INLINE void NAMED(f42_output)(V *o, V m0, V m1, V m2, V m3, V m4)
{
    V s = m0 + m1, d = m0 - m1, t = m2 + m3, e = m2 - m3;
    o[0] = s + t; o[1] = C(PA) * d + C(PB) * e; o[2] = C(A2) * s + C(B2) * t; o[3] = m4 + (C(PA * A2) * d + C(PB * B2) * e);
}
ALWAYS_INLINE void NAMED(stride2_input_1d)(V *o, const V *d)                                /* d0 ... d8 -> 9 points */
{
    NAMED(f42_input)(o, d[0], d[2], d[4], d[6], d[8]);
    for (int i = 0; i < 4; i++) o[5 + i] = d[2 * i + 1];
}
ALWAYS_INLINE void NAMED(stride2_output_1d)(V *o, const V *m)                               /* 9 points -> y0 ... y3 */
{
    NAMED(f42_output)(o, m[0], m[1], m[2], m[3], m[4]);
    for (int i = 0; i < 4; i++) o[i] += m[5 + i];
}
ALWAYS_INLINE void NAMED(stride2_data_input_1d)(V *o, const V *dy)                          /* dy0 ... dy4 -> 9 points */
{
    NAMED(f42_input)(o, dy[0], dy[1], dy[2], dy[3], dy[4]);
    for (int i = 0; i < 4; i++) o[5 + i] = dy[i];
}
ALWAYS_INLINE void NAMED(stride2_data_output_1d)(V *o, const V *m)                          /* 9 points -> dx0 ... dx7 */
{
    V odd[4];
    NAMED(f42_output)(odd, m[0], m[1], m[2], m[3], m[4]);
    for (int i = 0; i < 4; i++) { o[2 * i] = m[5 + i]; o[2 * i + 1] = odd[i]; }
}
ALWAYS_INLINE void NAMED(stride2_gradient_1d)(V *o, const V *y)                             /* dy0 ... dy3 -> 9 points, adjoint of stride2_output_1d */
{
    V e = y[0] + C(A2) * y[2], f = C(PA) * y[1] + C(PA * A2) * y[3], g = y[0] + C(B2) * y[2], h = C(PB) * y[1] + C(PB * B2) * y[3];
    o[0] = e + f; o[1] = e - f; o[2] = g + h; o[3] = g - h; o[4] = y[3];
    for (int i = 0; i < 4; i++) o[5 + i] = y[i];
}
ALWAYS_INLINE void NAMED(stride2_filter_1d)(V *o, V w0, V w1, V w2)
{
    V a = C(MA) * w0, b = C(MA * PA) * w2, c = C(MB) * w0, d = C(MB * PB) * w2;
    o[0] = b + a; o[1] = b - a; o[2] = d + c; o[3] = d - c; o[4] = w2; o[5] = w1;
}
ALWAYS_INLINE void NAMED(stride2_filter_adjoint_1d)(V *o, V u0, V u1, V u2, V u3, V u4, V u5)/* the adjoint of stride2_filter_1d */
{
    o[0] = C(MA) * (u0 - u1) + C(MB) * (u2 - u3); o[1] = u5;
    o[2] = C(MA * PA) * (u0 + u1) + C(MB * PB) * (u2 + u3) + u4;
}

/* Set pixel [size, size] to the addresses of the pixels from (y, x) on of an image [rows, columns, channels], zero_channels outside. */
static void NAMED(pixel_pointers)(const REAL *image, int64_t rows, int64_t columns, int64_t channels, int64_t y, int64_t x, int size, const REAL **pixel)
{
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++) {
            int inside = y + i >= 0 && y + i < rows && x + j >= 0 && x + j < columns;
            pixel[i * size + j] = inside ? image + ((y + i) * columns + x + j) * channels : (const REAL *)zero_channels;
        }
}

/* planes [81, CHANNELS] of one tile = TRANSFORM applied to SIZE x SIZE pixels in both dimensions. */
#define STRIDE2_TRANSFORM(NAME, SIZE, TRANSFORM, IMAGE, ROWS, COLUMNS, CHANNELS, TOP, LEFT)                                       \
NOINLINE void NAME(const NAMED(Winograd) *s, int64_t tile, REAL *planes, int64_t plane_step)                                      \
{                                                                                                                                 \
    NAMED(TilePosition) at = NAMED(tile_position)(s, tile);                                                                       \
    const REAL *pixel[SIZE * SIZE];                                                                                               \
    NAMED(pixel_pointers)((IMAGE) + at.image * (ROWS) * (COLUMNS) * (CHANNELS), ROWS, COLUMNS, CHANNELS, TOP, LEFT, SIZE, pixel); \
    for (int64_t c = 0; c < (CHANNELS); c += W) {                                                                                 \
        V m[9][SIZE], d[SIZE], o[9];                                                                                              \
        for (int j = 0; j < SIZE; j++) {                                                                                          \
            for (int i = 0; i < SIZE; i++) d[i] = LOAD(pixel[i * SIZE + j] + c);                                                  \
            TRANSFORM(o, d);                                                                                                      \
            for (int i = 0; i < 9; i++) m[i][j] = o[i];                                                                           \
        }                                                                                                                         \
        for (int i = 0; i < 9; i++) {                                                                                             \
            TRANSFORM(o, m[i]);                                                                                                   \
            for (int j = 0; j < 9; j++) STORE(planes + (i * 9 + j) * plane_step + c, o[j]);                                       \
        }                                                                                                                         \
    }                                                                                                                             \
}
STRIDE2_TRANSFORM(NAMED(stride2_input), 9, NAMED(stride2_input_1d), s->in, s->rows, s->columns, s->in_channels, 2 * at.y - 1, 2 * at.x - 1)
STRIDE2_TRANSFORM(NAMED(stride2_data_input), 5, NAMED(stride2_data_input_1d), s->in, s->rows, s->columns, s->in_channels, at.y, at.x)
STRIDE2_TRANSFORM(NAMED(stride2_gradient), 4, NAMED(stride2_gradient_1d), s->dy, s->out_rows, s->out_columns, s->outputs, at.y, at.x)
#undef STRIDE2_TRANSFORM

/* Store SIZE x SIZE outputs of one tile, channels [first, first + count), from planes [81, count] by TRANSFORM in both dimensions, with the epilogue. */
#define STRIDE2_INVERSE(NAME, SIZE, TRANSFORM)                                                                                            \
NOINLINE void NAME(const NAMED(Winograd) *s, int64_t tile, const REAL *planes, int64_t plane_step, int64_t first, int64_t count)          \
{                                                                                                                                         \
    NAMED(TilePosition) at = NAMED(tile_position)(s, tile);                                                                               \
    int64_t y = at.y / 4 * SIZE, x = at.x / 4 * SIZE, height = min_i64(SIZE, s->out_rows - y), width = min_i64(SIZE, s->out_columns - x); \
    REAL *out = s->out + ((at.image * s->out_rows + y) * s->out_columns + x) * s->outputs + first;                                        \
    for (int64_t c = 0; c < count; c += W) {                                                                                              \
        V m[SIZE][9], d[9], o[SIZE];                                                                                                      \
        for (int j = 0; j < 9; j++) {                                                                                                     \
            for (int i = 0; i < 9; i++) d[i] = LOAD(planes + (i * 9 + j) * plane_step + c);                                               \
            TRANSFORM(o, d);                                                                                                              \
            for (int i = 0; i < SIZE; i++) m[i][j] = o[i];                                                                                \
        }                                                                                                                                 \
        for (int i = 0; i < height; i++) {                                                                                                \
            TRANSFORM(o, m[i]);                                                                                                           \
            for (int j = 0; j < width; j++) STORE(out + (i * s->out_columns + j) * s->outputs + c, NAMED(apply_epilogue)(&s->epilogue, o[j], first + c)); \
        }                                                                                                                                 \
    }                                                                                                                                     \
}
STRIDE2_INVERSE(NAMED(stride2_output), 4, NAMED(stride2_output_1d))
STRIDE2_INVERSE(NAMED(stride2_data_output), 8, NAMED(stride2_data_output_1d))
#undef STRIDE2_INVERSE
#undef V
#undef W
#undef C
