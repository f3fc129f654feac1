/* 3 x 3 convolution of stride 1 by Winograd's F(4 x 4, 3 x 3): 36 multiplications per 4 x 4 outputs instead of 144 (Lavin and Gray, arXiv 1509.09308). Kernels
 * with several planes of 3 x 3 taps are sums over the planes: the channels of all planes under the kernel are side by side in the depth of the GEMMs.
 *
 * Interpolation points are 0, +-sqrt(1/2), +-sqrt(2) and infinity, with 2 to 3 times the float32 error of a direct convolution; 0, +-1, +-2 and infinity, which
 * are usual, have 10 times. x [n, h, w, c], w [k, c, 3, 3] as in ONNX, y [n, oh, ow, k]; c and k are multiples of 16.
 *   forward          y = A^T [(G g G^T) . (B^T d B)] A, where . is a GEMM over channels for each of the 36 planes
 *   data gradient    the forward convolution of dy with filters rotated by 180 degrees and c and k exchanged
 *   weight gradient  dw = G^T [sum over tiles of (B^T d B) . (A dy A^T)] G
 * A plane holds one element of all transformed tiles. Planes are PLANE_PAD elements longer than necessary, so that the 36 stores of a tile do not fall into
 * one set of the L1 cache. */

/* ---- the transforms of F(4, 3) along one dimension, on vectors of channels */

#ifndef ORTRAIN_CHANNELS_LAST_WINOGRAD_H
#define ORTRAIN_CHANNELS_LAST_WINOGRAD_H
#define PA 0.70710678118654752440
#define PB 1.41421356237309504880
#define A2 0.5
#define B2 2.0
#define SS (A2 + B2)                     /* A2 * B2 is 1 */
#define NA (1 / (2 * A2 * (A2 - B2)))
#define NB (1 / (2 * B2 * (B2 - A2)))
enum { PLANES = 36 };
static double zero_channels[4096];             /* never written; as a constant it would take 32 KiB of the file */
/* Return the plane of the input that plane `plane` of the outputs, both counted over all images, reads at plane r of the kernel; -1 outside the image.
 * rotated: of the data gradient, whose input is dy. */
static inline int64_t input_plane(const Geometry *g, int rotated, int64_t plane, int64_t r)
{
    int64_t outputs = rotated ? g->planes : g->out_planes, inputs = rotated ? g->out_planes : g->planes, z = plane % outputs;
    z = rotated ? z + g->pad_z - r * g->dilation_z : z * g->stride_z - g->pad_z + r * g->dilation_z;
    if (rotated && z >= 0) z = exact_quotient(z, g->stride_z);
    return z < 0 || z >= inputs ? -1 : plane / outputs * inputs + z;
}
/* Return the plane of the transformed filter for plane (i, j) of a tile. With stride 2, the planes of even pixels, from the sixth on, share one. */
static inline int64_t filter_plane(int64_t i, int64_t j) { return min_i64(i, 5) * 6 + min_i64(j, 5); }
#endif
#define V NAMED(Vector)
#define W NAMED(WIDTH)
#define C(x) ((REAL)(x))

