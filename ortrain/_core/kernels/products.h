/* The packed float32 product, row-major: C [m, n] = op(A) op(B) (+ C), then a bias row and ReLU while a tile is in registers.
 *
 * GCC vector extensions only; the predefined macros of the instruction set choose vector width, tile and blocks. Measured on one core:
 * 250 of 272 GFLOP/s with 64-byte vectors on 1024^3. What moved the numbers, in order: few rows of A and many of B swap roles and the finished tile
 * is stored transposed; a B that fits is read in place; so is a row-major A; transposed packing by shuffles; dot products for few columns. */
#ifndef ORTRAIN_PRODUCTS_H
#define ORTRAIN_PRODUCTS_H
#include <stdint.h>
#include <string.h>
#include "kernel.h"

#if defined(__AVX512F__)
#  define VB 64
#  ifndef MRX
#  define MRX 8
#  define NVX 3
#  endif
#  ifndef KC
#  define KC 512
#  define MC 192
#  define NC 3072
#  endif
#elif defined(__AVX2__)
#  define VB 32
#  ifndef MRX
#  define MRX 6
#  define NVX 2
#  endif
#  ifndef KC
#  define KC 256
#  define MC 144
#  define NC 3072
#  endif
#else
#  define VB 16
#  ifndef MRX
#  define MRX 4
#  define NVX 3
#  endif
#  ifndef KC
#  define KC 256
#  define MC 128
#  define NC 3072
#  endif
#endif
#define VL (VB / 4)
#define NRX (NVX * VL)
typedef float vf __attribute__((vector_size(VB)));
typedef float vfu __attribute__((vector_size(VB), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(VB)));


/* ---------------------------------------------------------------- micro kernels */
/* A element (i,p) is A[i*RAS + p*CAS]; the two flavours fix one of the strides to 1 so
 * that the compiler folds the offsets.  B row p is B + p*bs, NV vectors wide.         */
