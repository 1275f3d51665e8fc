#pragma once

/// HD marks a function that host code and kernels both call.
#ifdef __CUDACC__
#define HD __host__ __device__
#else
#define HD
#endif
