// Passes over voxels that sample nothing: see pointwise.cuh.

#include "order.cuh"
#include "pointwise.cuh"

extern "C" __global__ void __launch_bounds__(320, 3) pointwise(Pointwise p) {
    follow();
    plain<PLAIN>(p);
}
extern "C" __global__ void __launch_bounds__(320, 3) pointwise_residual(Pointwise p) {
    follow();
    plain<RESIDUAL>(p);
}
extern "C" __global__ void __launch_bounds__(320, 2) pointwise_general(Pointwise p) {
    follow();
    plain<GENERAL>(p);
}