#define UKR(NAME, MR, NV, RAS, CAS)                                                     \
static __attribute__((noinline)) void NAME(long k, const float *restrict A, long as,    \
        const float *restrict B, long bs, float *restrict C, long ldc, int acc,         \
        const float *restrict bias, int relu)                                           \
{                                                                                       \
    vf c[MR][NV]; (void)as;                                                             \
    _Pragma("GCC unroll 32") for (int i = 0; i < MR; i++)                               \
        _Pragma("GCC unroll 8") for (int j = 0; j < NV; j++) c[i][j] = (vf){0};         \
    for (long p = 0; p < k; p++) {                                                      \
        vf b[NV];                                                                       \
        _Pragma("GCC unroll 8") for (int j = 0; j < NV; j++)                            \
            b[j] = *(const vfu *)(B + j * VL);                                          \
        _Pragma("GCC unroll 32") for (int i = 0; i < MR; i++) {                         \
            vf a = A[i * (RAS)] - (vf){0};                                              \
            _Pragma("GCC unroll 8") for (int j = 0; j < NV; j++) c[i][j] += a * b[j];   \
        }                                                                               \
        A += (CAS); B += bs;                                                            \
    }                                                                                   \
    /* everything that touches the result happens in registers, before the one store */ \
    if (acc)                                                                            \
        _Pragma("GCC unroll 32") for (int i = 0; i < MR; i++)                           \
            _Pragma("GCC unroll 8") for (int j = 0; j < NV; j++)                        \
                c[i][j] += *(const vfu *)(C + i * ldc + j * VL);                        \
    if (bias)                                                                           \
        _Pragma("GCC unroll 8") for (int j = 0; j < NV; j++) {                          \
            vf bj = *(const vfu *)(bias + j * VL);                                      \
            _Pragma("GCC unroll 32") for (int i = 0; i < MR; i++) c[i][j] += bj;        \
        }                                                                               \
    if (relu)                                                                           \
        _Pragma("GCC unroll 32") for (int i = 0; i < MR; i++)                           \
            _Pragma("GCC unroll 8") for (int j = 0; j < NV; j++)                        \
                c[i][j] = (vf)((vi)c[i][j] & (c[i][j] > (vf){0}));                      \
    _Pragma("GCC unroll 32") for (int i = 0; i < MR; i++)                               \
        _Pragma("GCC unroll 8") for (int j = 0; j < NV; j++)                            \
            *(vfu *)(C + i * ldc + j * VL) = c[i][j];                                   \
}
typedef void (*ukr_fn)(long, const float *, long, const float *, long, float *, long, int, const float *, int);
#define UKR2(MR, NV) UKR(ukc_##MR##_##NV, MR, NV, 1, as) UKR(ukr_##MR##_##NV, MR, NV, as, 1)
#if NVX == 3
#define UKROW(MR) UKR2(MR, 1) UKR2(MR, 2) UKR2(MR, 3)
#define TAB(P, MR) { P##_##MR##_1, P##_##MR##_2, P##_##MR##_3 }
#else
#define UKROW(MR) UKR2(MR, 1) UKR2(MR, 2)
#define TAB(P, MR) { P##_##MR##_1, P##_##MR##_2 }
#endif
UKROW(1) UKROW(2) UKROW(3) UKROW(4)
#if MRX >= 6
UKROW(5) UKROW(6)
#endif
#if MRX >= 8
UKROW(7) UKROW(8)
#endif
#if MRX >= 12
UKROW(9) UKROW(10) UKROW(11) UKROW(12)
#endif
#if MRX >= 14
UKROW(13) UKROW(14)
#endif
#define ROWS(P) { TAB(P,1), TAB(P,2), TAB(P,3), TAB(P,4) ROWS6(P) ROWS8(P) ROWS12(P) ROWS14(P) }
#if MRX >= 6
#define ROWS6(P) , TAB(P,5), TAB(P,6)
#else
#define ROWS6(P)
#endif
#if MRX >= 8
#define ROWS8(P) , TAB(P,7), TAB(P,8)
#else
#define ROWS8(P)
#endif
#if MRX >= 12
#define ROWS12(P) , TAB(P,9), TAB(P,10), TAB(P,11), TAB(P,12)
#else
#define ROWS12(P)
#endif
#if MRX >= 14
#define ROWS14(P) , TAB(P,13), TAB(P,14)
#else
#define ROWS14(P)
#endif
static const ukr_fn uk_col[MRX][NVX] = ROWS(ukc);   /* A stride 1 along i (packed / TN) */
static const ukr_fn uk_row[MRX][NVX] = ROWS(ukr);   /* A stride 1 along k (row-major)   */

