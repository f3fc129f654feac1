/* Tuning constants of the GEMMs, convolutions and normalizations: register tiles by instruction set, and blocks by cache.
 *
 * The compiler's predefined macros say for which instruction set a file is compiled (setup.py compiles every kernel once per set). All sizes were measured;
 * the comment of each names what decided it. Sizes are in elements unless their name ends in BYTES. Constants that only cut an elementwise loop into work
 * items stand beside their loop. Those of GEMMs are for elements of SCALAR_BYTES, which is 8 where matmul/gemm_float64.h is compiled and 4 elsewhere. */
#ifndef ORTRAIN_TUNING_H
#define ORTRAIN_TUNING_H
#ifndef SCALAR_BYTES
#define SCALAR_BYTES 4
#endif

/* ---- by instruction set: vectors and their registers, and the register tiles and cache blocks of GEMMs
 *
 * TILE_ROWS x TILE_VECTORS is the register tile of the GEMM: 8 x 48, 12 x 32 and 14 x 32 are within 3 % with 64-byte vectors, and 8 rows make the transposing
 * store exact; 6 x 16 is best with 32-byte vectors. BLOCK_DEPTH 512 beats 384 and 256 by 3 to 10 % with 64-byte vectors, and with 32-byte vectors 352 beats 256
 * by 1 % and 192 by 3 %. FULL_ROWS is the tile of channels-last convolutions, always two vectors wide: 12 rows use 24 of 32 registers for sums, 6 rows 12 of 16
 * (8 rows spill, at half the speed).
 * ARM's vectors are short but many: 8 x 12 has 24 products to 5 or 11 loads. */
#if defined(__AVX512F__)
#  define VECTOR_BYTES 64
#  define VECTOR_REGISTERS 32
#  define TILE_ROWS 8
#  define TILE_VECTORS 3
#  define BLOCK_DEPTH 512
#  define BLOCK_ROWS (768 / SCALAR_BYTES)
#  define FULL_ROWS 12
#elif defined(__AVX2__)
#  define VECTOR_BYTES 32
#  define VECTOR_REGISTERS 16
#  define TILE_ROWS 6
#  define TILE_VECTORS 2
#  define BLOCK_DEPTH 352
#  define BLOCK_ROWS (576 / SCALAR_BYTES)
#  define FULL_ROWS 6
#elif defined(__aarch64__)
#  define VECTOR_BYTES 16
#  define VECTOR_REGISTERS 32
#  define TILE_ROWS 8
#  define TILE_VECTORS 3
#  define BLOCK_DEPTH 256
#  define BLOCK_ROWS (512 / SCALAR_BYTES)
#  define FULL_ROWS 12
#else
#  define VECTOR_BYTES 16
#  define VECTOR_REGISTERS 16
#  define TILE_ROWS 4
#  define TILE_VECTORS 3
#  define BLOCK_DEPTH 256
#  define BLOCK_ROWS (512 / SCALAR_BYTES)
#  define FULL_ROWS 6
#endif
#define BLOCK_COLUMNS (12288 / SCALAR_BYTES)
#define LANES (VECTOR_BYTES / SCALAR_BYTES)
#define TILE_COLUMNS (TILE_VECTORS * LANES)
#define TILE_BYTES (TILE_VECTORS * VECTOR_BYTES)    /* of a row of a tile */

