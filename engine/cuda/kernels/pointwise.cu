// Passes over voxels that sample nothing: see pointwise.cuh.

#include "pointwise.cuh"

extern "C" __global__ void __launch_bounds__(320, 3) pointwise(Pointwise p) {
    plain<PLAIN>(p);
}
extern "C" __global__ void __launch_bounds__(320, 3) pointwise_residual(Pointwise p) {
    plain<RESIDUAL>(p);
}
extern "C" __global__ void __launch_bounds__(320, 2) pointwise_general(Pointwise p) {
    plain<GENERAL>(p);
}