/* ---------------------------------------------------------------- packing */
#if VB == 64
#define TB 16
typedef vf tv; typedef vfu tvu; typedef vi ti;
#define ILO (ti){0,16,1,17,2,18,3,19,4,20,5,21,6,22,7,23}
#define IHI (ti){8,24,9,25,10,26,11,27,12,28,13,29,14,30,15,31}
#else
#define TB 4
typedef float tv __attribute__((vector_size(16)));
typedef float tvu __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t ti __attribute__((vector_size(16)));
#define ILO (ti){0,4,1,5}
#define IHI (ti){2,6,3,7}
#endif
/* TB x TB transposition: log2(TB) rounds of a perfect interleave */
static inline __attribute__((always_inline))
void transpose_block(const float *s, long ls, float *d, long ld)
{
    tv r[TB], q[TB];
#pragma GCC unroll 16
    for (int i = 0; i < TB; i++) r[i] = *(const tvu *)(s + i * ls);
#pragma GCC unroll 4
    for (int st = TB; st > 1; st /= 2) {
#pragma GCC unroll 16
        for (int i = 0; i < TB / 2; i++) {
            q[2 * i] = __builtin_shuffle(r[i], r[i + TB / 2], ILO);
            q[2 * i + 1] = __builtin_shuffle(r[i], r[i + TB / 2], IHI);
        }
#pragma GCC unroll 16
        for (int i = 0; i < TB; i++) r[i] = q[i];
    }
#pragma GCC unroll 16
    for (int i = 0; i < TB; i++) *(tvu *)(d + i * ld) = r[i];
}
#if VB >= 16
typedef float v8 __attribute__((vector_size(32)));
typedef float v8u __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t i8 __attribute__((vector_size(32)));
/* in-lane 32-bit unpack, in-lane 64-bit unpack, 128-bit exchange */
static inline __attribute__((always_inline)) void transpose8(v8 *r)
{
    v8 q[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        q[2 * i] = __builtin_shuffle(r[2 * i], r[2 * i + 1], (i8){0, 8, 1, 9, 4, 12, 5, 13});
        q[2 * i + 1] = __builtin_shuffle(r[2 * i], r[2 * i + 1], (i8){2, 10, 3, 11, 6, 14, 7, 15});
    }
    v8 u[8];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            u[4 * h + 2 * i] = __builtin_shuffle(q[4 * h + i], q[4 * h + i + 2], (i8){0, 1, 8, 9, 4, 5, 12, 13});
            u[4 * h + 2 * i + 1] = __builtin_shuffle(q[4 * h + i], q[4 * h + i + 2], (i8){2, 3, 10, 11, 6, 7, 14, 15});
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = __builtin_shuffle(u[i], u[i + 4], (i8){0, 1, 2, 3, 8, 9, 10, 11});
        r[i + 4] = __builtin_shuffle(u[i], u[i + 4], (i8){4, 5, 6, 7, 12, 13, 14, 15});
    }
}
/* 8 source rows -> 8 columns of a panel of width w */
static __attribute__((noinline)) long pack_t8(const float *s, long ls, long k, float *d, long w)
{
    long p = 0;
    for (; p + 8 <= k; p += 8) {
        v8 r[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) r[i] = *(const v8u *)(s + i * ls + p);
        transpose8(r);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) *(v8u *)(d + (p + i) * w) = r[i];
    }
    return p;
}
/* C[t, y] (+)= tile[y, t] : a finished micro tile stored transposed */
static __attribute__((noinline)) void store_t(const float *tmp, long w, float *c, long ldc, long mr, long nr, int acc)
{
    if (mr == 8) {
        for (long t = 0; t + 8 <= nr; t += 8) {
            v8 r[8];
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) r[i] = *(const v8u *)(tmp + i * w + t);
            transpose8(r);
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                v8u *o = (v8u *)(c + (t + i) * ldc);
                if (acc) *o += r[i]; else *o = r[i];
            }
        }
        long t = nr / 8 * 8;
        tmp += t; c += t * ldc; nr -= t;
    }
    for (long t = 0; t < nr; t++)
        for (long y = 0; y < mr; y++)
            c[t * ldc + y] = tmp[y * w + t] + (acc ? c[t * ldc + y] : 0.0f);
}
#endif
/* d[p*w + j] = s[j*ls + p], j < n (zero up to w), p < k */
static __attribute__((noinline)) void pack_t(const float *s, long ls, long n, long k, float *d, long w)
{
    long j = 0;
    for (; j + TB <= n; j += TB) {
        long p = 0;
        for (; p + TB <= k; p += TB) transpose_block(s + j * ls + p, ls, d + p * w + j, w);
        for (; p < k; p++)
            for (int q = 0; q < TB; q++) d[p * w + j + q] = s[(j + q) * ls + p];
    }
#if VB >= 64
    if (j + 8 <= n) {
        for (long p = pack_t8(s + j * ls, ls, k, d + j, w); p < k; p++)
            for (int q = 0; q < 8; q++) d[p * w + j + q] = s[(j + q) * ls + p];
        j += 8;
    }
#endif
    if (j < w) {
        for (long p = 0; p < k; p++) {
            long q = j;
            for (; q < n; q++) d[p * w + q] = s[q * ls + p];
            for (; q < w; q++) d[p * w + q] = 0;
        }
    }
}
/* d[p*w + j] = s[p*ls + j], j < n (zero up to w), p < k */
static __attribute__((noinline)) void pack_n(const float *s, long ls, long n, long k, float *d, long w)
{
    if (n == w && n % VL == 0) {
        for (long p = 0; p < k; p++)
            for (long j = 0; j < n; j += VL) *(vfu *)(d + p * w + j) = *(const vfu *)(s + p * ls + j);
        return;
    }
    for (long p = 0; p < k; p++) {
        long j = 0;
        for (; j < n; j++) d[p * w + j] = s[p * ls + j];
        for (; j < w; j++) d[p * w + j] = 0;
    }
}

