#pragma once

// Included before the rest of Highway: which instruction sets the tile kernels are compiled for.
// Three are enough on x86 (128-, 256- and 512-bit vectors); each one more costs seconds of
// compilation.
#if defined(__x86_64__)
#define HWY_BASELINE_TARGETS HWY_SSE4
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#else
// Kernels keep vectors in arrays, which sizeless types cannot be in.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif

#include <hwy/targets.h>
