/* What matmul/gemm.pyx and matmul/gemm_bfloat16.pyx offer, on emulated tiles. */
#ifdef ROUND_TO_BFLOAT16
#include "matmul/gemm_bfloat16.h"
#else
#include "matmul/amx_gemm.h"
#define implicit_gemm amx_implicit_gemm
#endif
#define EXPORT(NAME, FUNCTION) const void *const address_of_##NAME = (const void *)FUNCTION;
EXPORT(packed_gemm, packed_gemm)
EXPORT(parallel_gemm, parallel_gemm)
EXPORT(implicit_gemm, implicit_gemm)
#ifdef ROUND_TO_BFLOAT16
EXPORT(pack_step_weights, pack_step_weights)
EXPORT(step_gemm, step_gemm)
EXPORT(gemm_on_tiles, gemm_on_tiles)
EXPORT(tiled_gemm_serial, tiled_gemm_serial)
EXPORT(pack_tiled_step_weights, pack_tiled_step_weights)
EXPORT(tiled_step_gemm, tiled_step_gemm)
#else
EXPORT(amx_gemm, amx_gemm)
#endif
const size_t workspace_floats = PACKED_FLOATS;
