// Passes over voxels that sample nothing: see pointwise.cuh.

#include "order.cuh"
#include "pointwise.cuh"

template <Form FORM>
__global__ void __launch_bounds__(MOST_THREADS, FORM == GENERAL ? 2 : 3) pointwise(Pointwise p) {
    follow();
    plain<FORM>(p);
}