/* ---- GEMM on one thread (matmul/gemm.h, matmul/gemm_packing.h) */
enum {
    MAX_SHARED_ROWS = BLOCK_ROWS + BLOCK_ROWS / 2,  /* rows of A in one block */
    DIRECT_B_ROWS = 8 * TILE_ROWS,                  /* up to this many rows of A, B is read in place: packing it would cost as much as the product */
    /* Up to this many bytes, B is read in place. With 32-byte vectors, the 512 bytes between rows of 128 columns leave an eighth of the L1 cache to a panel
     * (1040 x 128 x 128: 66 to 73 GFLOP/s if packed). */
    DIRECT_B_BYTES = (TILE_ROWS == 6 ? 16 : 64) * 1024,
    PANELS_OVERLAP = VECTOR_BYTES < 64,             /* 64-byte vectors have masks for the columns that a panel lacks */
    DIRECT_A_BYTES = 48 * 1024,                     /* a block of transposed A that fits into the L1 cache is read in place */
    DIRECT_TRANSPOSED_A_COLUMNS = (TILE_ROWS == 6 ? 8 : 2) * TILE_COLUMNS,
    /* Up to this many rows of A, A and B swap roles and tiles are stored transposed. With 8-row tiles the transposing store is exact; with 6 rows it pays for
     * few rows (share of the peak, 16 x 1024 x 256: 52 to 69 %, 64 x 500 x 784: 82 to 86 %, but 192 x 768 x 768: 87 to 85 %) and where weights can be read in
     * place: rows 16 KiB apart share sets of the L2 cache, hence SWAP_STEP. */
    SWAP_ROWS = TILE_ROWS == 8 ? 192 : TILE_ROWS == 6 ? 64 : 1,
    SWAP_STEP = TILE_ROWS == 8 ? 1 << 30 : (16 << 10) / SCALAR_BYTES - 1,
    /* Depth of the blocks of swapped products: a tile that covers the whole depth is stored once (64 x 500 x 784: 84 % of the peak in blocks of 256, 92 % in
     * one; 128 x 4096 x 4096 with 64-byte vectors: 138 GFLOP/s in blocks of 512, 150 in blocks of 1024). */
    SWAPPED_DEPTH = TILE_ROWS == 4 ? BLOCK_DEPTH : 1024,
    /* Dot products instead of tiles: up to DOT_COLUMNS columns (with 8 lanes, 10 columns of 64 x 500 took 12.9 µs against 11.5 in tiles) or DOT_ROWS rows (2 to
     * 4 rows x 784 x 512: 34 to 44 µs against 89 to 92 in tiles; 8 rows lose where weights are not in the caches), from DOT_DEPTH on. */
    DOT_COLUMNS = VECTOR_BYTES == 64 ? 14 : 4,
    DOT_ROWS = 4,
    DOT_DEPTH = VECTOR_BYTES == 64 ? 64 : 128,
    /* Rows of B that a GEMV adds at a time, so that it reads B in the order of memory (1 x 2048 x 2048: 20 GFLOP/s in columns of 4 vectors). Up to GEMV_COLUMNS
     * columns, sums stay in registers instead. With more than GEMV_ROWS rows, the packed GEMM is faster. */
    GEMV_DEPTH = 8, GEMV_COLUMNS = 128, GEMV_ROWS = 3,
    OUTER_STREAM_FROM = (4 << 20) / SCALAR_BYTES,   /* outer products of 4 MiB and more bypass the caches */
    DOT_BLOCK = (256 << 10) / SCALAR_BYTES,         /* elements of the rows that more than one group of columns reads */
    STREAM_FROM = (8 << 20) / SCALAR_BYTES,         /* results of 8 MiB and more bypass the caches with non-temporal stores */
    /* Panels packed side by side, 144 or 128 columns: 295 or 128 KiB of the L2 cache, and two such runs are in use at a time. */
    PANELS_PER_RUN = TILE_BYTES > 128 ? 3 : 8, TILES_PER_RUN = 8,
    TILES_PER_SLICE = 8                             /* tiles that are computed before the next slice of a run is packed */
};