/* ---------------------------------------------------------------- epilogue */
/* bias [n] and ReLU on a finished tile that could not have them in registers */
static void finish_tile(const float *bias, int relu, float *c, long ldc, long rows, long columns)
{
    for (long i = 0; i < rows; i++, c += ldc) {
        if (bias) for (long j = 0; j < columns; j++) c[j] += bias[j];
        if (relu) for (long j = 0; j < columns; j++) c[j] = c[j] < 0 ? 0 : c[j];
    }
}

/* ---------------------------------------------------------------- dot kernels (NT, tiny n) */
/* lanes along k: no packing; 16 accumulators are reduced together by interleave-and-add */
#if VB == 64
#define DOT(NAME, MR, NR)                                                               \
static __attribute__((noinline)) void NAME(long k, const float *restrict A, long lda,   \
        const float *restrict B, long ldb, float *restrict out)                         \
{                                                                                       \
    vf c[16];                                                                           \
    _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) c[i] = (vf){0};               \
    long p = 0;                                                                         \
    for (; p + VL <= k; p += VL) {                                                      \
        vf b[NR];                                                                       \
        _Pragma("GCC unroll 16") for (int j = 0; j < NR; j++) b[j] = *(const vfu *)(B + j * ldb + p); \
        _Pragma("GCC unroll 16") for (int i = 0; i < MR; i++) {                         \
            vf a = *(const vfu *)(A + i * lda + p);                                     \
            _Pragma("GCC unroll 16") for (int j = 0; j < NR; j++) c[i * NR + j] += a * b[j]; \
        }                                                                               \
    }                                                                                   \
    if (p < k) {     /* overlap the last vector, mask the lanes already counted */      \
        static const int32_t msk[2 * VL] = {0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1,-1}; \
        vi mk; memcpy(&mk, msk + (k - p), VB); long o = k - VL;                         \
        _Pragma("GCC unroll 16") for (int i = 0; i < MR; i++) {                         \
            vf a = (vf)((vi)*(const vfu *)(A + i * lda + o) & mk);                      \
            _Pragma("GCC unroll 16") for (int j = 0; j < NR; j++) c[i * NR + j] += a * *(const vfu *)(B + j * ldb + o); \
        }                                                                               \
    }                                                                                   \
    _Pragma("GCC unroll 4") for (int st = 8; st >= 1; st /= 2)                          \
        _Pragma("GCC unroll 8") for (int i = 0; i < st; i++)                            \
            c[i] = __builtin_shuffle(c[i], c[i + st], ILO) + __builtin_shuffle(c[i], c[i + st], IHI); \
    *(vfu *)out = c[0];                                                                 \
}
DOT(dot_4_4, 4, 4) DOT(dot_8_2, 8, 2) DOT(dot_16_1, 16, 1)
static void gemm_dot(long m, long n, long k, const float *A, long lda, const float *B, long ldb, int acc, float *C, long ldc)
{
    float t[16] __attribute__((aligned(64)));
    for (long j = 0; j < n;) {
        long nr = n - j >= 4 ? 4 : n - j >= 2 ? 2 : 1, mr = 16 / nr;
        for (long i = 0; i < m;) {
            long i0 = i + mr <= m ? i : m - mr;    /* last tile overlaps: no row remainder */
            (nr == 4 ? dot_4_4 : nr == 2 ? dot_8_2 : dot_16_1)(k, A + i0 * lda, lda, B + j * ldb, ldb, t);
            if (nr == 4 && !acc)
                for (long y = i - i0; y < 4; y++) memcpy(C + (i0 + y) * ldc + j, t + 4 * y, 16);
            else for (long y = i - i0; y < mr; y++)
                for (long x = 0; x < nr; x++) C[(i0 + y) * ldc + j + x] = t[y * nr + x] + (acc ? C[(i0 + y) * ldc + j + x] : 0);
            i = i0 + mr;
        }
        j += nr;
    }
}
#endif

/* ---------------------------------------------------------------- driver */
static inline long imin(long a, long b) { return a < b ? a : b; }
/* width (in columns, multiple of VL) of the panel starting at j: full panels, but the
 * last two are balanced when the rest would be thin */
