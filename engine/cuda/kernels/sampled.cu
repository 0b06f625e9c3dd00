// Passes over voxels that sample them: see pointwise.cuh. They are compiled by themselves, as that takes
// long and most networks need none.

#include "order.cuh"
#include "pointwise.cuh"

#define IN_FORM(name, pass, how, form)                                       \
    extern "C" __global__ void __launch_bounds__(320, 2) name(Pointwise p) { \
        follow();                                                            \
        pass<how, form>(p);                                                  \
    }
#define IN_EACH_FORM(name, pass, how)             \
    IN_FORM(name, pass, how, PLAIN)               \
    IN_FORM(name##_residual, pass, how, RESIDUAL) \
    IN_FORM(name##_general, pass, how, GENERAL)

IN_EACH_FORM(pointwise_nearest, sampled, NEAREST)
IN_EACH_FORM(pointwise_largest, sampled, LARGEST)
IN_EACH_FORM(pointwise_mean, sampled, MEAN)
IN_EACH_FORM(pointwise_trilinear, blended, Between<false>)
IN_EACH_FORM(pointwise_trilinear_corners, blended, Between<true>)
IN_EACH_FORM(pointwise_binomial, blended, Filtered)