/* ---- GEMM on all threads (matmul/gemm_parallel.h) */
enum {
    MIN_PRODUCTS = 1 << 20,                         /* multiplications, about 20 µs: below that a second thread gains nothing */
    MAX_ITEMS = 16,
    FEW_ITEMS = 4,                                  /* up to this many items are of equal size (256 columns on two threads: 128 + 128, not 144 + 112) */
    MIN_ITEM_ROWS = 4 * TILE_ROWS, MIN_ITEM_COLUMNS = TILE_BYTES > 128 ? 2 * TILE_COLUMNS : 4 * TILE_COLUMNS,     /* of an item */
    /* Columns of B that one item packs. With fewer than FEW_PACKED_COLUMNS in all, smaller items divide them more evenly (a decoder with layers of 128 columns
     * takes 0.97 of its time on two threads). */
    COLUMNS_PER_PACKING = 8 * TILE_COLUMNS, FEW_PACKED_COLUMNS = 4 * COLUMNS_PER_PACKING, MIN_PACKED_COLUMNS = 4 * TILE_COLUMNS,
    SIZE_OF_THIN_ITEM = 512,
    SHARED_ELEMENTS = (4 << 20) / SCALAR_BYTES,     /* of packed operand at a time, which fit into the L3 cache */
    /* Packed B that all items read: half of an L2 cache, because the L3 cache may be slow (1024^3: 141 GFLOP/s with 4 MiB, 164 with 1 MiB). With fewer than
     * CHUNK_COLUMNS columns a chunk is cut by depth instead. */
    CHUNK_ELEMENTS = (1 << 20) / SCALAR_BYTES, CHUNK_COLUMNS = COLUMNS_PER_PACKING,
    /* Multiplying all panels by one tile of A after another keeps the tile in the L1 cache, whose rows may share sets, and writes lines of C side by side
     * (3136 x 512 x 128, cold caches: 125 GFLOP/s panel by panel, 155 tile by tile). A panel that is small enough stays in the cache instead, for all rows of
     * an item, where C is small (1600 x 512 x 128: 179 against 171). With 32-byte vectors, C is small up to 256 KiB (1024 x 1024 x 256: 66 to 75 GFLOP/s), all
     * panels of B may fit into the L1 cache (1536 x 48 x 64: 67 panel by panel, 64 tile by tile), and packed tiles of transposed A gain as well
     * (1024 x 4096 x 128: 58 to 70). */
    SMALL_PANEL_BYTES = 32 * 1024, SMALL_RESULT = ((TILE_ROWS == 6 ? 256 : 4096) << 10) / SCALAR_BYTES, SHARED_SET_STEP = (16 << 10) / SCALAR_BYTES,
    KEPT_PANELS_BYTES = TILE_ROWS == 6 ? 32 * 1024 : 0, RUNS_BY_TILES = TILE_ROWS == 6
};

/* ---- products on AMX tiles (matmul/amx_eligibility.h, matmul/amx_gemm.h) */
#define PANEL_SIZE 32                               /* rows of A or columns of B: two tiles of 16 */
/* Smaller products gain nothing in three parts: 32 columns 5 %, and 48 x 48, which fill half of 64 x 64, lose 40 %. The limits are the same in one part,
 * which is still twice as fast there as vectors of float32 (4096 x 48 x 64: 160 to 210 instead of 93 GFLOP/s); smaller ones have those below. */
enum { MIN_TILED_SIDE = 48, MIN_TILED_DEPTH = 64, MIN_TILED_PRODUCTS = 1 << 20, MIN_FILLED = 70 /* percent */ };
/* Of products whose operands are rounded to bfloat16 first (matmul/tiled_gemm.h), on a Granite Rapids. Below the least sizes, a product is faster in float32
 * vectors (4096 x 16 x 16: 20 µs against 25; 128 x 64 x 8: 3.6 and 4.4; but 128 x 10 x 128: 6.7 and 4.3). Above MOST_PACKED columns times depth, or
 * MOST_WEIGHTS rows times columns where A is transposed, packing while tiles are multiplied is faster (512 x 2048 x 512: 1.3 ms against 1.8; 512 x 128
 * transposed, depth 1040: 0.27 and 0.31; but 1024 x 1024 x 256: 0.73 ms and 0.53). */