ALWAYS_INLINE void NAMED(f43_input)(V *o, V d0, V d1, V d2, V d3, V d4, V d5)               /* B^T d */
{
    V e = d4 - C(B2) * d2, f = C(PA) * d3 - C(PA * B2) * d1, g = d4 - C(A2) * d2, h = C(PB) * d3 - C(PB * A2) * d1;
    o[0] = d4 + (d0 - C(SS) * d2);
    o[1] = e + f; o[2] = e - f; o[3] = g + h; o[4] = g - h;
    o[5] = d5 + (d1 - C(SS) * d3);
}
ALWAYS_INLINE void NAMED(f43_output)(V *o, V m0, V m1, V m2, V m3, V m4, V m5)              /* A^T m */
{
    V s = m1 + m2, d = m1 - m2, t = m3 + m4, e = m3 - m4;
    o[0] = m0 + s + t; o[1] = C(PA) * d + C(PB) * e; o[2] = C(A2) * s + C(B2) * t;
    o[3] = m5 + (C(PA * A2) * d + C(PB * B2) * e);
}
ALWAYS_INLINE void NAMED(f43_gradient)(V *o, V y0, V y1, V y2, V y3)                        /* A y */
{
    V e = y0 + C(A2) * y2, f = C(PA) * y1 + C(PA * A2) * y3, g = y0 + C(B2) * y2, h = C(PB) * y1 + C(PB * B2) * y3;
    o[0] = y0; o[1] = e + f; o[2] = e - f; o[3] = g + h; o[4] = g - h; o[5] = y3;
}
ALWAYS_INLINE void NAMED(f43_filter)(V *o, V g0, V g1, V g2)                                /* G g */
{
    V e = C(NA) * g0 + C(NA * A2) * g2, f = C(NA * PA) * g1, h = C(NB) * g0 + C(NB * B2) * g2, i = C(NB * PB) * g1;
    o[0] = g0; o[1] = e + f; o[2] = e - f; o[3] = h + i; o[4] = h - i; o[5] = g2;
}
ALWAYS_INLINE void NAMED(f43_filter_adjoint)(V *o, V u0, V u1, V u2, V u3, V u4, V u5)      /* G^T u */
{
    V s = u1 + u2, d = u1 - u2, t = u3 + u4, e = u3 - u4;
    o[0] = u0 + C(NA) * s + C(NB) * t; o[1] = C(NA * PA) * d + C(NB * PB) * e; o[2] = u5 + (C(NA * A2) * s + C(NB * B2) * t);
}

/* ---- the transforms of a tile */

/* A convolution in one direction: the data gradient has dy as input and dx as output. `outputs` channels result from sums over a depth of `in_channels` of
 * each plane of the kernel. images: the planes of the outputs. */
typedef struct NAMED(Winograd) {
    const Engine *engine;
    const Geometry *g;
    const REAL *in, *w, *dy;
    REAL *out, *planes, *gradients, *filters, *dw;
    int64_t images, rows, columns, depth, in_channels, out_rows, out_columns, outputs, pad_y, pad_x;
    int64_t channels;                    /* of w [plane, k, channels, 3, 3] */
    int64_t tiles_y, tiles_x, tiles;
    int64_t first, count, block;         /* the tiles at work, [first, first + count), and the number of tiles of a work item */
    int64_t slices;                      /* of the tiles, each with its own sums; 0 without slices */
    int rotated, few_tiles;
    int strided;                         /* stride 2, by phases (winograd_stride2.h) */
    int64_t points;                      /* along each dimension of a transformed tile: 6, or 9 with stride 2 */
    NAMED(Epilogue) epilogue;
} NAMED(Winograd);

typedef struct NAMED(TilePosition) { int64_t image, y, x; } NAMED(TilePosition);

ALWAYS_INLINE NAMED(TilePosition) NAMED(tile_position)(const NAMED(Winograd) *s, int64_t tile)
{ return (NAMED(TilePosition)){ tile / (s->tiles_x * s->tiles_y), tile / s->tiles_x % s->tiles_y * 4, tile % s->tiles_x * 4 }; }

