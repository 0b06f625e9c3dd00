// Passes over voxels that sample them: see pointwise.cuh. They are compiled by themselves, as that takes
// long and most networks need none.

#include "order.cuh"
#include "pointwise.cuh"

template <Sampling SAMPLING, Form FORM>
__global__ void __launch_bounds__(MOST_THREADS, 2) pointwise_sampled(Pointwise p) {
    follow();
    sampled<SAMPLING, FORM>(p);
}

template <class Axis, Form FORM>
__global__ void __launch_bounds__(MOST_THREADS, 2) pointwise_blended(Pointwise p) {
    follow();
    blended<Axis, FORM>(p);
}