enum { LEAST_SIDE = 8, LEAST_DEPTH = 24, LEAST_PRODUCTS = 1 << 17, LEAST_WEIGHTS = 512, MOST_PACKED = 1 << 19, LEAST_ROWS = 128, MOST_WEIGHTS = 1 << 15 };
#ifdef BFLOAT16_PAIRS
/* A chunk is 512 deep, such that the L1 cache holds a panel of 32 KiB beside the sums of a block: estimated, not measured. */
enum { BFLOAT16_PARTS = 1, CHUNK_STEPS = 16 };
#else
/* A chunk is 256 deep; 160 is no faster, since blocks of C are loaded and stored more often. */
enum { BFLOAT16_PARTS = 3, CHUNK_STEPS = 8 };
#endif
enum {
    MAX_PANELS = 8,                                 /* packed together */
    /* A run along the depth is one panel: with two and more the L2 cache evicts what it should keep (1024 x 256 x 8192: 205 against 245 GFLOP/s). Across
     * the depth, rows of a single panel are only two cache lines (200 x 5000 x 3000: 160 against 190). */
    STAYING_PANELS = MAX_PANELS, RUN_PANELS = 4,
    KEPT_BLOCKS = 128,                              /* of C, 512 KiB, where there is more than one chunk */
    /* The depth is split into SLICES from SLICED_CHUNKS chunks (a depth of 2048) on, for results of up to SLICED_BLOCKS blocks: the weight gradients of 1 x 1
     * convolutions. On two threads 64 x 64 x 12544 goes from 158 to 242 GFLOP/s; 64 blocks (512 x 128 x 3136) lose more by the final sum than they gain (440 to
     * 340). */
    SLICES = 2, SLICED_CHUNKS = 64 / CHUNK_STEPS, SLICED_BLOCKS = 32,
    FEW_PANELS = 3,                                 /* operands are swapped if at most this many panels need transposing afterwards */
    TILED_STREAM_FROM = 3 << 19                     /* results of 6 MiB and more are streamed (3136 x 512 x 128: 1.85 to 1.45 ms); from 4 MiB BERT loses 1 % */
};

/* ---- recurrent layers (recurrent/recurrent.h, recurrent/step_gemm.h)
 *
 * Batch rows of a block: SMALL_BLOCK where the L2 cache holds the recurrent weights (up to KEPT_WEIGHTS elements), which every step of every block reads,
 * so that threads share the rows evenly. The tile of a time step is 3 vectors wide and has 4 rows with 32-byte vectors, which divides blocks of 8 (8 rows of
 * 128 units with 512 gates: 92 % of the peak; 16 rows in tiles of 6, 5 and 5 rows: 88 %). */
enum { SMALL_BLOCK = 8, LARGE_BLOCK = 16, KEPT_WEIGHTS = 1 << 16, COLUMNS_PER_SUM = 64 };
enum { STEP_ROWS = TILE_VECTORS == 3 ? TILE_ROWS : 4, STEP_VECTORS = 3 };

/* ---- channels-last convolutions (channels_last/); ops/shared/conv_algorithms.py repeats those that planning needs */

/* im2col.h */
#define IM2COL_DEPTH 256                 /* depth of a GEMM */
#define PACKED_COLUMNS 32                /* packed filters are padded to a multiple of this */
#define GRADIENT_ROWS 96                 /* pixels of a block of the weight gradient */
#define TAP_CHANNELS 128                 /* from so many channels on, the data gradient has one GEMM per tap */

/* direct.h */
#define DIRECT_TILE_VECTORS 3            /* a tile is 4 outputs, 8 with 32 registers, by 3 vectors of filters: */
#define DIRECT_TILE_ROWS (VECTOR_REGISTERS == 32 ? 8 : 4) /* feature maps are multiples of 4 more often than of 6 */
#define DIRECT_NARROW_ROWS (VECTOR_REGISTERS == 32 ? 8 : 6) /* by fewer vectors, for as many sums (32 filters of 3 channels: 0.92 of its time; others equal) */
#define MAX_SEGMENTS 64
#define LANE_SUM_PRODUCTS 6              /* vectors of products in whose time the lanes of one are added up: 12 filters of 16 channels, 3 x 3, lose 7 % by dots */
#define POINTWISE_DOT_FILTERS 8          /* filters of a 1 x 1 convolution up to which it may be computed by dots instead of a GEMM */
#define POINTWISE_DOT_PIXELS 256         /* pixels of a work item of such a convolution */
#define PANEL_BYTES 16384                /* packed filters in use: half of the L1 cache */
#define PADDED_COPY_BYTES 131072         /* padded copy of an image's rows: a part of the L2 cache */
#define SUMMED_PIXELS 96                 /* pixels that a tile of the weight gradient sums before it is stored; 192 are up to 15 % slower with many channels */