/* planes [36, in_channels] of one tile = B^T d B, for one plane of the input. Pixels outside the image are read from zero_channels. */
NOINLINE void NAMED(transform_input)(const NAMED(Winograd) *s, NAMED(TilePosition) at, REAL *planes, int64_t plane_step)
{
    const REAL *pixel[36];
    for (int i = 0; i < 6; i++)
        for (int j = 0; j < 6; j++) {
            int64_t y = at.y - s->pad_y + i, x = at.x - s->pad_x + j;
            pixel[i * 6 + j] = y >= 0 && y < s->rows && x >= 0 && x < s->columns ? s->in + ((at.image * s->rows + y) * s->columns + x) * s->in_channels
                                                                               : (const REAL *)zero_channels;
        }
    for (int64_t c = 0; c < s->in_channels; c += W) {
        V m[6][6], o[6];
        _Pragma("GCC unroll 6") for (int j = 0; j < 6; j++) {
            NAMED(f43_input)(o, LOAD(pixel[j] + c), LOAD(pixel[6 + j] + c), LOAD(pixel[12 + j] + c), LOAD(pixel[18 + j] + c), LOAD(pixel[24 + j] + c),
                             LOAD(pixel[30 + j] + c));
            for (int i = 0; i < 6; i++) m[i][j] = o[i];
        }
        _Pragma("GCC unroll 6") for (int i = 0; i < 6; i++) {
            NAMED(f43_input)(o, m[i][0], m[i][1], m[i][2], m[i][3], m[i][4], m[i][5]);
            for (int j = 0; j < 6; j++) STORE(planes + (i * 6 + j) * plane_step + c, o[j]);
        }
    }
}

/* planes [36, outputs] of one tile = A dy A^T. */
NOINLINE void NAMED(transform_gradient)(const NAMED(Winograd) *s, int64_t tile, REAL *planes, int64_t plane_step)
{
    NAMED(TilePosition) at = NAMED(tile_position)(s, tile);
    const REAL *pixel[16];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            pixel[i * 4 + j] = at.y + i < s->out_rows && at.x + j < s->out_columns
                                   ? s->dy + ((at.image * s->out_rows + at.y + i) * s->out_columns + at.x + j) * s->outputs : (const REAL *)zero_channels;
    for (int64_t c = 0; c < s->outputs; c += W) {
        V m[6][4], o[6];
        _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) {
            NAMED(f43_gradient)(o, LOAD(pixel[j] + c), LOAD(pixel[4 + j] + c), LOAD(pixel[8 + j] + c), LOAD(pixel[12 + j] + c));
            for (int i = 0; i < 6; i++) m[i][j] = o[i];
        }
        _Pragma("GCC unroll 6") for (int i = 0; i < 6; i++) {
            NAMED(f43_gradient)(o, m[i][0], m[i][1], m[i][2], m[i][3]);
            for (int j = 0; j < 6; j++) STORE(planes + (i * 6 + j) * plane_step + c, o[j]);
        }
    }
}

/* Store the outputs of one tile, channels [first, first + count), from planes [36, count]: epilogue(A^T m A). */
NOINLINE void NAMED(transform_output)(const NAMED(Winograd) *s, int64_t tile, const REAL *planes, int64_t plane_step, int64_t first, int64_t count)
{
    NAMED(TilePosition) at = NAMED(tile_position)(s, tile);
    int64_t height = min_i64(4, s->out_rows - at.y), width = min_i64(4, s->out_columns - at.x);
    REAL *out = s->out + ((at.image * s->out_rows + at.y) * s->out_columns + at.x) * s->outputs + first;
    for (int64_t c = 0; c < count; c += W) {
        V m[4][6], o[4];
        _Pragma("GCC unroll 6") for (int j = 0; j < 6; j++) {
            const REAL *p = planes + j * plane_step + c;
            NAMED(f43_output)(o, LOAD(p), LOAD(p + 6 * plane_step), LOAD(p + 12 * plane_step), LOAD(p + 18 * plane_step), LOAD(p + 24 * plane_step),
                              LOAD(p + 30 * plane_step));
            for (int i = 0; i < 4; i++) m[i][j] = o[i];
        }
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) {
            if (i >= height) break;
            NAMED(f43_output)(o, m[i][0], m[i][1], m[i][2], m[i][3], m[i][4], m[i][5]);
            for (int j = 0; j < 4; j++)
                if (j < width) STORE(out + (i * s->out_columns + j) * s->outputs + c, NAMED(apply_epilogue)(&s->epilogue, o[j], first + c));
        }
    }
}
#undef V
#undef W
#undef C