static inline long panel_w(long n, long j)
{
    long r = n - j;
    if (r >= NRX + NRX || r == NRX) return NRX;
    long v = (r + VL - 1) / VL;
    if (v <= NVX) return v * VL;
    return (v + 1) / 2 * VL;
}
/* A block, stored k x m: source rows are read in runs of 8 panels.  Panels lie mr*kc*4 bytes
 * apart (often a multiple of 4 KiB, the span of one L1 way), so more than 8 write streams
 * would evict each other. */
static __attribute__((noinline)) void pack_a_rows(const float *s, long ls, long kc, long np, long base, long extra, float *d)
{
    for (long g = 0; g < np;) {
        long e = imin(g + 8, np), adv = 0;
        for (long i = g; i < e; i++) adv += base + (i < extra);
        const float *row = s;
        if (base == MRX && e - g == 8 && !extra) {
            for (long p = 0; p < kc; p++, row += ls) {
                float *t = d + p * MRX;
                for (long i = 0; i < 8; i++) memcpy(t + i * MRX * kc, row + i * MRX, MRX * 4);
            }
        } else
            for (long p = 0; p < kc; p++, row += ls) {
                const float *q = row; float *o = d;
                for (long i = g; i < e; i++) {
                    long w = base + (i < extra);
                    for (long x = 0; x < w; x++) o[p * w + x] = q[x];
                    q += w; o += w * kc;
                }
            }
        s += adv; d += adv * kc; g = e;
    }
}
/* when B, and when A, is read in place; when the roles swap; how few columns go by dot products (sizes in bytes or elements, all measured) */
enum { DIRECT_B_ROWS = 8 * MRX, DIRECT_B_BYTES = 64 * 1024, DIRECT_A_BYTES = 48 * 1024, SWAP_ROWS = MRX == 8 ? 192 : 1, DOT_COLUMNS = 14, PREFETCH_FROM = 1 << 21 };
/* floats of packing space that a worker needs at most: a block of A (1.5 MC rows) and one of B, both 1.25 KC deep */
#define PACKED_FLOATS ((size_t)(KC + KC / 4) * (MC + MC / 2 + MRX + NC + NRX) + 128)

static inline long padded(long n) { return (n + VL - 1) / VL * VL; }

