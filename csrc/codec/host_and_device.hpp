#pragma once

// What functions begin with that loops of the host and kernels have in common.
#ifdef __CUDACC__
#define ACCDP_HOST_AND_DEVICE __host__ __device__
#else
#define ACCDP_HOST_AND_DEVICE
#endif