/* pointwise.h, with 64-byte vectors only */
#define POINTWISE_DEPTH 512              /* of a panel of weights: 64 KiB */
#define POINTWISE_BYTES 262144           /* rows of x in use; as many are being prefetched */
#define POINTWISE_ROWS (10 * FULL_ROWS)
#define POINTWISE_PIXELS 8192            /* with 3136 pixels the GEMM is faster (256 to 512 channels: 4.9 against 5.5 ms) */
/* From this size of a row of y on, the rows of a tile are on different pages, and multiplying all panels by one tile of rows after another is faster (3.2 to
 * 2.6 ms). */
#define WIDE_ROW_BYTES 2048
/* With wide rows, and weights that need no transposition, the GEMM is faster from this depth on (128 to 512 channels on 28 x 28: by 0.4 of 6.1 ms). */
#define WIDE_ROW_DEPTH 256

/* weight_gradient.h */
#define WEIGHT_FILTERS 256
#define WEIGHT_CHANNELS 256              /* 128 read dy twice as often: 256 to 128 on 56 x 56 took 7.1 against 6.7 ms, with 32-byte vectors 9.9 against 8.9 */
#define WEIGHT_PIXELS 128
#define WEIGHT_PAD 16

/* depthwise.h */
#define COLUMN_BLOCK 4                  /* outputs of a depthwise convolution that share taps in registers, and what they read */
#define DEPTHWISE_SLICES 16              /* maximum number of partial sums of the weight gradient */
#define DEPTHWISE_MIN_ROWS 8             /* minimum rows of outputs per slice: with fewer, adding the slices took longer than 24 rows of 3 pixels */

/* grouped.h */
#define GROUPED_COLUMNS 12               /* outputs of a tile: 12 sums and a vector of weights fit into 16 registers */
#define GROUPED_TAPS 1024                /* of a kernel */
#define GROUPED_SUMMED_TAPS 6            /* taps of a tile of the weight gradient, with two sums each */
#define GROUPED_SUMMED_COLUMNS (VECTOR_BYTES == 64 ? 4 : 2) /* columns that such a tile adds at a time: as many vectors of dy stay in registers */
#define GROUPED_SUMMED_BYTES 24576       /* of the pixels of a block that tiles of the weight gradient spread: they stay in the L1 cache for all steps */
/* Of a block, in the L2 cache: the spread inputs of a vector (256 channels in 32 groups on 28 x 28: 108 GFLOP/s with 64 KiB, 130 with 192), and all inputs,
 * which are read once for every vector of outputs. */
#define GROUPED_BYTES 196608
#define GROUPED_INPUT_BYTES 393216
#define GROUPED_VOLUME 3                 /* factor of both for kernels of several planes, whose neighbouring planes are spread again for each block */
#define GROUPED_MIN_ROWS 4               /* of a block where images are few; rows above and below are spread again for each block */
#define SPREAD_BLOCKS 16                 /* to aim at */

/* winograd.h, winograd_gemm.h */
enum { PLANE_PAD = 16, FEW_TILES = 128, FILTER_BLOCK = 64, DEPTH_BLOCK = 128, FEW_FILTER_BLOCK = 32, FEW_DEPTH_BLOCK = VECTOR_BYTES == 64 ? 128 : 64,
       TILE_BLOCK = 48, WHOLE_PANEL = 32, GRADIENT_DEPTH_BLOCK = 64 };

/* winograd_1d.h */
#define WINOGRAD_1D_PART 65536           /* elements of the planes and results of a part of an image, if it has at least */
#define WINOGRAD_1D_TILES 8              /* tiles along a row */
#define WINOGRAD_1D_PAD 16               /* elements between planes, so that the 8 stores of a tile do not fall into one set of the L1 cache */
#define SUMMED_POSITIONS 64              /* that a tile of the weight gradient sums before it is stored: more increase the rounding error, fewer the time */
#define WINOGRAD_1D_ITEM_BYTES 262144    /* planes and results of a work item: half of the L2 cache */

/* batch_norm.h */
#define NORM_PARTIAL_PIXELS 128          /* pixels that are summed in REAL before they are added in double */
#define NORM_CHANNELS 1024               /* channels at a time: their partial sums fit into the L1 cache, beside the rows being read */
#define NORM_PREFETCH 512                /* distance of prefetching in elements, for reads and writes */
#endif