static void packed_sgemm(int ta, int tb, long m, long n, long k, const float *A, long lda, const float *B, long ldb, int acc0, float *C, long ldc,
                         const float *bias, int relu, float *workspace)
{
    const int epi = bias || relu;
    float tmp[MRX * NRX] __attribute__((aligned(64)));
    int tr = 0;
#if VB == 64
    if (m == 1 && tb && n >= 16 && k >= VL && (!ta || lda == 1)) {   /* matrix-vector */
        gemm_dot(n, 1, k, B, ldb, A, k, acc0, C, 1);
        if (epi) finish_tile(bias, relu, C, ldc, 1, n);
        return;
    }
    if (!ta && tb && n <= DOT_COLUMNS && m >= 16 && k >= 4 * VL) {
        gemm_dot(m, n, k, A, lda, B, ldb, acc0, C, ldc);
        if (epi) finish_tile(bias, relu, C, ldc, m, n);
        return;
    }
#endif
    /* few columns: put the long side on the vector lanes, store the tile transposed */
    if (SWAP_ROWS && (padded(n) * m * 2 > padded(m) * n * 3
                    || (tb && !ta && m <= SWAP_ROWS && n >= 2 * m && k >= 32))) {
        const float *x = A; A = B; B = x;
        long y = lda; lda = ldb; ldb = y; y = m; m = n; n = y;
        int z = ta; ta = !tb; tb = !z; tr = 1;
    }
    long kcb = k <= KC + KC / 4 ? k : (k + (k + KC - 1) / KC - 1) / ((k + KC - 1) / KC);
    long mcb = m <= MC + MC / 2 ? m : MC;
    long ncb = n <= NC ? n : NC;
    int da = ta ? (m * kcb * 4 <= DIRECT_A_BYTES) || n <= 2 * NRX
                : (lda * imin(m, mcb) * 4 <= DIRECT_A_BYTES) || n <= 4 * NRX;
    int db = !tb && (m <= DIRECT_B_ROWS || k * ldb * 4 <= DIRECT_B_BYTES);
    size_t an = da ? 0 : (size_t)(mcb + MRX) * kcb;
    float *pa = workspace, *pb = pa + (an + 15) / 16 * 16;
    for (long jc = 0; jc < n; jc += ncb) {
        long nc = imin(ncb, n - jc);
        for (long pc = 0; pc < k; pc += kcb) {
            long kc = imin(kcb, k - pc);
            int acc = acc0 || pc > 0, last = epi && pc + kc == k;
            for (long ic = 0; ic < m; ic += mcb) {
                long mc = imin(mcb, m - ic);
                long np = (mc + MRX - 1) / MRX, base = mc / np, extra = mc % np;
                const float *a0 = ta ? A + pc * lda + ic : A + ic * lda + pc;
                if (!da) {
                    if (ta) pack_a_rows(a0, lda, kc, np, base, extra, pa);
                    else for (long q = 0, i = 0; q < np; q++) {
                        long mr = base + (q < extra);
                        pack_t(a0 + i * lda, lda, mr, kc, pa + i * kc, mr);
                        i += mr;
                    }
                }
                float *bp = pb;
                for (long j = 0; j < nc;) {
                    long w = panel_w(nc, j), nr = imin(w, nc - j), bs = w;
                    const float *bq = bp;
                    /* next panel of B, fetched a slice per micro-kernel call */
                    const float *pf = 0; long pfl = 0, pfr = 0, pfc = 0, pfi = 0;
                    if (db && nr == w) { bq = B + pc * ldb + jc + j; bs = ldb; }
                    else if (ic == 0) {
                        if (tb) pack_t(B + (jc + j) * ldb + pc, ldb, nr, kc, bp, w);
                        else pack_n(B + pc * ldb + jc + j, ldb, nr, kc, bp, w);
                        if (k * n > PREFETCH_FROM && j + nr < nc) {
                            pf = tb ? B + (jc + j + nr) * ldb + pc : B + pc * ldb + jc + j + nr;
                            pfr = tb ? imin(NRX, nc - j - nr) : kc;
                            pfc = tb ? kc : imin(NRX, nc - j - nr);
                            pfl = (pfr + np - 1) / np;
                        }
                    }
                    bp += w * kc;
                    for (long q = 0, i = 0; q < np; q++) {
                        long mr = base + (q < extra);
                        if (pf)
                            for (long e = imin(pfi + pfl, pfr); pfi < e; pfi++)
                                for (long x = 0; x < pfc; x += 16) __builtin_prefetch(pf + pfi * ldb + x, 0, 2);
                        const float *ap = da ? (ta ? a0 + i : a0 + i * lda) : pa + i * kc;
                        if (mr < 1 || mr > MRX) __builtin_unreachable();
                        ukr_fn f = (da && !ta ? uk_row : uk_col)[mr - 1][w / VL - 1];
                        long as = da ? lda : mr;
                        if (tr) {
                            float *c = C + (jc + j) * ldc + ic + i;
                            f(kc, ap, as, bq, bs, tmp, w, 0, 0, 0);
                            store_t(tmp, w, c, ldc, mr, nr, acc);
                        } else {
                            float *c = C + (ic + i) * ldc + jc + j;
                            int reg = last && nr == w;
                            if (nr == w) f(kc, ap, as, bq, bs, c, ldc, acc, reg && bias ? bias + jc + j : 0, reg && relu);
                            else {
                                f(kc, ap, as, bq, bs, tmp, w, 0, 0, 0);
                                for (long y = 0; y < mr; y++)
                                    if (acc) for (long t = 0; t < nr; t++) c[y * ldc + t] += tmp[y * w + t];
                                    else for (long t = 0; t < nr; t++) c[y * ldc + t] = tmp[y * w + t];
                            }
                            if (last && !reg) finish_tile(bias ? bias + jc + j : 0, relu, c, ldc, mr, nr);
                        }
                        i += mr;
                    }
                    if (tr && last && ic + mc == m) finish_tile(bias, relu, C + (jc + j) * ldc, ldc, nr, m);
                    j += nr;
                }
            }
        }
    }
}
#endif
